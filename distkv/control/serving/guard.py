"""Keeps serving for debtors within an instance's limits: has reclaimed what goes beyond them (000 §4.6)."""

from __future__ import annotations

import math

from distkv.control.blocks import SlotState
from distkv.control.loan.creditor.reclaimer import Reclaimer
from distkv.control.rmanager.state import RManagerState


class ServingGuard:
    """Asks the reclaimer of one instance for as many rBlocks as its ServingLimit says."""

    def __init__(self, state: RManagerState, reclaimer: Reclaimer) -> None:
        self._state = state
        self._reclaimer = reclaimer

    def advance(self, now: float) -> None:
        """Look at what was measured last; reclaim what is too much, or let it be."""
        state, limit = self._state, self._state.serving
        if not state.running() and state.scheduler.is_idle:
            limit.on_idle()
        limit.look(now)
        if limit.is_well:
            self._reclaimer.let_be_served()
        elif limit.is_over and now >= limit.excess_deadline():
            excess = limit.excess_blocks(state.pool.count(SlotState.LENT), now)
            may_preempt = now >= limit.excess_since + self._reclaimer.patience_s
            demanded = self._reclaimer.take_back(excess, now, may_preempt=may_preempt) if excess else 0
            limit.reclaimed(now, state.settings.reclaim_deadline_s if demanded else 0.0)

    def next_deadline(self) -> float:
        """When `advance` has something to do."""
        limit = self._state.serving
        return min(limit.next_deadline(), limit.excess_deadline() if limit.is_over else math.inf)
