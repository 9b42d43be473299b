"""Arguments that several verbs share, and the settings help made from the configuration's own field docs."""

import argparse
import textwrap
from pathlib import Path

from pydantic import BaseModel

from burnish.contracts.config import RunConfig
from burnish.contracts.loading import load_config, section_model


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """`[CONFIG] [a.b=c ...]`; the epilog lists every setting."""
    parser.add_argument("config", nargs="?", help="YAML file; without one, every setting has its default")
    parser.add_argument("overrides", nargs="*", metavar="a.b=c", help="settings on top of the file")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "settings (in the file, or as a.b=c):\n" + settings_help()


def config_of(given: argparse.Namespace) -> RunConfig:
    """The configuration that the arguments describe. Raises ConfigError."""
    if given.config and "=" in given.config and not Path(given.config).exists():
        return load_config(None, (given.config, *given.overrides))
    return load_config(Path(given.config) if given.config else None, given.overrides)


def settings_help(model: type[BaseModel] = RunConfig, prefix: str = "") -> str:
    """One entry a field: `a.b (default)` and its documentation."""
    entries = []
    for name, field in model.model_fields.items():
        path = f"{prefix}{name}"
        section = section_model(field.annotation)
        if section is None:
            default = "required" if field.is_required() else repr(field.get_default(call_default_factory=True))
            text = textwrap.fill(field.description or "", 96, initial_indent=" " * 6, subsequent_indent=" " * 6)
            entries.append(f"  {path} ({default})\n{text}")
        elif "list" in str(field.annotation):
            entries.append(settings_help(section, f"{path}.N."))
        else:
            entries.append(settings_help(section, f"{path}."))
    return "\n".join(entries)
