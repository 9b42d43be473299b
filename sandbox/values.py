"""Python values as JSON text that decodes to plain values only, so that nothing foreign crosses with them.

Numbers, strings, booleans and None are themselves; containers and bytes are one-key objects naming their type. Other
objects stay where they are; both ends may agree on references to them.
"""

import json
from collections.abc import Callable
from typing import Any

_CONTAINERS: tuple[Any, ...] = (list, tuple, set, frozenset)

Reference = dict[str, Any]
Refer = Callable[[Any], Reference]
"""From an object to the one-key object that stands for it; raises UnsupportedValue."""
Resolve = Callable[[str, Any], Any]
"""From the key and the item of a reference to what stands for it here; raises ValueError."""


class UnsupportedValue(ValueError):
    """A value of another type than those below; nothing expected can be equal to it."""


def no_reference(value: Any) -> Reference:
    """Refer to nothing: only plain values cross."""
    raise UnsupportedValue(f"a value of type {type(value).__name__} cannot leave the sandbox")


def no_resolution(kind: str, item: Any) -> Any:
    """Know no references."""
    raise ValueError(f"not an encoded value: {kind}")


def encode(value: Any, refer: Refer = no_reference) -> str:
    """One line of JSON. Raises UnsupportedValue, RecursionError."""
    return json.dumps(_to_plain(value, refer))


def decode(text: str | bytes, resolve: Resolve = no_resolution) -> Any:
    """The value in a line made by `encode`. Raises ValueError, RecursionError on anything else."""
    return _from_plain(json.loads(text), resolve)


def _to_plain(value: Any, refer: Refer) -> Any:
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
        return {"dict": [[_to_plain(key, refer), _to_plain(item, refer)] for key, item in dict.items(value)]}
    for base in _CONTAINERS:
        if isinstance(value, base):
            return {base.__name__: [_to_plain(item, refer) for item in base.__iter__(value)]}
    return refer(value)


def _from_plain(plain: Any, resolve: Resolve) -> Any:
    if plain is None or isinstance(plain, bool | int | float | str):
        return plain
    if not isinstance(plain, dict) or len(plain) != 1:
        raise ValueError("not an encoded value")
    ((kind, items),) = plain.items()
    try:
        if kind == "bytes":
            return bytes.fromhex(items)
        if kind == "dict":
            return {_from_plain(key, resolve): _from_plain(item, resolve) for key, item in items}
        for base in _CONTAINERS:
            if kind == base.__name__:
                return base(_from_plain(item, resolve) for item in items)
        return resolve(kind, items)
    except TypeError as error:
        raise ValueError(f"not an encoded value: {error}") from None
