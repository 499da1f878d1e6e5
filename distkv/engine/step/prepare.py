"""From planned sequences to tensors: rows, positions, where keys go and where they lie."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from distkv.engine.attention.creditor_link import Peers
from distkv.engine.attention.fetch.fetching import Fetching
from distkv.engine.attention.fetch.keys import FetchedKeys, FetchPlan
from distkv.engine.attention.merging import Rows, merge_plan_of
from distkv.engine.device.device import Device
from distkv.engine.device.pool import KvPool
from distkv.engine.model.config import ModelConfig
from distkv.engine.step.batch import Batch, BatchSeq, PlannedSeq
from distkv.engine.step.queries import connect, find_keys, queries_of
from distkv.engine.step.tables import BlockTables
from distkv.errors import MalformedMessage
from distkv.kernels import AttentionMetadata
from distkv.wire.messages.to_worker import RemoteSpan, SeqStep


def prepare(
    step_id: int,
    planned: Sequence[PlannedSeq],
    pool: KvPool,
    tables: BlockTables,
    config: ModelConfig,
    peers: Peers,
    device: Device,
    microbatch: int = 0,
    fetching: Fetching | None = None,
) -> Batch:
    """Lay out a microbatch, send every creditor the plan of its queries, and begin to read keys that are fetched.

    tables: of the requests over `pool`. microbatch: which one of the step it is, for each has links of its own.
    fetching: chunks may fetch. A creditor that cannot be reached loses the sequences with spans there, no others; they
    get no rows. Raises MalformedMessage when a table does not cover what is to be computed, or leaves the pool.
    """
    all_seqs = [_seq(one, tables, config, pool.block_tokens) for one in planned]
    links = connect(all_seqs, peers, microbatch)
    seqs = [seq for seq in all_seqs if not seq.lost]
    _number_rows(seqs)
    on_host = _row_tensors(seqs, pool)
    found = find_keys(seqs, links, peers, microbatch, fetching) if links and fetching is not None else {}
    queries = queries_of(step_id, links, seqs, pool.block_tokens, found)
    parts = [(seq.rows, seq.remote, seq.local_place) for seq in seqs if seq.remote]
    merge_plan = merge_plan_of(parts, queries.plans)
    shipped, fetched = queries.shipped, queries.fetched
    index = [*queries.rows, *merge_plan.all_rows()]
    (tokens, positions, slots, offsets, wanted), index = _on_device(device, on_host, index)
    for query, rows in zip(shipped, index, strict=False):
        query.source.begin(query.plan, on_host[1][query.rows], rows, query.lost, query.own_blocks)
    keys: list[FetchedKeys] = []
    for one, rows in zip(fetched, index[len(shipped) :], strict=False):
        assert fetching is not None
        source, host_positions = one.source, on_host[1][one.rows]
        plan = FetchPlan(one.plan, source.slots, rows, host_positions, positions[rows], one.lost, source.spent_s)
        keys.append(fetching.keys(source, plan))
    metadata = AttentionMetadata(
        tuple(range(seq.rows.start, seq.rows.stop) for seq in seqs),
        tuple(seq.local for seq in seqs),
        positions,
        on_host[1],
    )
    return Batch(
        tokens=tokens,
        positions=positions,
        slots=slots,
        offsets=offsets,
        wanted=wanted,
        metadata=metadata,
        seqs=seqs,
        links=[query.source for query in shipped],
        fetched=keys,
        merge_plan=merge_plan.with_rows(*index[len(shipped) + len(fetched) :]),
    )


def _seq(planned: PlannedSeq, tables: BlockTables, config: ModelConfig, block_tokens: int) -> BatchSeq:
    step = planned.step
    local = tables.of(step)
    spans = [span for span in step.remote if _is_visible(span, step, config, block_tokens)]
    place = sum(span.first_block * block_tokens < local.ends[0] for span in spans)
    return BatchSeq(step, planned.tokens, planned.lost, local, spans, place)


def _is_visible(span: RemoteSpan, step: SeqStep, config: ModelConfig, block_tokens: int) -> bool:
    """Whether any query of [start, end) attends to a key of the span, in any layer."""
    first, end = span.first_block * block_tokens, (span.first_block + span.num_blocks) * block_tokens
    reach = config.widest_window
    return first < step.end and (reach is None or end > step.start - reach + 1)


def _number_rows(seqs: Sequence[BatchSeq]) -> None:
    end = 0
    for seq in seqs:
        seq.rows = slice(end, end + len(seq.tokens))
        end = seq.rows.stop


def _row_tensors(seqs: Sequence[BatchSeq], pool: KvPool) -> tuple[Tensor, ...]:
    """tokens, positions, slots, offsets and wanted of a Batch, on the host."""
    # numpy makes small arrays in a fraction of the time that tensors take.
    counts = [len(seq.tokens) for seq in seqs]
    firsts = [seq.step.start - seq.rows.start for seq in seqs]
    positions = np.arange(sum(counts)) + np.repeat(np.array(firsts, np.int64), counts)
    runs = [run for seq in seqs for run in _write_runs(seq.step, pool)]
    shifts = np.repeat(np.array([shift for shift, _ in runs], np.int64), [count for _, count in runs])
    wanted = [seq.rows.stop - 1 for seq in seqs if seq.step.sample is not None]
    for seq in seqs:
        wanted.extend(_prompt_rows(seq))
    return (
        torch.from_numpy(np.frombuffer(b"".join([seq.tokens for seq in seqs]), np.int32).astype(np.int64)),
        torch.from_numpy(positions),
        torch.from_numpy(positions // pool.block_tokens + shifts),
        torch.from_numpy(positions % pool.block_tokens),
        torch.tensor(wanted, dtype=torch.int64),
    )


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
    end = wanted.first + wanted.num_tokens
    if not step.start < wanted.first <= end <= step.end + 1:
        raise MalformedMessage(
            f"{step.request_id}: [{step.start}, {step.end}) predicts no positions [{wanted.first}, {end})"
        )
    first = seq.rows.start + wanted.first - 1 - step.start
    return range(first, first + wanted.num_tokens)


def _on_device(
    device: Device, tensors: tuple[Tensor, ...], rows: Sequence[Rows]
) -> tuple[tuple[Tensor, ...], list[Rows]]:
    """Both on the device by one copy; slices are the same everywhere."""
    placed = device.to_device(*tensors, *(one for one in rows if isinstance(one, Tensor)))
    index = iter(placed[len(tensors) :])
    return placed[: len(tensors)], [next(index) if isinstance(one, Tensor) else one for one in rows]
