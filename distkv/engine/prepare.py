"""From the Step message to tensors: rows, positions, where keys go and where they lie, whom to ask."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from distkv.engine.config import ModelConfig
from distkv.engine.exchange import Exchange
from distkv.engine.pool import KvPool
from distkv.engine.remote import CreditorLink, Peers
from distkv.errors import LinkError, MalformedMessage
from distkv.kernels import KeyBlocks, KeyTables
from distkv.wire.messages.data import AttendEntry, AttendPlan
from distkv.wire.messages.to_worker import RemoteSpan, SeqStep


@dataclass(slots=True)
class BatchSeq:
    """One sequence of a batch.

    rows: its rows of the batch. local: its own keys at positions < end. spans: the borrowed ones that its queries can
    see, ascending. remote: where the partial over each of them comes from. local_place: how many of them precede the
    local part in span order. lost: creditors that failed it; once there is one, nothing of the sequence counts.
    """

    step: SeqStep
    tokens: Sequence[int]
    local: KeyBlocks
    spans: list[RemoteSpan]
    rows: slice = field(default_factory=lambda: slice(0, 0))
    remote: list[tuple[Exchange, int]] = field(default_factory=list)
    local_place: int = 0
    lost: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Batch:
    """A step, ready to be computed.

    tokens, positions: int64 [N]. slots, offsets: int64 [N], where the K and V of each row are stored. tables: which
    rows read which local blocks. seqs: those that have rows. unreachable: those that lost a creditor before the first
    layer; they have none. waited_s: how long its layers stood still for partials.
    """

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    offsets: Tensor
    tables: KeyTables
    seqs: list[BatchSeq]
    exchanges: list[Exchange]
    unreachable: list[BatchSeq]
    waited_s: float = 0.0


def prepare(
    step_id: int, steps: Sequence[tuple[SeqStep, Sequence[int]]], pool: KvPool, config: ModelConfig, peers: Peers
) -> Batch:
    """Lay out a batch of (sequence, its token ids, all of them) and tell every creditor what will be asked of it.

    A creditor that cannot be reached loses the sequences with spans there, no others. Raises MalformedMessage when a
    table does not cover what is to be computed, or leaves the pool.
    """
    everyone = [_seq(step, tokens, pool, config) for step, tokens in steps]
    links = _reach(everyone, peers)
    seqs = [seq for seq in everyone if not seq.lost]
    start = 0
    for seq in seqs:
        seq.rows = slice(start, start + len(seq.tokens))
        start = seq.rows.stop
    # numpy makes small arrays in a fraction of the time that tensors take.
    firsts = [seq.step.start - seq.rows.start for seq in seqs]
    positions = np.arange(start) + np.repeat(np.array(firsts, np.int64), [len(seq.tokens) for seq in seqs])
    runs = [run for seq in seqs for run in _write_runs(seq.step, pool)]
    shifts = np.repeat(np.array([shift for shift, _ in runs], np.int64), [count for _, count in runs])
    rows = tuple(range(seq.rows.start, seq.rows.stop) for seq in seqs)
    tables = KeyTables(rows, tuple(seq.local for seq in seqs), torch.from_numpy(positions))
    batch = Batch(
        tokens=torch.tensor([token for seq in seqs for token in seq.tokens], dtype=torch.int64),
        positions=tables.positions,
        slots=torch.from_numpy(positions // pool.block_tokens + shifts),
        offsets=torch.from_numpy(positions % pool.block_tokens),
        tables=tables,
        seqs=seqs,
        exchanges=[],
        unreachable=[seq for seq in everyone if seq.lost],
    )
    for creditor_id, link in links.items():
        asking = [seq for seq in seqs if any(span.instance_id == creditor_id for span in seq.spans)]
        if asking:
            batch.exchanges.append(_exchange(step_id, creditor_id, link, asking, pool.block_tokens))
    for seq in seqs:
        seq.remote.sort(key=lambda source: source[0].plan.entries[source[1]].first_position)
    for exchange in batch.exchanges:
        exchange.open(batch.positions)
    return batch


def _seq(step: SeqStep, tokens: Sequence[int], pool: KvPool, config: ModelConfig) -> BatchSeq:
    runs = [(run.first_block, run.first_slot, run.num_blocks) for run in step.local]
    if any(first_slot + num_blocks > pool.num_slots for _, first_slot, num_blocks in runs):
        raise MalformedMessage(f"{step.request_id}: {step.local} leaves a pool of {pool.num_slots} slots")
    local = KeyBlocks.of_runs(runs, step.end, pool.block_tokens)
    spans = [span for span in step.remote if _is_visible(span, step, config, pool.block_tokens)]
    first_local = local.positions[0] if len(local) else 0
    place = sum(span.first_block * pool.block_tokens < first_local for span in spans)
    return BatchSeq(step, tokens, local, spans, local_place=place)


def _is_visible(span: RemoteSpan, step: SeqStep, config: ModelConfig, block_tokens: int) -> bool:
    """Whether any query of [start, end) attends to a key of the span, in any layer."""
    first, end = span.first_block * block_tokens, (span.first_block + span.num_blocks) * block_tokens
    reach = config.widest_window
    return first < step.end and (reach is None or end > step.start - reach + 1)


def _reach(seqs: list[BatchSeq], peers: Peers) -> dict[str, CreditorLink]:
    links: dict[str, CreditorLink] = {}
    dead: set[str] = set()
    for creditor_id in dict.fromkeys(span.instance_id for seq in seqs for span in seq.spans):
        try:
            links[creditor_id] = peers.creditor(creditor_id)
        except LinkError:
            dead.add(creditor_id)
    for seq in seqs:
        seq.lost.update(span.instance_id for span in seq.spans if span.instance_id in dead)
    return links


def _write_runs(step: SeqStep, pool: KvPool) -> Iterator[tuple[int, int]]:
    """Where the positions [start, end) are stored, in order: (slot minus block, number of positions)."""
    tokens = pool.block_tokens
    covered = step.start
    for run in step.local:
        first = max(step.start, run.first_block * tokens)
        last = min(step.end, (run.first_block + run.num_blocks) * tokens)
        if first >= last:
            continue
        if first != covered:
            break
        yield run.first_slot - run.first_block, last - first
        covered = last
    if covered != step.end:
        raise MalformedMessage(
            f"{step.request_id}: {step.local} has no rBlock for position {covered} of [{step.start}, {step.end})"
        )


def _exchange(step_id: int, creditor_id: str, link: CreditorLink, seqs: list[BatchSeq], block_tokens: int) -> Exchange:
    """One plan for all sequences with spans on a creditor: each sends its rows once, and has an entry per span."""
    entries: list[AttendEntry] = []
    owners: list[BatchSeq] = []
    row = 0
    for seq in seqs:
        num_rows = len(seq.tokens)
        for span in seq.spans:
            if span.instance_id == creditor_id:
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
    exchange = Exchange(creditor_id, link, plan, _rows_of(seqs), [seq.lost for seq in owners])
    for index, seq in enumerate(owners):
        seq.remote.append((exchange, index))
    return exchange


def _rows_of(seqs: list[BatchSeq]) -> slice | Tensor:
    """Their rows of the batch; a slice, which needs no copy, where they follow each other."""
    first, last = seqs[0].rows.start, seqs[-1].rows.stop
    if last - first == sum(len(seq.tokens) for seq in seqs):
        return slice(first, last)
    return torch.cat([torch.arange(seq.rows.start, seq.rows.stop) for seq in seqs])
