"""DistAttention of a microbatch by native calls, without Python between queries and merge: one for each layer, or one
for all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from distkv.engine.attention.creditor_link import CreditorLink
from distkv.engine.attention.layer_times import LayerTimes
from distkv.engine.attention.merging import merge_runs_of
from distkv.engine.step.batch import Batch
from distkv.engine.step.graphs.pieces import EagerPieces
from distkv.kernels import Backend, empty_partial
from distkv.kernels.exchange import Exchange, Exchanged, Exchanges
from distkv.kernels.layer.layers import Layers


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


@contextmanager
def _open(links: Sequence[CreditorLink]) -> Iterator[bool]:
    """Whether the sockets of these are open, which they stay meanwhile."""
    entered = [link for link in links if link.enter()]
    try:
        yield len(entered) == len(links)
    finally:
        for link in entered:
            link.leave()


def attend_directly(layer: int, q: Tensor, batch: Batch, exchange: Exchange, backend: Backend) -> Tensor | None:
    """As `dist_attention`; None when it is to be done frame by frame, as all layers are after one in which something
    failed. Raises MemoryError."""
    with _open(batch.links) as is_open:
        if not is_open:
            batch.exchange = None
            return None
        done = exchange(layer, q)
    return _attended(layer, done, batch, backend)


def pass_directly(
    pieces: EagerPieces, layers: Layers, batch: Batch, exchange: Exchange, backend: Backend
) -> Tensor | tuple[int, Tensor] | None:
    """All layers of a microbatch, as `layers` and `exchange` do them: the wanted rows of the last hidden states; or the
    layer in which something failed, and its attention, from which `pieces` go on. None when a socket is not open any
    more: then nothing was done. Raises MemoryError."""
    with _open(batch.links) as is_open:
        if not is_open:
            batch.exchange = None
            return None
        passed = pieces.all_exchanging(layers, exchange)
    attended = [_attended(layer, one, batch, backend) for layer, one in enumerate(passed.layers)]
    return (len(attended) - 1, attended[-1]) if passed.hidden is None else passed.hidden


def _attended(layer: int, done: Exchanged, batch: Batch, backend: Backend) -> Tensor:
    """What a layer came to: its attention to all keys; what did not come is waited for, or left out."""
    partials = [link.answered(layer, one) for link, one in zip(batch.links, done.answers, strict=True)]
    batch.attend_s += done.attended_s - done.sent_s
    batch.waited_s += done.collected_s - done.attended_s
    if batch.times is not None:
        asked_s = min(one.asked_s for one in done.answers)
        batch.times.append(LayerTimes(layer, asked_s, done.sent_s, done.attended_s, done.collected_s, done.merged_s))
    if done.merged is not None:
        return done.merged
    batch.exchange = None
    heads, dim = done.local[0].shape[1:]
    found = [
        partial or empty_partial(link.partial_rows, heads, dim)
        for link, partial in zip(batch.links, partials, strict=True)
    ]
    return batch.merge_plan.merge(done.local, [(out.float(), lse) for out, lse in found], backend)
