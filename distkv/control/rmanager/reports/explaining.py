"""Why the rBlocks of a request lie where they lie: its history, and what its next decision depends on."""

from __future__ import annotations

import msgspec

from distkv.control.query_limit import QueryLimit
from distkv.control.request.sequence import SeqState, Sequence
from distkv.control.rmanager.state import RManagerState
from distkv.control.schedule.admission.demand import Demand
from distkv.wire.messages.to_client import DebtStatus, Explained
from distkv.wire.messages.to_gmanager import ExplainQuery

MAX_OTHERS = 15
MAX_DEBTS = 64


class Explainer:
    """Answers of one instance to `ExplainQuery`, as many as `QueryLimit` lets it."""

    def __init__(self, state: RManagerState, demand: Demand) -> None:
        self._state = state
        self._demand = demand
        self._limit = QueryLimit()

    def answer(self, query: ExplainQuery, route: bytes, now: float) -> Explained:
        """To a query that came by this route."""
        if wait_s := self._limit.wait_s(route, now):
            own_id = self._state.settings.instance_id
            return Explained(query=query.request_id, instance_id=own_id, retry_after_s=wait_s)
        return self.explain(query.request_id, now)

    def explain(self, name: str, now: float) -> Explained:
        """What is known of the request of this name, or of the first that was made of it."""
        state = self._state
        own_id = state.settings.instance_id
        named = state.histories.named(name)
        history = state.histories.find(named[0]) if named else None
        if history is None:
            return Explained(query=name, instance_id=own_id)
        told = Explained(
            query=name,
            instance_id=own_id,
            request_id=named[0],
            others=tuple(named[1 : 1 + MAX_OTHERS]),
            state="ended",
            came_ago_s=max(0.0, now - history.since),
            prompt_tokens=history.prompt_tokens,
            block_tokens=state.settings.block_tokens,
            num_creditors=state.members.num_creditors,
            history=history.told(now),
            left_out=history.left_out,
        )
        seq = state.sequences.get(named[0])
        return told if seq is None else _live(state, self._demand, told, seq, now)


def _live(state: RManagerState, demand: Demand, told: Explained, seq: Sequence, now: float) -> Explained:
    needs = demand.needs(seq, now)
    runs = seq.state is SeqState.RUNNING
    return msgspec.structs.replace(
        told,
        state=seq.state.value,
        num_tokens=len(seq.request.tokens),
        max_tokens=seq.request.params.max_tokens,
        local_blocks=seq.placement.num_local_slots,
        debts=_debts(seq),
        lacks_blocks=needs.lacks,
        growth_blocks=needs.growth if not runs else state.growing.growth(seq),
        room_blocks=needs.room,
        full_batch=0 if runs or not state.is_batch_full else state.settings.max_num_seqs,
        num_before=0 if runs else sum(other.age < seq.age for other in state.sequences.queue.waiting),
        retry_in_s=max(0.0, seq.retry_at - now) if seq.state is SeqState.WAITING else 0.0,
    )


def _debts(seq: Sequence) -> tuple[DebtStatus, ...]:
    """By creditor, of those with most first."""
    found: dict[str, DebtStatus] = {}
    for debt in seq.placement.debts:
        known = found.get(debt.creditor_id, DebtStatus(instance_id=debt.creditor_id, num_blocks=0))
        lie = sum(block.debt is debt and block.arrived for block in debt.blocks)
        coming = sum(block.debt is debt and not block.arrived for block in debt.blocks)
        found[debt.creditor_id] = msgspec.structs.replace(
            known,
            num_blocks=known.num_blocks + lie,
            coming_blocks=known.coming_blocks + coming,
            spare_blocks=known.spare_blocks + debt.num_spare,
        )
    return tuple(sorted(found.values(), key=lambda one: (-one.num_blocks, one.instance_id))[:MAX_DEBTS])
