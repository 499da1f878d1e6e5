"""DistAttention of one layer over a whole batch (000 §4.2)."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from distkv.engine.config import ModelConfig
from distkv.engine.pool import KvPool
from distkv.engine.prepare import Batch, BatchSeq
from distkv.kernels import Partial, merge
from distkv.kernels.cpu_torch import micro_attention


def dist_attention(
    layer: int, q: Tensor, k: Tensor, v: Tensor, batch: Batch, pool: KvPool, config: ModelConfig
) -> Tensor:
    """Attend with every row of the batch to all keys of its sequence, wherever they lie.

    q: [N, Hq, D]; k, v: [N, Hkv, D]. Returns float32 [N, Hq, D]. Rows of sequences that lost a creditor hold zeros.
    """
    k_pool, v_pool = pool.layer(layer)
    k_pool[batch.slots, :, batch.offsets] = k
    v_pool[batch.slots, :, batch.offsets] = v
    asked = [exchange for exchange in batch.exchanges if exchange.send(layer, q)]
    local = [_local_partial(layer, q, seq, k_pool, v_pool, config) for seq in batch.seqs]
    started_s = time.perf_counter()
    for exchange in asked:
        exchange.collect(layer)
    batch.waited_s += time.perf_counter() - started_s
    merged = [_merged(seq, partial, q) for seq, partial in zip(batch.seqs, local, strict=True)]
    return merged[0] if len(merged) == 1 else torch.cat(merged)


def _local_partial(
    layer: int, q: Tensor, seq: BatchSeq, k_pool: Tensor, v_pool: Tensor, config: ModelConfig
) -> Partial | None:
    if seq.lost:
        return None
    return micro_attention(q[seq.rows], k_pool, v_pool, seq.local, seq.positions, config.scale, config.windows[layer])


def _merged(seq: BatchSeq, local: Partial | None, q: Tensor) -> Tensor:
    if seq.lost or local is None:
        return torch.zeros_like(q[seq.rows], dtype=torch.float32)
    # In span order, the local part at the place of its first token: results do not depend on who answered first.
    partials = [exchange.partial(entry) for exchange, entry in seq.remote]
    partials.insert(seq.local_place, local)
    return merge(partials)[0]
