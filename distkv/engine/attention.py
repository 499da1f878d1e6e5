"""DistAttention of one layer over a whole batch (000 §4.2)."""

from __future__ import annotations

import time

from torch import Tensor

from distkv.engine.config import ModelConfig
from distkv.engine.pool import KvPool
from distkv.engine.prepare import Batch, BatchSeq
from distkv.kernels import Backend, Heads


def dist_attention(
    layer: int, heads: Heads, batch: Batch, pool: KvPool, backend: Backend, config: ModelConfig
) -> Tensor:
    """Attend with every row of the batch to all keys of its sequence, wherever they lie.

    Stores the keys and values of the batch. Returns float32 [N, Hq, D]; rows of sequences that lost a creditor hold
    zeros.
    """
    kv = pool.layer(layer)
    q = backend.store(heads, kv, batch.slots, batch.offsets)
    asked = [exchange for exchange in batch.exchanges if exchange.send(layer, q)]
    out, lse = backend.attend(q, kv, batch.tables, config.scale, config.windows[layer])
    started_s = time.perf_counter()
    for exchange in asked:
        exchange.collect(layer)
    batch.waited_s += time.perf_counter() - started_s
    for seq in batch.seqs:
        if seq.lost:
            out[seq.rows] = 0.0
        elif seq.remote:
            out[seq.rows] = _merged(seq, out[seq.rows], lse[seq.rows], backend)
    return out


def _merged(seq: BatchSeq, out: Tensor, lse: Tensor, backend: Backend) -> Tensor:
    # In span order, the local part at the place of its first token: results do not depend on who answered first.
    partials = [exchange.partial(entry) for exchange, entry in seq.remote]
    partials.insert(seq.local_place, (out, lse))
    return backend.merge(partials)[0]
