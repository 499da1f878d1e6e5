"""One instance as `distkv status` shows it."""

from __future__ import annotations

from itertools import chain, islice

from distkv.control.blocks import SlotState
from distkv.control.request.sequence import Sequence
from distkv.control.rmanager.state import RManagerState
from distkv.wire.messages.common import Member
from distkv.wire.messages.counters import Counters, total
from distkv.wire.messages.to_client import InstanceStatus, RequestStatus, SlotCounts, SpanStatus

MAX_REQUESTS = 128
"""In one status, so that it is small and made in no time."""


def instance_status(state: RManagerState, member: Member, others: Counters) -> InstanceStatus:
    """Numbers of one instance, as of now. member: its own entry. others: what counted besides control."""
    pool = state.pool
    return InstanceStatus.of(
        member,
        state=state.instance_state,
        blocks=SlotCounts(
            total=pool.num_slots,
            free=pool.num_free,
            local=pool.count(SlotState.LOCAL),
            lent=pool.count(SlotState.LENT),
            reserved=pool.count(SlotState.RESERVED),
        ),
        borrowed_blocks=sum(debt.capacity for debt in state.all_debts()),
        running=len(state.running()),
        waiting=state.sequences.num_waiting,
        counters=total(state.counters, others),
        serve_fraction=state.serving.fraction,
        computes=state.settings.computes,
    )


def request_statuses(state: RManagerState) -> tuple[RequestStatus, ...]:
    """Live requests and where their KV lies: those that hold memory, then those that wait, the oldest of each, and
    MAX_REQUESTS at most; how many there are is in the instance's status."""
    sequences = state.sequences
    shown = islice(chain(sequences.running, sequences.acquiring, sequences.queue.waiting), MAX_REQUESTS)
    return tuple(
        RequestStatus(
            request_id=seq.request_id,
            instance_id=state.settings.instance_id,
            num_tokens=len(seq.request.tokens),
            spans=_spans(seq, state.settings.instance_id),
        )
        for seq in shown
    )


def _spans(seq: Sequence, own_id: str) -> tuple[SpanStatus, ...]:
    placement, num_tokens = seq.placement, len(seq.request.tokens)
    local, remote = placement.block_table(len(placement.blocks))
    runs = [(run.first_block, run.num_blocks, own_id) for run in local]
    runs += [(run.first_block, run.num_blocks, run.instance_id) for run in remote]
    spans: list[SpanStatus] = []
    for first_block, num_blocks, where in sorted(runs):
        first = first_block * placement.block_tokens
        tokens = min(num_blocks * placement.block_tokens, num_tokens - first)
        if tokens <= 0:
            break
        last = spans[-1] if spans else None
        if last is not None and last.instance_id == where and last.first_token + last.num_tokens == first:
            spans[-1] = SpanStatus(instance_id=where, first_token=last.first_token, num_tokens=last.num_tokens + tokens)
        else:
            spans.append(SpanStatus(instance_id=where, first_token=first, num_tokens=tokens))
    return tuple(spans)
