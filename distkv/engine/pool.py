"""The KV memory of one worker: rBlocks `[slot][layer][K|V][Hkv][P·D]`, one contiguous byte range each.

The order of the P·D numbers is one of `kernels.layout`.
"""

from __future__ import annotations

import mmap

import msgspec
import torch
import xxhash

from distkv.engine.config import ModelConfig
from distkv.kernels import LayerKv, PanelKv
from distkv.wire.messages.common import PROTOCOL_VERSION

LAYOUT = "slot,layer,kv,head"


def slot_bytes(config: ModelConfig, block_tokens: int, dtype: torch.dtype) -> int:
    """Bytes of one rBlock, all layers."""
    return config.num_layers * 2 * config.num_kv_heads * block_tokens * config.head_dim * dtype.itemsize


class KvPool:
    """num_slots rBlocks of block_tokens (P) tokens over `buffer`, or over memory of its own when that is None.

    buffer: writable, of at least num_slots · slot_bytes bytes; whoever made it frees it, after the pool is gone.
    Fresh slots hold whatever the memory held: nothing reads what was not written.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_slots: int,
        block_tokens: int,
        dtype: torch.dtype,
        buffer: mmap.mmap | bytearray | memoryview | None = None,
        layout: type[LayerKv] = PanelKv,
    ) -> None:
        self.num_slots, self.block_tokens, self.dtype = num_slots, block_tokens, dtype
        self.slot_bytes = slot_bytes(config, block_tokens, dtype)
        size_bytes = num_slots * self.slot_bytes
        memory = memoryview(mmap.mmap(-1, size_bytes) if buffer is None else buffer).cast("B")
        if memory.nbytes < size_bytes or memory.readonly:
            raise ValueError(f"a pool of {num_slots} slots needs {size_bytes} writable bytes, got {memory.nbytes}")
        self._bytes = memory[:size_bytes]
        flat = torch.frombuffer(self._bytes, dtype=torch.uint8).view(dtype)
        blocks = flat.view(num_slots, config.num_layers, 2, config.num_kv_heads, -1)
        self._layers = [
            layout.of(blocks[:, layer, 0], blocks[:, layer, 1], config.head_dim, block_tokens)
            for layer in range(config.num_layers)
        ]

    def layer(self, layer: int) -> LayerKv:
        """K and V of one layer, as views."""
        return self._layers[layer]

    def slot_bytes_view(self, slot: int) -> memoryview:
        """The bytes of one rBlock, writable."""
        if not 0 <= slot < self.num_slots:
            raise IndexError(f"slot {slot} of a pool of {self.num_slots}")
        return self._bytes[slot * self.slot_bytes : (slot + 1) * self.slot_bytes]

    def checksum(self, slot: int) -> int:
        """xxh3_64 of the rBlock's bytes."""
        return xxhash.xxh3_64_intdigest(self.slot_bytes_view(slot))


def compat_hash(
    config: ModelConfig, fingerprint: str, dtype: torch.dtype, block_tokens: int, layout: type[LayerKv]
) -> str:
    """What two workers must have in common to read each other's rBlocks: model, dtype, layout, protocol version.

    fingerprint: of the weights, see `weights.fingerprint`. The result is 32 hex digits.
    """
    identity = (config.identity(), fingerprint, str(dtype), LAYOUT, layout.name, block_tokens, PROTOCOL_VERSION)
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode(identity, order="sorted"))
