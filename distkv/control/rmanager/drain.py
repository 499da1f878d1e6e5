"""An orderly end: no new requests, loans are reclaimed, what runs finishes, until a deadline."""

from __future__ import annotations

import math

from distkv import events
from distkv.control.commands import Exit, TellGManager
from distkv.control.loan.creditor import Creditor
from distkv.control.loan.debts import DebtBook
from distkv.control.request.lifecycle import RequestLifecycle
from distkv.control.rmanager.state import RManagerState
from distkv.wire.messages.to_gmanager import Leave


class Drain:
    """The drain of one instance, from when it is requested."""

    def __init__(self, state: RManagerState, requests: RequestLifecycle, creditor: Creditor, debts: DebtBook) -> None:
        self._state = state
        self._requests = requests
        self._creditor = creditor
        self._debts = debts
        self._until: float | None = None
        self._left = False

    def start(self, timeout_s: float, now: float) -> None:
        """Begin; a second time changes nothing."""
        state = self._state
        if self._until is not None:
            return
        state.instance_state = "draining"
        self._until = now + timeout_s
        state.publish(events.Draining(running=len(state.running()), loans=state.loans.num_spans))
        for seq in list(state.sequences.queue.waiting):
            if seq.num_generated == 0 and not seq.placement.holds_kv:
                self._requests.fail(seq, f"instance {state.settings.instance_id} is draining", now)
        self._creditor.reclaim_all(timeout_s)

    def remind(self, now: float) -> None:
        """Ask for the loans again: a `Reclaim` may be lost."""
        if self._until is not None and now < self._until:
            self._creditor.reclaim_all(self._until - now)

    def next_deadline(self) -> float:
        """When time is up."""
        return math.inf if self._until is None or self._left else self._until

    def advance(self, now: float) -> None:
        """Leave and exit when nothing is left to do, or time is up."""
        state = self._state
        if self._until is None or self._left:
            return
        idle = not state.sequences and state.scheduler.is_idle and not state.has_deferred
        if idle and not state.loans.num_spans and not self._debts.is_closing:
            reason = "drained"
        elif now >= self._until:
            for seq in list(state.sequences.values()):
                self._requests.fail(seq, f"instance {state.settings.instance_id} stopped while draining", now)
            reason = f"drain timed out with {state.loans.num_spans} spans still lent"
        else:
            return
        self._left = True
        own = state.settings
        state.emit(TellGManager(Leave(instance_id=own.instance_id, incarnation=own.incarnation)))
        state.emit(Exit(0, reason))
