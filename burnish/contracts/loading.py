"""From YAML and `a.b=c` overrides to a RunConfig; every mistake is one line that names the field and the fix."""

import difflib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from burnish.contracts.config import RunConfig
from burnish.contracts.errors import ConfigError
from burnish.contracts.presets import resolve_preset
from burnish.contracts.section import Section

SectionT = TypeVar("SectionT", bound=Section)


def load_config(path: Path | None, overrides: Sequence[str] = ()) -> RunConfig:
    """The configuration in the YAML file `path` (None: the defaults) with `overrides` applied, presets filled in.

    Raises ConfigError: unreadable file, unknown key (with the nearest match), wrong value.
    """
    tree = _read_yaml(path) if path else {}
    for override in overrides:
        _apply(tree, override)
    return parse_config(tree)


def with_overrides(config: RunConfig, overrides: Sequence[str]) -> RunConfig:
    """`config` with `overrides` on top. Raises ConfigError."""
    tree = json.loads(config.model_dump_json())
    for override in overrides:
        _apply(tree, override)
    return parse_config(tree)


def parse_config(tree: dict[str, Any]) -> RunConfig:
    """The validated configuration of a plain tree of dicts and lists, presets filled in."""
    try:
        config = RunConfig.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(_explain(error.errors()[0])) from None
    return config.model_copy(update={"update": resolve_preset(config.update)})


def load_section(path: Path, model: type[SectionT]) -> SectionT:
    """The YAML file `path` as a `model`. Raises ConfigError as `load_config` does, naming the file."""
    try:
        return model.model_validate(_read_yaml(path))
    except ValidationError as error:
        raise ConfigError(f"{path}: {_explain(error.errors()[0], model)}") from None


def dump_config(config: RunConfig) -> str:
    """YAML that `load_config` turns into the same configuration."""
    return yaml.safe_dump(json.loads(config.model_dump_json()), sort_keys=False, allow_unicode=True)


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        tree = yaml.safe_load(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"config file {str(path)!r} does not exist; give the path of a YAML file") from None
    except (yaml.YAMLError, OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"config file {str(path)!r} cannot be read as YAML: {' '.join(str(error).split())}") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"config file {str(path)!r} holds a {type(tree).__name__}; it must hold `key: value` lines")
    return tree


def _apply(tree: dict[str, Any], override: str) -> None:
    key, separator, text = override.partition("=")
    if not separator or not key:
        raise ConfigError(f"override {override!r} is not of the form a.b=c, e.g. rollout.temperature=0.8")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise ConfigError(f"override {override!r}: the value {text!r} is not valid YAML; quote it") from None
    if isinstance(value, str):
        value = _number(value)
    *parents, last = key.split(".")
    node: Any = tree
    for depth, part in enumerate(parents):
        node = _child(node, part, ".".join(parents[: depth + 1]), create=True)
    if isinstance(node, list):
        node[_index(node, last, key)] = value
    elif isinstance(node, dict):
        node[last] = value
    else:
        raise ConfigError(f"override {override!r}: {'.'.join(parents)!r} is a value, not a section")


def _number(text: str) -> str | float:
    """YAML 1.1 reads 1e-5 as a string; people who write it mean a number."""
    try:
        return float(text)
    except ValueError:
        return text


def _child(node: Any, part: str, path: str, create: bool) -> Any:
    if isinstance(node, list):
        return node[_index(node, part, path)]
    if not isinstance(node, dict):
        raise ConfigError(f"override: {path!r} goes into a value; only sections and lists have parts")
    if create and node.get(part) is None:
        node[part] = {}
    return node[part]


def _index(node: list[Any], part: str, path: str) -> int:
    if not part.isdigit() or int(part) >= len(node):
        raise ConfigError(f"override {path!r}: {part!r} is no index of that list, which has {len(node)} entries")
    return int(part)


def _explain(error: ErrorDetails, root: type[BaseModel] = RunConfig) -> str:
    path = ".".join(str(part) for part in error["loc"]) or "config"
    if error["type"] == "extra_forbidden":
        return _unknown_key(error["loc"], path, root)
    if error["type"] == "missing":
        return f"{path} is missing; add it"
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "value_error" and isinstance(error.get("input"), dict | list | BaseModel):
        return f"{path}: {message}"
    return f"{path} is {error.get('input')!r}: {message[0].lower()}{message[1:]}"


def _unknown_key(location: tuple[int | str, ...], path: str, root: type[BaseModel]) -> str:
    *parents, key = location
    model = _model_at(parents, root)
    names = list(model.model_fields) if model else []
    nearest = _deeper(str(key), model) or difflib.get_close_matches(str(key), names, n=1, cutoff=0.5)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"known here: {', '.join(names)}"
    return f"{path} is not a known key; {hint}"


def _deeper(key: str, model: type[BaseModel] | None, prefix: str = "") -> list[str]:
    """Fields below `model` that have the name, or whose path has it when dots are written as underscores."""
    found = []
    for name, field in (model.model_fields if model else {}).items():
        path = f"{prefix}{name}"
        if prefix and key in (name, path.replace(".", "_")):
            found.append(path)
        found += _deeper(key, section_model(field.annotation), f"{path}.")
    return found


def _model_at(location: Sequence[int | str], root: type[BaseModel]) -> type[BaseModel] | None:
    model: type[BaseModel] | None = root
    inside_mapping = False
    for part in location:
        if isinstance(part, int) or inside_mapping:
            inside_mapping = False
            continue
        if model is None or part not in model.model_fields:
            return None
        annotation = model.model_fields[part].annotation
        inside_mapping = get_origin(annotation) is dict
        model = section_model(annotation)
    return model


def section_model(annotation: Any) -> type[BaseModel] | None:
    """The Section class inside an annotation such as `SftConfig` or `list[TaskConfig]`, or None."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in get_args(annotation):
        found = section_model(argument)
        if found:
            return found
    return None
