"""Which creditors a microbatch needs, what is asked of each of them, and what of its keys is fetched instead."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from distkv.engine.attention.creditor_link import CreditorLink, Peers
from distkv.engine.attention.fetch.fetching import Fetching, Found, Wanted
from distkv.engine.attention.merging import Rows, rows_of
from distkv.engine.step.batch import BatchSeq
from distkv.errors import LinkError
from distkv.wire.messages.data import AttendEntry, AttendPlan, SpanPart
from distkv.wire.messages.to_worker import RemoteSpan

Source = TypeVar("Source")


@dataclass(frozen=True, slots=True)
class Queries(Generic[Source]):
    """Over keys at one creditor. source: the link to ask by, or what was found of keys to fetch. rows: of the
    microbatch, those of the plan. lost: of the sequence of each entry of the plan. own_blocks: rBlocks that a row of
    the longest chunk would attend to here, if it attended to as much as all rows of the plan together."""

    source: Source
    plan: AttendPlan
    rows: Rows
    lost: list[set[str]]
    own_blocks: int


def connect(seqs: Sequence[BatchSeq], peers: Peers, microbatch: int) -> dict[str, CreditorLink]:
    """Links to the creditors of all spans, by id; one that cannot be reached is lost to its sequences."""
    links: dict[str, CreditorLink] = {}
    dead: set[str] = set()
    for creditor_id in dict.fromkeys(span.instance_id for seq in seqs for span in seq.spans):
        try:
            links[creditor_id] = peers.creditor(creditor_id, microbatch)
        except LinkError:
            dead.add(creditor_id)
    for seq in seqs:
        seq.lost.update(span.instance_id for span in seq.spans if span.instance_id in dead)
    return links


@dataclass(slots=True)
class RemoteQueries:
    """Of a microbatch, in the order of their partials: first those that are shipped, then those over fetched keys."""

    shipped: list[Queries[CreditorLink]]
    fetched: list[Queries[Found]]

    @property
    def plans(self) -> list[AttendPlan]:
        """All."""
        return [query.plan for query in self.shipped] + [query.plan for query in self.fetched]

    @property
    def rows(self) -> list[Rows]:
        """Of all."""
        return [query.rows for query in self.shipped] + [query.rows for query in self.fetched]


def queries_of(
    step_id: int,
    links: dict[str, CreditorLink],
    seqs: Sequence[BatchSeq],
    block_tokens: int,
    found: dict[str, Found],
) -> RemoteQueries:
    """Of sequences whose rows are numbered; each learns which plan and entry its remote partials come from."""
    queries = RemoteQueries([], [])
    at = _at_creditors(seqs)
    for creditor_id, link in links.items():
        fetched = found[creditor_id].indices if creditor_id in found else ()
        shipping = [borrowed for borrowed in at.get(creditor_id, ()) if borrowed.number not in fetched]
        if shipping:
            place = len(queries.shipped)
            queries.shipped.append(_queries(step_id, link, shipping, block_tokens, place))
    for creditor_id, one in found.items():
        fetching = [borrowed for borrowed in at[creditor_id] if borrowed.number in one.indices]
        place = len(queries.shipped) + len(queries.fetched)
        queries.fetched.append(_queries(step_id, one, fetching, block_tokens, place))
    plans = queries.plans
    for seq in seqs:
        seq.remote.sort(key=lambda source: plans[source[0]].entries[source[1]].first_position)
    return queries


def find_keys(
    seqs: Sequence[BatchSeq], creditors: Iterable[str], peers: Peers, microbatch: int, fetching: Fetching
) -> dict[str, Found]:
    """What chunks fetch, by the creditor that has it. A sequence with one row ships it always."""
    found: dict[str, Found] = {}
    at = _at_creditors(seqs)
    for creditor_id in creditors:
        chunks = [
            Wanted(index, len(seq.tokens), tuple(map(_part, spans)), len(seq.local))
            for index, seq, spans in at.get(creditor_id, ())
            if len(seq.tokens) > 1
        ]
        one = fetching.find(peers.fetch_link(creditor_id, microbatch), chunks) if chunks else None
        if one is not None:
            found[creditor_id] = one
    return found


class _Borrowed(NamedTuple):
    """The spans of a sequence at one creditor, ascending. number: of the sequence in its microbatch."""

    number: int
    seq: BatchSeq
    spans: list[RemoteSpan]


def _at_creditors(seqs: Sequence[BatchSeq]) -> dict[str, list[_Borrowed]]:
    """By creditor, in the order of the sequences. Looks once at each span."""
    at: dict[str, list[_Borrowed]] = {}
    for index, seq in enumerate(seqs):
        for span in seq.spans:
            there = at.setdefault(span.instance_id, [])
            if not there or there[-1].seq is not seq:
                there.append(_Borrowed(index, seq, []))
            there[-1].spans.append(span)
    return at


def _part(span: RemoteSpan) -> SpanPart:
    return SpanPart(span=span.span, index=span.index, num_blocks=span.num_blocks)


def _queries(
    step_id: int, source: Source, borrowed: Sequence[_Borrowed], block_tokens: int, place: int
) -> Queries[Source]:
    """One plan for these sequences with spans on a creditor: each has its rows once, and an entry per span."""
    entries: list[AttendEntry] = []
    seqs = [one.seq for one in borrowed]
    owners: list[BatchSeq] = []
    row = 0
    for _, seq, spans in borrowed:
        num_rows = len(seq.tokens)
        for span in spans:
            seq.remote.append((place, len(entries)))
            owners.append(seq)
            entries.append(
                AttendEntry(
                    request_id=seq.step.request_id,
                    span=span.span,
                    index=span.index,
                    num_blocks=span.num_blocks,
                    first_position=span.first_block * block_tokens,
                    row=row,
                    num_rows=num_rows,
                )
            )
        row += num_rows
    plan = AttendPlan(step_id=step_id, num_rows=row, entries=tuple(entries))
    rows: Rows = seqs[0].rows
    if len(seqs) > 1:
        rows = rows_of(np.concatenate([np.arange(seq.rows.start, seq.rows.stop) for seq in seqs]))
    own = sum(len(seq.tokens) * len(seq.local) for seq in seqs)
    longest = max(len(seq.tokens) for seq in seqs)
    return Queries(source, plan, rows, [seq.lost for seq in owners], round(own / longest))
