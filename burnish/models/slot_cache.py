"""Keys and values of rows that decode together at different lengths: every row writes at its own position.

Nothing is ever shifted or padded on the left, so a finished row's slot is handed to a new prompt in place.
"""

from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache

_GROWTH = 64

# transformers leaves this class without types.
_LayerBase: Any = CacheLayerMixin


class Prefix:
    """Keys and values of one prompt, [layers, heads, P, head_dim] each, and the logits after it, [vocab]."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, logits: torch.Tensor) -> None:
        self.keys, self.values, self.logits = keys, values, logits

    @property
    def length(self) -> int:
        return self.keys.shape[2]


def split_prefixes(cache: DynamicCache, lengths: list[int], logits: torch.Tensor) -> list[Prefix]:
    """One Prefix per row of a right-padded prefill; `logits` [B, vocab] are those after each row's last token."""
    layers: list[Any] = list(cache.layers)
    keys = torch.stack([layer.keys for layer in layers])
    values = torch.stack([layer.values for layer in layers])
    return [
        Prefix(keys[:, row, :, :length].clone(), values[:, row, :, :length].clone(), logits[row])
        for row, length in enumerate(lengths)
    ]


class SlotCache(Cache):
    """A transformers cache of B slots. `lengths` [B] says how many tokens each slot holds."""

    def __init__(self, slots: int, like: Prefix) -> None:
        layers, heads, _, head_dim = like.keys.shape
        self.keys = like.keys.new_zeros(layers, slots, heads, 0, head_dim)
        self.values = like.values.new_zeros(layers, slots, heads, 0, like.values.shape[-1])
        self.lengths = torch.zeros(slots, dtype=torch.long, device=like.keys.device)
        self._rows = torch.arange(slots, device=like.keys.device)
        self._window = 0
        super().__init__(layers=[_SlotLayer(self, index) for index in range(layers)])

    def place(self, slots: list[int], prefix: Prefix) -> None:
        """Start `slots` afresh behind `prefix`."""
        self._reserve(prefix.length)
        index = torch.tensor(slots, device=self.lengths.device)
        for store, new in ((self.keys, prefix.keys), (self.values, prefix.values)):
            store[:, index, :, : prefix.length] = new[:, None]
            # A NaN left by an aborted row would come through the mask as 0 * NaN.
            store[:, index, :, prefix.length :] = 0
        self.lengths[index] = prefix.length

    def keep(self, slots: list[int]) -> None:
        """Shrink to `slots`, in that order."""
        index = torch.tensor(slots, device=self.lengths.device)
        self.keys, self.values = self.keys[:, index], self.values[:, index]
        self.lengths, self._rows = self.lengths[index], self._rows[: len(slots)]

    def open_position(self, dtype: torch.dtype) -> torch.Tensor:
        """Make room for one token per slot; returns the additive mask [B, 1, 1, W] under which it attends."""
        self._window = int(self.lengths.max()) + 1
        self._reserve(self._window)
        hidden = torch.arange(self._window, device=self.lengths.device) > self.lengths[:, None]
        mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, float("-inf"))
        return mask[:, None, None, :]

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write one token per slot, [B, heads, 1, head_dim], at the open position; returns all up to the window."""
        self.keys[layer][self._rows, :, self.lengths] = keys.squeeze(2)
        self.values[layer][self._rows, :, self.lengths] = values.squeeze(2)
        return self.keys[layer, :, :, : self._window], self.values[layer, :, :, : self._window]

    def close_position(self, slots: list[int]) -> None:
        """Count the token just written in `slots`; the other slots are empty and stay so."""
        self.lengths[torch.tensor(slots, device=self.lengths.device)] += 1

    def _reserve(self, length: int) -> None:
        missing = length - self.keys.shape[3]
        if missing > 0:
            # Zeros, not garbage: masked positions still meet the values as 0 * value.
            extra = -(-missing // _GROWTH) * _GROWTH
            self.keys = torch.nn.functional.pad(self.keys, (0, 0, 0, extra))
            self.values = torch.nn.functional.pad(self.values, (0, 0, 0, extra))


class _SlotLayer(_LayerBase):
    """The view of one layer that transformers writes to."""

    def __init__(self, cache: SlotCache, index: int) -> None:
        super().__init__()
        self._cache, self._index = cache, index
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self._cache.write(self._index, key_states, value_states)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None: ...

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_seq_length(self) -> int:
        return int(self._cache.lengths.max())

    def get_max_length(self) -> int:
        return -1

    def get_max_cache_shape(self) -> int:
        return -1
