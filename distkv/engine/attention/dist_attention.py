"""DistAttention of one layer over a microbatch (000 §4.2). Queries travel to where keys lie, partials come back; keys
that are fetched instead are attended to here."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence

from torch import Tensor

from distkv.engine.attention.creditor_link import CreditorLink
from distkv.engine.attention.direct import attend_directly
from distkv.engine.attention.layer_times import LayerTimes
from distkv.engine.device.device import Device, PendingCopy
from distkv.engine.step.batch import Batch
from distkv.engine.step.graphs.pieces import Pieces
from distkv.kernels import Partial, empty_partial


def dist_attention(layer: int, pieces: Pieces, batch: Batch, device: Device) -> Generator[None, None, Tensor]:
    """Attention over all keys, wherever they lie, as `pieces` goes on with it; its one pause is the other microbatches'
    turn.

    Rows of sequences that lost a creditor hold numbers that mean nothing.
    """
    q = pieces.store(layer)
    if batch.exchange is not None:
        attended = attend_directly(layer, q, batch, batch.exchange, device.backend)
        if attended is not None:
            yield
            return attended
    begun_s = time.monotonic()
    queries = send_queries(layer, q, batch.links, device)
    sent_s = time.monotonic()
    local = pieces.attend(layer, q)
    attended_s = time.monotonic()
    batch.attend_s += attended_s - sent_s
    queries.complete()
    fetched = [keys.attend(layer, q) for keys in batch.fetched]
    yield
    partials = collect_partials(layer, q, batch, device)
    collected_s = time.monotonic()
    attended = pieces.merge(local, [*partials, *fetched])
    if batch.times is not None:
        merged_s = time.monotonic()
        batch.times.append(LayerTimes(layer, begun_s, sent_s, attended_s, collected_s, merged_s))
    return attended


class QueriesOnTheWay:
    """Queries that a device copies to the host, from where they go to creditors."""

    __slots__ = ("_copies", "_layer")

    def __init__(self, layer: int, copies: Sequence[tuple[CreditorLink, PendingCopy]]) -> None:
        self._layer, self._copies = layer, copies

    def complete(self) -> None:
        """Send those that were not sent yet."""
        for link, copy in self._copies:
            link.send(self._layer, *copy.wait())
        self._copies = ()


def send_queries(layer: int, q: Tensor, links: Sequence[CreditorLink], device: Device) -> QueriesOnTheWay:
    """Send each creditor its rows of q. On an asynchronous device they only begin to leave it: what is launched next
    computes while the host waits for them to arrive."""
    framed = [one for one in links if one.is_open and not one.posts]
    queries = QueriesOnTheWay(layer, [(one, device.to_host(q[one.rows], aside=True)) for one in framed])
    for one in links:
        if one.posts:
            one.post(layer, q)
    if not device.is_async:
        queries.complete()
    return queries


def collect_partials(layer: int, q: Tensor, batch: Batch, device: Device) -> list[Partial]:
    """The partials from each creditor, on the device. What will not come is empty: nothing of its sequences counts."""
    if not batch.links:
        return []
    since_s = time.monotonic()
    found = [None if link.posts else link.collect(layer, since_s) for link in batch.links]
    batch.waited_s += time.monotonic() - since_s
    return [
        link.take(layer) if link.posts else _placed(partial or empty_partial(link.partial_rows, *q.shape[1:]), device)
        for link, partial in zip(batch.links, found, strict=True)
    ]


def _placed(partial: Partial, device: Device) -> Partial:
    """float32, whatever it travelled in."""
    out, lse = device.to_device(*partial)
    return out.float(), lse
