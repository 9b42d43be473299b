"""Python values as JSON text that decodes to plain values only, so that nothing foreign crosses with them.

Numbers, strings, booleans and None are themselves; containers and bytes are one-key objects naming their type.
"""

import json
from typing import Any

_CONTAINERS: tuple[Any, ...] = (list, tuple, set, frozenset)


class UnsupportedValue(ValueError):
    """A value of another type than those below; nothing expected can be equal to it."""


def encode(value: Any) -> str:
    """One line of JSON. Raises UnsupportedValue, RecursionError."""
    return json.dumps(_to_plain(value))


def decode(text: str | bytes) -> Any:
    """The value in a line made by `encode`. Raises ValueError, RecursionError on anything else."""
    return _from_plain(json.loads(text))


def _to_plain(value: Any) -> Any:
    # Subclasses (a Counter, an IntEnum) go over as what they are based on; exact types come back.
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bytes | bytearray):
        return {"bytes": bytes(value).hex()}
    if isinstance(value, dict):
        return {"dict": [[_to_plain(key), _to_plain(item)] for key, item in dict.items(value)]}
    for base in _CONTAINERS:
        if isinstance(value, base):
            return {base.__name__: [_to_plain(item) for item in base.__iter__(value)]}
    raise UnsupportedValue(f"a value of type {type(value).__name__} cannot leave the sandbox")


def _from_plain(plain: Any) -> Any:
    if plain is None or isinstance(plain, bool | int | float | str):
        return plain
    if not isinstance(plain, dict) or len(plain) != 1:
        raise ValueError("not an encoded value")
    ((kind, items),) = plain.items()
    try:
        if kind == "bytes":
            return bytes.fromhex(items)
        if kind == "dict":
            return {_from_plain(key): _from_plain(item) for key, item in items}
        makers = {base.__name__: base for base in _CONTAINERS}
        return makers[kind](_from_plain(item) for item in items)
    except (TypeError, KeyError) as error:
        raise ValueError(f"not an encoded value: {error}") from None
