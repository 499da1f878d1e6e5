"""Which creditors a microbatch needs, and the plan of its queries for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from distkv.engine.attention.creditor_link import CreditorLink, Peers
from distkv.engine.attention.merging import Rows, rows_of
from distkv.engine.step.batch import BatchSeq
from distkv.errors import LinkError
from distkv.wire.messages.data import AttendEntry, AttendPlan


@dataclass(frozen=True, slots=True)
class Queries:
    """For one creditor. rows: of the microbatch, those that travel. lost: of the sequence of each entry of the plan."""

    link: CreditorLink
    plan: AttendPlan
    rows: Rows
    lost: list[set[str]]


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


def queries_of(
    step_id: int, links: dict[str, CreditorLink], seqs: Sequence[BatchSeq], block_tokens: int
) -> list[Queries]:
    """Of sequences whose rows are numbered; each learns which plan and entry its remote partials come from."""
    queries: list[Queries] = []
    for creditor_id, link in links.items():
        attending = [seq for seq in seqs if any(span.instance_id == creditor_id for span in seq.spans)]
        if attending:
            queries.append(_queries(step_id, creditor_id, link, attending, block_tokens, len(queries)))
    for seq in seqs:
        seq.remote.sort(key=lambda source: queries[source[0]].plan.entries[source[1]].first_position)
    return queries


def _queries(
    step_id: int, creditor_id: str, link: CreditorLink, seqs: Sequence[BatchSeq], block_tokens: int, place: int
) -> Queries:
    """One plan for all sequences with spans on a creditor: each sends its rows once, and has an entry per span."""
    entries: list[AttendEntry] = []
    owners: list[BatchSeq] = []
    row = 0
    for seq in seqs:
        num_rows = len(seq.tokens)
        for span in seq.spans:
            if span.instance_id == creditor_id:
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
    rows = rows_of(np.concatenate([np.arange(seq.rows.start, seq.rows.stop) for seq in seqs]))
    return Queries(link, plan, rows, [seq.lost for seq in owners])
