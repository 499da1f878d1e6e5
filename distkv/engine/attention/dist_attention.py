"""DistAttention of one layer over a whole batch (000 §4.2), in two halves: what is asked of peers comes in between."""

from __future__ import annotations

import time
from dataclasses import dataclass

from torch import Tensor

from distkv.engine.attention.exchange import Exchange
from distkv.engine.device.compute import Compute
from distkv.engine.device.device import PendingCopy
from distkv.engine.step.prepare import Batch
from distkv.kernels import LayerKv, Partial


@dataclass(frozen=True, slots=True)
class Asked:
    """Queries under way to peers, and the partials over local keys."""

    layer: int
    q: Tensor
    local: Partial
    exchanges: list[Exchange]


def ask(layer: int, q: Tensor, kv: LayerKv, batch: Batch, compute: Compute, scale: float, window: int | None) -> Asked:
    """Send the queries to whom they concern and attend to the local keys, which are stored. q: [N, Hq, D]."""
    device = compute.device
    questions = [(one, device.to_host(q[one.rows], aside=True)) for one in batch.exchanges if one.is_open]
    if device.is_async:
        # Launched first: the device computes while this thread waits for the queries to leave it.
        local = compute.backend.attend(q, kv, batch.metadata, scale, window)
        sent = _send(layer, questions)
    else:
        sent = _send(layer, questions)
        local = compute.backend.attend(q, kv, batch.metadata, scale, window)
    return Asked(layer, q, local, sent)


def merged(asked: Asked, batch: Batch, compute: Compute) -> Tensor:
    """Wait for the answers; attention over all keys, wherever they lie, float32 [N, Hq, D].

    Rows of sequences that lost a creditor hold numbers that mean nothing.
    """
    if batch.merging is None:
        return asked.local[0]
    started_s = time.perf_counter()
    answers = {id(one): one.collect(asked.layer) for one in asked.exchanges}
    batch.waited_s += time.perf_counter() - started_s
    partials: list[Partial] = []
    for exchange in batch.exchanges:
        answer = answers.get(id(exchange))
        if answer is None:
            partials.append(exchange.no_answer(asked.q))
        else:
            out, lse = compute.device.to_device(*answer)
            partials.append((out, lse))
    return batch.merging.merge(asked.local, partials, compute.backend)


def _send(layer: int, questions: list[tuple[Exchange, PendingCopy]]) -> list[Exchange]:
    return [exchange for exchange, queries in questions if exchange.send(layer, *queries.wait())]
