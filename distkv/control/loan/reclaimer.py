"""A creditor short of memory wants some of it back: only what its own oldest request lacks, and that once.

A request that waits for longer than `reclaim_after_s`, found nobody to lend, and would fit here if loans came home, has
its instance reclaim as many rBlocks as are missing, at most `reclaim_blocks` at a time. A debtor that has not given
them back after `reclaim_deadline_s` is told that its time is over, and gives them up. One that does not do so either
finds its renewal refused: it loses the whole span by evidence of its own. So that
lending and reclaiming do not chase each other, nothing is lent while such a request waits, young loans are left alone,
and a debtor that was reclaimed from is lent nothing for twice the time that it had to give back.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from distkv import events
from distkv.control.commands import Answer
from distkv.control.loan.lending import Demand, Loan
from distkv.control.loan.reclaiming import Lent, choose
from distkv.control.request.sequence import Sequence
from distkv.control.rmanager.state import RManagerState
from distkv.control.timers import Timers
from distkv.wire.messages.to_rmanager import Reclaim

REMIND_S = 0.5
"""A `Reclaim` may be lost, or have come while a move was under way: it is sent again so often."""


class Reclaimer:
    """The reclaims of one instance.

    lacking(now): the own request that waits for memory longest, and how many rBlocks it needs beyond the free ones.
    """

    def __init__(self, state: RManagerState, lacking: Callable[[float], tuple[Sequence, int] | None]) -> None:
        self._state = state
        self._lacking = lacking
        self._demands: dict[str, Loan] = {}
        self._remind_at: Timers[str] = Timers()
        self._short: Sequence | None = None
        self._look_at = math.inf
        self._short_since = math.inf
        self._cooling: dict[str, float] = {}

    def advance(self, now: float) -> None:
        """Look at the own request that waits longest; reclaim for it, or let all demands go when none is short."""
        lack = self._shortage(now)
        if lack == 0:
            self._withdraw()
        elif now >= self._look_at or self._is_met:
            self._look_at = now + REMIND_S
            self._drop_met()
            if self._short is not None and (self._short.retries or not self._state.has_creditors):
                self._reclaim(lack, now)

    def tick(self, now: float) -> None:
        """Ask again for what is not back."""
        for span_id in self._remind_at.take_due(now):
            loan = self._demands[span_id]
            if loan.num_demanded:
                self._tell(loan, now)
            else:
                self._drop(loan)

    def next_deadline(self) -> float:
        """When `advance` or `tick` has something to do."""
        return min(self._remind_at.next_at(), self._look_at)

    def is_cooling(self, debtor_id: str, now: float) -> bool:
        """Whether this debtor was reclaimed from just now: to lend to it again would undo that."""
        return now < self._cooling.get(debtor_id, -math.inf)

    def validate(self) -> None:
        """Every demand is made, and repeated until it is met."""
        for span_id, loan in self._demands.items():
            assert loan.demand is not None and span_id in self._remind_at
        made = [loan for loan in self._state.loans.loans.values() if loan.demand is not None]
        assert all(self._demands.get(loan.span.span_id) is loan for loan in made), "a demand nobody remembers"
        assert self._state.is_short == (self._short is not None) == (self._look_at < math.inf)
        self._remind_at.validate()

    @property
    def _is_met(self) -> bool:
        """Whether all that was demanded is on its way, so that the rest may be."""
        return bool(self._demands) and not any(loan.num_demanded for loan in self._demands.values())

    def _shortage(self, now: float) -> int:
        """rBlocks that the oldest own request lacks and that loans could bring home, else 0."""
        state = self._state
        seq, lack = self._lacking(now) or (None, 0)
        if not 0 < lack <= state.loans.num_blocks or state.instance_state != "ready":
            seq, lack = None, 0
        if seq is not self._short:
            self._short, state.is_short = seq, seq is not None
            self._short_since = now
            self._look_at = math.inf if seq is None else now + state.settings.reclaim_after_s
        return lack

    def _reclaim(self, lack: int, now: float) -> None:
        demanded = sum(loan.num_demanded for loan in self._demands.values())
        missing = lack - demanded - sum(loan.num_returning for loan in self._state.loans.loans.values())
        most = self._state.settings.reclaim_blocks - demanded
        for span_id, keep in choose(self._loans(now, min(missing, most)), missing, most):
            self._demand(self._state.loans.loans[span_id], keep, now)

    def _loans(self, now: float, missing: int) -> list[Lent]:
        """What may be reclaimed: neither young nor demanded already, and what its debtor has room for. What would have
        it preempt comes only after as long as that might take: by then it has mostly ended by itself."""
        settings = self._state.settings
        old = now - settings.reclaim_after_s
        has_waited = (
            now >= self._short_since + settings.reclaim_after_s + settings.reclaim_deadline_s + settings.lease_s
        )
        return [
            Lent(span_id, loan.num_kept, min(loan.filled + loan.pulling, loan.num_kept), loan.granted_at)
            for span_id, loan in self._state.loans.loans.items()
            if not loan.revoking
            and loan.demand is None
            and loan.granted_at <= old
            and (has_waited or min(missing, loan.filled + loan.pulling) <= loan.debtor_room)
        ]

    def _demand(self, loan: Loan, keep: int, now: float) -> None:
        state, deadline_s = self._state, self._state.settings.reclaim_deadline_s
        state.loans.reclaim(loan, Demand(keep, now + deadline_s))
        self._demands[loan.span.span_id] = loan
        self._cooling = {debtor: until for debtor, until in self._cooling.items() if now < until}
        self._cooling[loan.debtor_id] = now + 2 * deadline_s
        blocks = loan.num_demanded
        state.counters.reclaimed_blocks += blocks
        state.publish(events.Reclaimed(request_id=loan.request_id, debtor=loan.debtor_id, blocks=blocks))
        self._tell(loan, now)

    def _tell(self, loan: Loan, now: float) -> None:
        assert loan.demand is not None
        deadline_s = max(0.0, loan.demand.until - now)
        reclaim = Reclaim(span=loan.span, deadline_s=deadline_s, keep_blocks=loan.demand.keep)
        self._state.emit(Answer(loan.route, reclaim))
        last_call_s = deadline_s if deadline_s > 0 else math.inf
        self._remind_at.set(loan.span.span_id, now + min(REMIND_S, last_call_s))

    def _drop_met(self) -> None:
        for loan in [loan for loan in self._demands.values() if not loan.num_demanded]:
            self._drop(loan)

    def _withdraw(self) -> None:
        for loan in list(self._demands.values()):
            self._drop(loan)

    def _drop(self, loan: Loan) -> None:
        del self._demands[loan.span.span_id]
        self._remind_at.cancel(loan.span.span_id)
        self._state.loans.reclaim(loan, None)
