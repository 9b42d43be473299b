"""What must be equal for one policy's weights to go where another's are: configuration, names, shapes and types.

All of it is read from config.json and the heads of the safetensors files; no weights are touched.
"""

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.contracts.errors import ContractError

_MAX_HEAD = 100 * 2**20
# Which library wrote the file is no property of the model.
_BOOKKEEPING = {"transformers_version", "_name_or_path", "dtype", "torch_dtype"}


@dataclass(frozen=True)
class Architecture:
    """Equal for policies of the same shape."""

    config: dict[str, Any]
    tensors: dict[str, tuple[str, tuple[int, ...]]]
    """Type and shape of each tensor, by name."""

    @property
    def vocabulary(self) -> int:
        """Token ids are below it."""
        return int(self.config.get("text_config", self.config)["vocab_size"])


def read_architecture(folder: Path) -> Architecture:
    """That of the policy in `folder`, its adapter included. Raises ContractError for what is no safetensors model."""
    files = sorted(folder.rglob("*.safetensors"))
    if not (folder / "config.json").is_file() or not any(path.parent == folder for path in files):
        raise ContractError("the policy lacks config.json or *.safetensors files")
    config = json.loads((folder / "config.json").read_bytes())
    tensors = {}
    for path in files:
        prefix = path.parent.relative_to(folder).as_posix()
        for name, entry in _head(path).items():
            if name != "__metadata__":
                tensors[f"{prefix}/{name}"] = (str(entry["dtype"]), tuple(map(int, entry["shape"])))
    return Architecture({key: value for key, value in config.items() if key not in _BOOKKEEPING}, tensors)


def _head(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else _MAX_HEAD + 1
        if length > _MAX_HEAD:
            raise ContractError(f"{path.name} is no safetensors file")
        try:
            return dict(json.loads(file.read(length)))
        except (ValueError, TypeError):
            raise ContractError(f"{path.name} is no safetensors file") from None
