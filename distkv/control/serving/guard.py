"""Keeps serving for debtors within an instance's limits: has reclaimed what goes beyond them (000 §4.6)."""

from __future__ import annotations

import math

from distkv.control.blocks import SlotState
from distkv.control.loan.creditor.reclaimer import Reclaimer
from distkv.control.rmanager.state import RManagerState


class ServingGuard:
    """Asks the reclaimer of one instance for as many rBlocks as its ServingLimit says, and for more only when these are
    back and what that changed was measured."""

    def __init__(self, state: RManagerState, reclaimer: Reclaimer) -> None:
        self._state = state
        self._reclaimer = reclaimer
        self._is_waiting = False

    def advance(self, now: float) -> None:
        """Look at what was measured last; reclaim what is too much, or let it be."""
        state, limit = self._state, self._state.serving
        if not state.running() and state.scheduler.is_idle:
            limit.on_idle()
        limit.look(now)
        if limit.is_well:
            self._reclaimer.let_be_served()
        if self._is_waiting and not self._reclaimer.awaits_served():
            self._is_waiting = False
            limit.measure_anew(now)
        if limit.is_over and not self._is_waiting and now >= limit.excess_deadline():
            excess = limit.excess_blocks(state.pool.count(SlotState.LENT), now)
            may_preempt = now >= limit.excess_since + self._reclaimer.patience_s
            self._is_waiting = excess > 0 and self._reclaimer.take_back(excess, now, may_preempt=may_preempt) > 0
            if not self._is_waiting:
                limit.measure_anew(now)

    def next_deadline(self) -> float:
        """When `advance` has something to do."""
        limit = self._state.serving
        is_due = limit.is_over and not self._is_waiting
        return min(limit.next_deadline(), limit.excess_deadline() if is_due else math.inf)
