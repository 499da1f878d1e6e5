"""DistAttention of a microbatch where each layer is one native call, without Python between queries and merge."""

from __future__ import annotations

import torch
from torch import Tensor

from distkv.engine.attention.layer_times import LayerTimes
from distkv.engine.attention.merging import merge_runs_of
from distkv.engine.step.batch import Batch
from distkv.kernels import Backend, empty_partial
from distkv.kernels.exchange import Exchange, Exchanges


def exchange_of(
    batch: Batch, exchanges: Exchanges, num_layers: int, heads: int, dim: int, dtype: torch.dtype
) -> Exchange | None:
    """For a microbatch that is alone in its step, once its links have their plans; None where it is to be computed
    frame by frame. heads, dim, dtype: of queries."""
    if not batch.links or batch.fetched:
        return None
    asked = [link.asked(num_layers, heads, dim, dtype) for link in batch.links]
    present = [one for one in asked if one is not None]
    if len(present) < len(asked):
        return None
    parts = [(seq.rows, seq.remote, seq.local_place) for seq in batch.seqs if seq.remote]
    num_rows = len(batch.tokens)
    runs = merge_runs_of(parts, [link.plan for link in batch.links], num_rows)
    return exchanges.exchange(batch.metadata, num_rows, runs, present)


def attend_directly(layer: int, q: Tensor, batch: Batch, exchange: Exchange, backend: Backend) -> Tensor | None:
    """As `dist_attention`; None when it is to be done frame by frame, as all layers are after one in which something
    failed. Raises MemoryError."""
    entered = [link for link in batch.links if link.enter()]
    try:
        if len(entered) < len(batch.links):
            batch.exchange = None
            return None
        done = exchange(layer, q)
    finally:
        for link in entered:
            link.leave()
    partials = [link.answered(layer, one, q) for link, one in zip(batch.links, done.answers, strict=True)]
    batch.attend_s += done.attended_s - done.sent_s
    batch.waited_s += done.collected_s - done.attended_s
    if batch.times is not None:
        asked_s = min(one.asked_s for one in done.answers)
        batch.times.append(LayerTimes(layer, asked_s, done.sent_s, done.attended_s, done.collected_s, done.merged_s))
    if done.merged is not None:
        return done.merged
    batch.exchange = None
    found = [
        partial or empty_partial(link.partial_rows, *q.shape[1:])
        for link, partial in zip(batch.links, partials, strict=True)
    ]
    return batch.merge_plan.merge(done.local, [(out.float(), lse) for out, lse in found], backend)
