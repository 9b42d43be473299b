"""The base of every node of the RunConfig tree."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Unknown keys are refused and values cannot change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
