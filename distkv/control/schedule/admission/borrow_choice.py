"""Whether a waiting sequence is to borrow."""

from __future__ import annotations

from distkv.control.request.sequence import Sequence
from distkv.control.rmanager.state import RManagerState
from distkv.control.schedule.admission.demand import Demand
from distkv.control.schedule.admission.worth import Choice
from distkv.control.schedule.endings import endings, steps_until, still_to_come
from distkv.control.schedule.profiled_wait import profiled_wait_s


class BorrowChoice:
    """Of one instance. What it found of the sequence that it judged last is kept until something has changed."""

    def __init__(self, state: RManagerState, demand: Demand) -> None:
        self._state = state
        self._demand = demand
        self._queue = state.sequences.queue
        self._judged: tuple[tuple[object, ...], bool] = ((), False)

    def is_to_borrow(self, seq: Sequence, now: float) -> bool:
        """Whether it should have memory of others as soon as it can. For one that could begin here alone borrowing must
        be expected to pay, and nothing is borrowed while requests like it have borrowed from here. One that could begin
        elsewhere waits for AGED_S first: by then it has been sent there if there was memory for it. Looked at when a
        step was planned or answered, or slots or the batch changed."""
        state = self._state
        if not self.may_be_to_borrow(seq):
            return False
        if seq.placement.holds_kv or not state.fits_at_home(seq):
            return True
        steps = state.scheduler.last_step_id, state.scheduler.last_done_id
        basis = (seq.age, *steps, state.pool.changes, state.sequences.batch_changes)
        if self._judged[0] != basis:
            self._judged = basis, state.worth.pays(self._choice(seq, now), now)
        return self._judged[1]

    def may_be_to_borrow(self, seq: Sequence) -> bool:
        """Whether it is to borrow if that is expected to pay."""
        state = self._state
        if not state.may_borrow_for(seq):
            return False
        if seq.placement.holds_kv or not state.fits_at_home(seq):
            return True
        return (seq in self._queue.aged or not state.movable_tokens(seq)) and not state.loans.has_avoidable

    def _choice(self, seq: Sequence, now: float) -> Choice:
        state = self._state
        lacking = self._demand.short(seq, now)
        running = state.running()
        context = seq.length + sum(one.length for one in running)
        return Choice(
            batch=len(running),
            is_remote=state.waits_for_partials,
            home_steps=steps_until(endings(state), lacking),
            life_steps=still_to_come(state, seq),
            profiled_wait_s=profiled_wait_s(state, len(running) + 1, context, lacking),
            is_in_demand=self._queue.unplaced_blocks - seq.size_blocks >= lacking,
            prefill_s=seq.length * state.scheduler.times.prompt_token_s,
        )
