"""From the Step message to tensors: rows, positions, where keys go and where they lie, whom to ask."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from distkv.engine.attention.exchange import Exchange
from distkv.engine.attention.merging import Merging, Pick, Rows, merging_of, rows_of
from distkv.engine.attention.remote import CreditorLink, Peers
from distkv.engine.device.device import Device, HostDevice
from distkv.engine.device.pool import KvPool
from distkv.engine.model.config import ModelConfig
from distkv.errors import LinkError, MalformedMessage
from distkv.kernels import AttentionMetadata, BlockTable
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
    local: BlockTable
    spans: list[RemoteSpan]
    rows: slice = field(default_factory=lambda: slice(0, 0))
    remote: list[tuple[Exchange, int]] = field(default_factory=list)
    local_place: int = 0
    lost: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Batch:
    """A step, or one half of it, ready to be computed. Tensors are on the device.

    tokens, positions: int64 [N]. slots, offsets: int64 [N], where the K and V of each row are stored. wanted: int64
    [M], rows whose last hidden states are wanted: one for each sequence that wants a token, in order, then all that
    predict prompt tokens whose logprobs are wanted. metadata: which rows read which local blocks. seqs: those that have
    rows. unreachable: those that lost a creditor before the first layer; they have none. merging: of what peers answer,
    if they are asked. waited_s: how long its layers stood still for partials.
    """

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    offsets: Tensor
    wanted: Tensor
    metadata: AttentionMetadata
    seqs: list[BatchSeq]
    exchanges: list[Exchange]
    unreachable: list[BatchSeq]
    merging: Merging | None = None
    waited_s: float = 0.0


def prepare(
    step_id: int,
    steps: Sequence[tuple[SeqStep, Sequence[int]]],
    pool: KvPool,
    config: ModelConfig,
    peers: Peers,
    device: Device | None = None,
    half: int = 0,
) -> Batch:
    """Lay out a batch of (sequence, its token ids, all of them) and tell every creditor what will be asked of it.

    half: which one it is of a step in two, whose questions overlap. A creditor that cannot be reached loses the
    sequences with spans there, no others. Raises MalformedMessage when a table does not cover what is to be computed,
    or leaves the pool.
    """
    device = device or HostDevice()
    everyone = [_seq(step, tokens, pool, config) for step, tokens in steps]
    links = _reach(everyone, peers, half)
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
    wanted = [seq.rows.stop - 1 for seq in seqs if seq.step.sample is not None]
    for seq in seqs:
        wanted.extend(_prompt_rows(seq))
    exchanges = _exchanges(step_id, links, seqs, pool.block_tokens)
    merging = _merging(seqs, exchanges) if exchanges else None
    hosts = (
        torch.tensor([token for seq in seqs for token in seq.tokens], dtype=torch.int64),
        torch.from_numpy(positions),
        torch.from_numpy(positions // pool.block_tokens + shifts),
        torch.from_numpy(positions % pool.block_tokens),
        torch.tensor(wanted, dtype=torch.int64),
    )
    for exchange in exchanges:
        exchange.open(hosts[1][exchange.rows])
    holders: list[Exchange | Merging | Pick] = [*exchanges]
    if merging:
        holders += [merging, *merging.ranks]
    tokens, there, slots, offsets, rows = _put(device, hosts, holders)
    return Batch(
        tokens=tokens,
        positions=there,
        slots=slots,
        offsets=offsets,
        wanted=rows,
        metadata=AttentionMetadata(
            tuple(range(seq.rows.start, seq.rows.stop) for seq in seqs), tuple(seq.local for seq in seqs), there
        ),
        seqs=seqs,
        exchanges=exchanges,
        unreachable=[seq for seq in everyone if seq.lost],
        merging=merging,
    )


def _put(device: Device, hosts: tuple[Tensor, ...], holders: Sequence[Exchange | Merging | Pick]) -> tuple[Tensor, ...]:
    """The tensors, and the index tensors that these hold in place of slices, on the device by one copy."""
    indexed = [(holder, holder.rows) for holder in holders if isinstance(holder.rows, Tensor)]
    there = device.to_device(*hosts, *(rows for _, rows in indexed))
    for (holder, _), rows in zip(indexed, there[len(hosts) :], strict=True):
        holder.rows = rows
    return there[: len(hosts)]


def _seq(step: SeqStep, tokens: Sequence[int], pool: KvPool, config: ModelConfig) -> BatchSeq:
    runs = [(run.first_block, run.first_slot, run.num_blocks) for run in step.local]
    if any(first_slot + num_blocks > pool.num_slots for _, first_slot, num_blocks in runs):
        raise MalformedMessage(f"{step.request_id}: {step.local} leaves a pool of {pool.num_slots} slots")
    local = BlockTable.from_runs(runs, step.end, pool.block_tokens)
    spans = [span for span in step.remote if _is_visible(span, step, config, pool.block_tokens)]
    first_local = local.positions[0] if len(local) else 0
    place = sum(span.first_block * pool.block_tokens < first_local for span in spans)
    return BatchSeq(step, tokens, local, spans, local_place=place)


def _is_visible(span: RemoteSpan, step: SeqStep, config: ModelConfig, block_tokens: int) -> bool:
    """Whether any query of [start, end) attends to a key of the span, in any layer."""
    first, end = span.first_block * block_tokens, (span.first_block + span.num_blocks) * block_tokens
    reach = config.widest_window
    return first < step.end and (reach is None or end > step.start - reach + 1)


def _reach(seqs: list[BatchSeq], peers: Peers, half: int) -> dict[str, CreditorLink]:
    links: dict[str, CreditorLink] = {}
    dead: set[str] = set()
    for creditor_id in dict.fromkeys(span.instance_id for seq in seqs for span in seq.spans):
        try:
            links[creditor_id] = peers.creditor(creditor_id, half)
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


def _prompt_rows(seq: BatchSeq) -> range:
    """Rows of the batch that predict the prompt tokens whose logprobs are wanted."""
    step, wanted = seq.step, seq.step.prompt_logprobs
    if wanted is None:
        return range(0)
    end = wanted.first + len(wanted.token_ids)
    if not step.start < wanted.first <= end <= step.end + 1:
        raise MalformedMessage(
            f"{step.request_id}: [{step.start}, {step.end}) predicts no positions [{wanted.first}, {end})"
        )
    first = seq.rows.start + wanted.first - 1 - step.start
    return range(first, first + len(wanted.token_ids))


def _exchanges(step_id: int, links: dict[str, CreditorLink], seqs: list[BatchSeq], block_tokens: int) -> list[Exchange]:
    exchanges = []
    for creditor_id, link in links.items():
        asking = [seq for seq in seqs if any(span.instance_id == creditor_id for span in seq.spans)]
        if asking:
            exchanges.append(_exchange(step_id, creditor_id, link, asking, block_tokens))
    for seq in seqs:
        seq.remote.sort(key=lambda source: source[0].plan.entries[source[1]].first_position)
    return exchanges


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


def _rows_of(seqs: list[BatchSeq]) -> Rows:
    return rows_of(np.concatenate([np.arange(seq.rows.start, seq.rows.stop) for seq in seqs]))


def _merging(seqs: list[BatchSeq], exchanges: list[Exchange]) -> Merging:
    return merging_of([(seq.rows, seq.remote, seq.local_place) for seq in seqs if seq.remote], exchanges)
