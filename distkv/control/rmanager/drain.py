"""An orderly end: no new requests, loans are reclaimed, what runs finishes, until a deadline.

Debtors go before creditors, also when all are stopped at the same moment: what is lent is reclaimed a moment later, and
by then a debtor that drains too keeps it until its requests end (see `Recaller`).

What does not run is handed back as retryable: at once if nothing was generated yet, so that its client sends it to
another instance, or if it can have no memory to go on with, since the others drain too; else after PATIENCE_S, for then
only its client knows whether to begin anew.
"""

from __future__ import annotations

import math
from itertools import chain

from distkv import events
from distkv.control.commands import Exit, TellGManager
from distkv.control.loan.creditor.creditor import Creditor
from distkv.control.loan.debtor.debts import DebtBook
from distkv.control.request.lifecycle import MOST_ENDED, RequestLifecycle
from distkv.control.request.sequence import Sequence
from distkv.control.rmanager.state import RManagerState
from distkv.control.schedule.holdings import Holdings
from distkv.wire.messages.to_gmanager import Leave

RECLAIM_AFTER_S = 0.5
"""A debtor that is stopped at the same moment drains by then."""
REMIND_S = 0.5
"""A `Reclaim` may be lost: it is sent again so often."""
PATIENCE_S = 5.0
"""How long a request that has output may wait for memory while its instance drains."""


class Drain:
    """The drain of one instance, from when it is requested."""

    def __init__(
        self,
        state: RManagerState,
        requests: RequestLifecycle,
        creditor: Creditor,
        debts: DebtBook,
        holdings: Holdings,
    ) -> None:
        self._state = state
        self._requests = requests
        self._creditor = creditor
        self._debts = debts
        self._holdings = holdings
        self._left = False
        self._reclaim_at = math.inf
        self._waiting_since: dict[str, float] = {}
        self._has_more = False  # to hand back

    def start(self, timeout_s: float, now: float) -> None:
        """Begin; a second time changes nothing."""
        state = self._state
        if state.leaves_at < math.inf:
            return
        state.instance_state = "draining"
        state.leaves_at, self._reclaim_at = now + timeout_s, now + RECLAIM_AFTER_S
        state.publish(events.Draining(running=len(state.running()), loans=state.loans.num_spans))

    def next_deadline(self) -> float:
        """When time is up, loans are to be reclaimed, or a request in mid-output has waited for too long."""
        leaves_at = self._state.leaves_at
        if leaves_at == math.inf or self._left:
            return math.inf
        if self._has_more:
            return -math.inf
        reclaim_at = self._reclaim_at if self._state.loans.num_spans else math.inf
        return min(leaves_at, reclaim_at, min(self._waiting_since.values(), default=math.inf) + PATIENCE_S)

    def advance(self, now: float) -> None:
        """Leave and exit when nothing is left to do, or time is up."""
        state = self._state
        if state.leaves_at == math.inf or self._left:
            return
        if self._reclaim_at <= now < state.leaves_at:
            self._reclaim_at = now + REMIND_S
            self._creditor.reclaim_all(state.leaves_at - now)
        self._hand_back(now)
        idle = not state.sequences and state.scheduler.is_idle and not state.deferred
        if idle and not state.loans.num_spans and not self._debts.is_closing:
            reason = "drained"
        elif now >= state.leaves_at:
            for seq in list(state.sequences.values()):
                self._requests.fail(seq, f"instance {state.settings.instance_id} stopped while draining", now)
            reason = f"drain timed out with {state.loans.num_spans} spans still lent"
        else:
            return
        self._left = True
        own = state.settings
        state.emit(TellGManager(Leave(instance_id=own.instance_id, incarnation=own.incarnation)))
        state.emit(Exit(0, reason))

    def _hand_back(self, now: float) -> None:
        """End what does not run, MOST_ENDED in an event; only requests in mid-output are waited for, and they are few:
        they ran before."""
        sequences = self._state.sequences
        ending: list[tuple[Sequence, str]] = []
        waiting_since: dict[str, float] = {}
        self._has_more = False
        for seq in chain(sequences.acquiring, sequences.queue.waiting):
            if len(ending) == MOST_ENDED:
                self._has_more = True
                waiting_since = self._waiting_since | waiting_since
                break
            since = self._waiting_since.get(seq.request_id, now)
            if why := self._why_ends(seq, now - since):
                ending.append((seq, why))
            else:
                waiting_since[seq.request_id] = since
        self._waiting_since = waiting_since
        for seq, why in ending:
            self._requests.fail(seq, why, now)

    def _why_ends(self, seq: Sequence, waited_s: float) -> str:
        """Why one that does not run is handed back; empty if it is waited for."""
        draining = f"instance {self._state.settings.instance_id} is draining"
        if seq.num_generated == 0:
            return draining
        so_far = f"after {seq.num_generated} of {seq.request.params.max_tokens} tokens"
        if not self._could_go_on(seq):
            return f"{draining}, and nobody is left to lend it memory {so_far}"
        return f"{draining}, and found no memory for {PATIENCE_S:g} s {so_far}" if waited_s >= PATIENCE_S else ""

    def _could_go_on(self, seq: Sequence) -> bool:
        """Whether what it lacks may come free here, or be lent by those that do not drain."""
        others = self._state.settings.num_blocks - seq.placement.num_local_slots
        return self._holdings.unplaced_blocks(seq) <= others + self._state.members.lendable_blocks
