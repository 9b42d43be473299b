"""What a run costs: prices, the price of what a stage left, and whether the budget bears another round.

A stage costs its seconds times what its pod had asked for. Where that or a price is not known, neither is the cost.
"""

from collections.abc import Sequence

from pydantic import Field

from burnish.contracts.artifacts import StageRecord
from burnish.contracts.section import Section

RESOURCES_VARIABLE = "BURNISH_RESOURCES"
"""Environment variable by which the placement tells a stage what its pod asks for, as JSON."""
CPU = "cpu"
"""Key of a record's CPU cores; every other key is a type of GPU."""


class CostConfig(Section):
    gpu_hour: dict[str, float] = Field(default_factory=dict)
    """Price of an hour of one GPU, by type: the placement's node label (NVIDIA-H100-80GB-HBM3), or without one its
    resource name (nvidia.com/gpu)."""
    cpu_hour: float = Field(0.0, ge=0)
    """Price of an hour of one CPU core. 0: it comes with the GPUs."""
    currency: str = Field("USD", pattern=r"^[A-Za-z]{1,8}$")
    """What prices and budget are in."""
    budget: float | None = Field(None, gt=0)
    """What the run may cost. No round begins that, by the one before it, would go beyond; then the run ends with the
    policy it has. Changing it, or a price, continues the same run."""

    @property
    def priced(self) -> bool:
        """Whether any price is given."""
        return bool(self.gpu_hour) or self.cpu_hour > 0

    def text(self, amount: float) -> str:
        """`3.20 USD`, or `3.20 of 10.00 USD` under a budget."""
        of = "" if self.budget is None else f" of {self.budget:.2f}"
        return f"{amount:.2f}{of} {self.currency}"


def price(seconds: float, resources: dict[str, float], cost: CostConfig) -> float | None:
    """Of `resources` (CPU cores and GPUs by type) for `seconds`; None: not known."""
    if not cost.priced or not resources:
        return None
    prices = cost.gpu_hour | {CPU: cost.cpu_hour}
    if not resources.keys() <= prices.keys():
        return None
    return seconds / 3600 * sum(amount * prices[name] for name, amount in resources.items())


def stage_cost(record: StageRecord, cost: CostConfig) -> float | None:
    """What the record's stage has cost its run: nothing where the result is that of another run."""
    if record.cached and record.cached_from != record.run_id:
        return 0.0
    return price(record.seconds, record.resources, cost)


def run_cost(records: Sequence[StageRecord], cost: CostConfig) -> float | None:
    """The sum over `records`; None where one of them is not known, or there are none."""
    costs = [stage_cost(record, cost) for record in records]
    known = [amount for amount in costs if amount is not None]
    return sum(known) if costs and len(known) == len(costs) else None


def beyond_budget(records: Sequence[StageRecord], cost: CostConfig, round: int, before: int = 0) -> str | None:
    """One line on why `round` may not begin; None when it may, or when what was spent is not known.

    Looked at are the records outside the rounds and those of earlier rounds alone, so all pods of a round agree. The
    evaluation after training, which every run ends with, is set aside at the price of the one before. `before` is the
    number of rounds of the run that this one goes on from.
    """
    if cost.budget is None:
        return None
    updates = [record for record in records if record.stage == "update" and 0 < (record.round or 0) < round]
    trained = {record.round for record in updates if record.round and not (record.skipped or record.error)}
    outside = [record for record in records if record.round is None]
    spent = run_cost([*outside, *(record for record in records if record.round in trained)], cost)
    if spent is None:
        return None
    last = [record for record in records if record.round == max(trained, default=0)]
    evaluations = [record for record in outside if record.stage == "evaluate"][:1]
    # Rounds that are under way beside this one (max_staleness) will have cost what the last one did.
    to_come = round - before - len(trained) - sum(record.skipped for record in updates)
    ahead = _again(last, cost) * to_come + _again(evaluations, cost)
    if spent + ahead <= cost.budget:
        return None
    wanted = f", and another round with the last evaluation would take {ahead:.2f}" if ahead else ""
    return (
        f"cost.budget is {cost.budget:g} {cost.currency}: {spent:.2f} are spent{wanted}; "
        "a larger budget goes on from here"
    )


def _again(records: Sequence[StageRecord], cost: CostConfig) -> float:
    """What it takes to do once more what `records` tell of; results that were remembered have to be worked for then."""
    return sum(price(record.seconds, record.resources, cost) or 0.0 for record in records)
