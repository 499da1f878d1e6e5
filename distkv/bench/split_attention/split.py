"""The attention of one request, and which of its keys and values each process has."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distkv.engine.device.pool import KvPool, slot_bytes
from distkv.engine.model.config import ModelConfig
from distkv.engine.model.rope_config import RopeConfig
from distkv.kernels import AttentionMetadata, BlockTable, PanelKv
from distkv.wire.links import PoolMemory

BLOCK_TOKENS = 16
DTYPE = torch.bfloat16
_MASK, _HALF = (np.uint64(int(four * 4, 16)) for four in ("807f", "3f00"))
_QUERY_SIZE = 3.0
"""So large that some keys weigh many times what others do, as they do in a model."""
_EXACT_BLOCKS = 32
_TURN_BYTES = 1 << 16


class Split(msgspec.Struct, frozen=True):
    """Attention of `rows` query rows over `context` keys in each of `layers`, split over `processes`.

    context: a multiple of processes · BLOCK_TOKENS. heads: of queries, and as many of keys; a multiple of processes.
    """

    context: int
    processes: int
    layers: int
    heads: int
    dim: int
    rows: int = 1

    @property
    def blocks(self) -> int:
        """rBlocks of the request."""
        return self.context // BLOCK_TOKENS

    @property
    def block_bytes(self) -> int:
        """Of K and V of one rBlock in one layer."""
        return 2 * self.heads * BLOCK_TOKENS * self.dim * DTYPE.itemsize

    @property
    def layer_bytes(self) -> int:
        """Of all keys and values of one layer."""
        return self.blocks * self.block_bytes

    def blocks_of(self, process: int) -> range:
        """Where the sequence is split: each process has as many rBlocks, in order."""
        share = self.blocks // self.processes
        return range(process * share, (process + 1) * share)

    def heads_of(self, process: int) -> range:
        """Where the heads are split."""
        share = self.heads // self.processes
        return range(process * share, (process + 1) * share)

    def rows_of(self, process: int) -> range:
        """Where the queries are split: as evenly as they can be, the first process before all."""
        share, more = divmod(self.rows, self.processes)
        first = process * share + min(process, more)
        return range(first, first + share + (process < more))

    def queries(self) -> Tensor:
        """bfloat16 [layers, rows, heads, dim], the same in every process."""
        generator = torch.Generator().manual_seed(self.context)
        drawn = torch.randn(self.layers, self.rows, self.heads, self.dim, generator=generator)
        return (_QUERY_SIZE * drawn).to(DTYPE)

    def positions(self, rows: int) -> Tensor:
        """Of so many queries: behind all keys. int64 [rows]."""
        return torch.full((rows,), self.context, dtype=torch.int64)

    def config(self, heads: int) -> ModelConfig:
        """Of what attends with so many of the heads."""
        return ModelConfig(
            model_type="llama",
            vocab_size=1,
            hidden_size=heads * self.dim,
            intermediate_size=1,
            num_layers=self.layers,
            num_heads=heads,
            num_kv_heads=heads,
            head_dim=self.dim,
            rms_norm_eps=1e-6,
            rope=RopeConfig(),
            windows=(None,) * self.layers,
            max_positions=self.context + 1,
        )

    def drawn(self, layer: int, block: int) -> NDArray[np.uint64]:
        """K and V of one rBlock as bits, [2, heads, P·D/4]: bfloat16 with sizes in [0.5, 1) and random signs."""
        raw = np.random.SFC64(np.random.SeedSequence((layer, block))).random_raw(self.block_bytes // 8)
        raw &= _MASK
        raw |= _HALF
        return raw.reshape(2, self.heads, -1)


def memories(split: Split, parts: Iterable[tuple[range, range]]) -> list[PoolMemory]:
    """Memory for shares of these rBlocks with these heads.

    Some memory of a machine is slower than other, and what is taken together is alike: all are taken by turns, so that
    no share has the better one.
    """
    found = [
        PoolMemory(slot_bytes(split.config(len(heads)), BLOCK_TOKENS, DTYPE), len(blocks)) for blocks, heads in parts
    ]
    for first in range(0, max(memory.size_bytes for memory in found), _TURN_BYTES):
        for memory in found:
            np.frombuffer(memory.view, dtype=np.uint8)[first : first + _TURN_BYTES : mmap.PAGESIZE] = 0
    return found


class Share:
    """Some rBlocks of the request with some of its heads, drawn into `memory`, or a pool of its own.

    metadata: of `rows` queries over all of them.
    """

    def __init__(self, split: Split, blocks: range, heads: range, rows: int, memory: PoolMemory | None = None) -> None:
        self.config = split.config(len(heads))
        self.memory = memory or memories(split, [(blocks, heads)])[0]
        self.pool = KvPool(self.config, len(blocks), BLOCK_TOKENS, DTYPE, self.memory.view, PanelKv)
        bits = np.frombuffer(self.memory.view, dtype=np.uint64).reshape(len(blocks), split.layers, 2, len(heads), -1)
        for slot, block in enumerate(blocks):
            for layer in range(split.layers):
                bits[slot, layer] = split.drawn(layer, block)[:, heads.start : heads.stop]
        self._split = split
        self._blocks = blocks
        self.metadata = self.metadata_of(range(len(blocks)), rows)

    def metadata_of(self, slots: Sequence[int], rows: int) -> AttentionMetadata:
        """Of `rows` queries over these slots of the pool."""
        return metadata_over(self._split, slots, [self._blocks[slot] for slot in slots], rows)


def metadata_over(split: Split, slots: Sequence[int], blocks: Sequence[int], rows: int) -> AttentionMetadata:
    """Of `rows` queries over these rBlocks of the request, which lie in these slots."""
    positions = [block * BLOCK_TOKENS for block in blocks]
    table = BlockTable(tuple(slots), positions, split.context, BLOCK_TOKENS)
    return AttentionMetadata((range(rows),), (table,), split.positions(rows))


def exact_attention(split: Split, layer: int) -> Tensor:
    """Attention of all queries over all keys of a layer, float64 [rows, heads, dim], from keys that are drawn again:
    softmax as it is written down, block after block."""
    q = split.queries()[layer].double().transpose(0, 1) * split.dim**-0.5
    highest = torch.full((*q.shape[:2], 1), -torch.inf, dtype=torch.float64)
    weight, found = torch.zeros_like(highest), torch.zeros_like(q)
    for first in range(0, split.blocks, _EXACT_BLOCKS):
        some = range(first, min(first + _EXACT_BLOCKS, split.blocks))
        bits = np.stack([split.drawn(layer, block) for block in some])
        drawn = torch.from_numpy(bits.view(np.int16)).view(DTYPE)
        kv = PanelKv.of(drawn[:, 0], drawn[:, 1], split.dim, BLOCK_TOKENS)
        every = slice(0, len(some))
        k, v = (half.double().transpose(0, 1).flatten(1, 2) for half in (kv.keys(every), kv.values(every)))
        scores = q @ k.transpose(1, 2)
        higher = torch.maximum(highest, scores.amax(2, keepdim=True))
        weights, kept = torch.exp(scores - higher), torch.exp(highest - higher)
        weight = weight * kept + weights.sum(2, keepdim=True)
        found = found * kept + weights @ v
        highest = higher
    return (found / weight).transpose(0, 1)
