"""One instance as `distkv status` shows it."""

from __future__ import annotations

from distkv.control.blocks import SlotState
from distkv.control.request.sequence import Sequence
from distkv.control.rmanager.state import RManagerState
from distkv.wire.messages.common import Member
from distkv.wire.messages.counters import Counters, total
from distkv.wire.messages.to_client import InstanceStatus, RequestStatus, SlotCounts, SpanStatus


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
    )


def request_statuses(state: RManagerState) -> tuple[RequestStatus, ...]:
    """Live requests and where their KV lies."""
    return tuple(
        RequestStatus(
            request_id=seq.request_id,
            instance_id=state.settings.instance_id,
            num_tokens=len(seq.request.tokens),
            spans=_spans(seq, state.settings.instance_id),
        )
        for seq in sorted(state.sequences.values(), key=lambda s: s.age)
    )


def _spans(seq: Sequence, own_id: str) -> tuple[SpanStatus, ...]:
    spans: list[SpanStatus] = []
    for block in seq.placement.blocks:
        place = block.location()
        if place is None and block.slot is None:
            continue
        where = own_id if place is None else place[0].creditor_id
        first = block.number * seq.placement.block_tokens
        tokens = max(0, min(seq.placement.block_tokens, len(seq.request.tokens) - first))
        if not tokens:
            continue
        last = spans[-1] if spans else None
        if last is not None and last.instance_id == where and last.first_token + last.num_tokens == first:
            spans[-1] = SpanStatus(instance_id=where, first_token=last.first_token, num_tokens=last.num_tokens + tokens)
        else:
            spans.append(SpanStatus(instance_id=where, first_token=first, num_tokens=tokens))
    return tuple(spans)
