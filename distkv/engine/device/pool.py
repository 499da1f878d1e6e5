"""The KV memory of one worker: rBlocks `[slot][layer][K|V][Hkv][P·D]`, one contiguous byte range each.

The order of the P·D numbers is one of `kernels.layout`.
"""

from __future__ import annotations

import mmap

import torch
from torch import Tensor

from distkv.engine.model.config import ModelConfig
from distkv.kernels import LayerKv, PanelKv


def slot_bytes(config: ModelConfig, block_tokens: int, dtype: torch.dtype) -> int:
    """Bytes of one rBlock, all layers."""
    heads = config.heads
    return config.num_layers * 2 * heads.keys * block_tokens * heads.dim * dtype.itemsize


class KvPool:
    """num_slots rBlocks of block_tokens (P) tokens over `memory`, or over memory of its own when that is None.

    memory: writable, of at least num_slots · slot_bytes bytes, on the host or as a tensor of uint8 on any device;
    whoever made it frees it, after the pool is gone. Fresh slots hold whatever the memory held: nothing reads what was
    not written.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_slots: int,
        block_tokens: int,
        dtype: torch.dtype,
        memory: Tensor | mmap.mmap | bytearray | memoryview | None = None,
        layout: type[LayerKv] = PanelKv,
    ) -> None:
        self.num_slots, self.block_tokens, self.dtype = num_slots, block_tokens, dtype
        self.slot_bytes = slot_bytes(config, block_tokens, dtype)
        size_bytes = num_slots * self.slot_bytes
        flat = _flat(mmap.mmap(-1, size_bytes) if memory is None else memory)
        if flat is None or flat.nbytes < size_bytes:
            raise ValueError(f"a pool of {num_slots} slots needs {size_bytes} writable bytes")
        self._layout, self._config = layout, config
        self._slots = flat[:size_bytes].view(num_slots, self.slot_bytes)
        blocks = self._slots.view(dtype).view(num_slots, config.num_layers, 2, config.heads.keys, -1)
        self._layers = [
            layout.of(blocks[:, layer, 0], blocks[:, layer, 1], config.head_dim, block_tokens)
            for layer in range(config.num_layers)
        ]

    def layer(self, layer: int) -> LayerKv:
        """K and V of one layer, as views."""
        return self._layers[layer]

    def like_over(self, memory: Tensor) -> KvPool:
        """A pool of rBlocks like these over other memory, as many as fit."""
        num_slots = memory.nbytes // self.slot_bytes
        return KvPool(self._config, num_slots, self.block_tokens, self.dtype, memory, self._layout)

    def layer_over(self, memory: Tensor) -> LayerKv:
        """K and V of a layer that was read from a pool of this shape, block after block: uint8 on any device."""
        heads = self._config.heads
        blocks = memory.view(self.dtype).view(-1, 2, heads.keys, self.block_tokens * heads.dim)
        return self._layout.of(blocks[:, 0], blocks[:, 1], heads.dim, self.block_tokens)

    def slot(self, slot: int) -> Tensor:
        """The bytes of one rBlock, uint8, writable."""
        if not 0 <= slot < self.num_slots:
            raise IndexError(f"slot {slot} of a pool of {self.num_slots}")
        return self._slots[slot]


def _flat(memory: Tensor | mmap.mmap | bytearray | memoryview) -> Tensor | None:
    """Its bytes, uint8; None if they cannot be written."""
    if isinstance(memory, Tensor):
        return memory
    view = memoryview(memory).cast("B")
    return None if view.readonly else torch.frombuffer(view, dtype=torch.uint8)
