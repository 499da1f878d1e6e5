"""A creditor short of memory wants some of it back: only what its own oldest request lacks, and that once.

A request that waits for longer than `reclaim_after_s`, would fit here if loans came home, and found nobody to lend or
is not to borrow, has its instance reclaim as many rBlocks as are missing, at most `reclaim_blocks` at a time. A debtor
that has not given them back after `reclaim_deadline_s` is told that its time is over, and gives them up. One that does
not do so either finds its renewal refused: it loses the whole span by evidence of its own. So that lending and
reclaiming do not chase each other, nothing is lent while such a request waits, young loans are left alone, and a debtor
that was reclaimed from is lent nothing for twice the time that it had to give back.

Under a policy by which no instance borrows while it lends (`greedy`), it also reclaims what those that run will need
next, and for a request that all its loans are too few for: when they are home, it may borrow. For such a request nobody
is to preempt: only what debtors have room for is reclaimed, and a request that has borrowed here goes on to grow.

What serving its debtors takes too much of an instance's time is reclaimed in the same way (`take_back`), but at once as
far as its debtors have room for it: they have `reclaim_deadline_s` for each `reclaim_blocks`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from distkv import events
from distkv.control.commands import Answer
from distkv.control.loan.creditor.lending import Demand, Loan
from distkv.control.loan.creditor.reclaiming import Lent, choose, choose_served
from distkv.control.request.sequence import Sequence
from distkv.control.rmanager.state import RManagerState
from distkv.control.timers import Timers
from distkv.wire.messages.to_rmanager import Reclaim

REMIND_S = 0.5
"""A `Reclaim` may be lost, or have come while a move was under way: it is sent again so often."""


class Lack(NamedTuple):
    """An own request that waits for memory, and how many rBlocks it needs beyond the free ones. is_to_reclaim: others
    were asked in vain, or are not to be."""

    seq: Sequence | None
    blocks: int
    is_to_reclaim: bool


NONE_LACKS = Lack(None, 0, False)


class Reclaimer:
    """The reclaims of one instance.

    lacking(now): what the own request lacks that waits for memory longest.
    """

    def __init__(self, state: RManagerState, lacking: Callable[[float], Lack]) -> None:
        self._state = state
        self._lacking = lacking
        self._demands: dict[str, Loan] = {}
        self._served: set[str] = set()  # of the demands, those that no own request waits for
        self._remind_at: Timers[str] = Timers()
        self._short: Sequence | None = None
        self._look_at = math.inf
        self._short_since = math.inf
        self._cooling: dict[str, float] = {}

    def advance(self, now: float) -> None:
        """Look at the own request that waits longest; reclaim for it, or let all demands go when none is short."""
        lack = self._shortage(now)
        if lack.seq is None:
            self._withdraw()
        elif now >= self._look_at or self._is_met:
            self._look_at = now + REMIND_S
            self._drop_met()
            if lack.is_to_reclaim or not self._state.has_creditors:
                self._reclaim(lack.blocks, now)

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

    def take_back(self, num_blocks: int, now: float, *, may_preempt: bool) -> int:
        """Reclaim so many rBlocks that are served, because that takes too much of this instance's time; returns how
        many it could. may_preempt: also `reclaim_blocks` that their debtors have no room for."""
        self.let_be_served(only_met=True)
        loans, settings = self._state.loans.loans, self._state.settings
        chosen = choose_served(self._old_enough(now), num_blocks, settings.reclaim_blocks if may_preempt else 0)
        demanded = sum(loans[span_id].num_kept - keep for span_id, keep in chosen)
        deadline_s = settings.reclaim_deadline_s * math.ceil(demanded / settings.reclaim_blocks)
        for span_id, keep in chosen:
            self._served.add(span_id)
            self._demand(loans[span_id], keep, deadline_s, now, "serving its debtors takes too long")
        return demanded

    def awaits_served(self) -> bool:
        """Whether anything that `take_back` reclaimed is not on its way yet."""
        return any(self._demands[span_id].num_demanded for span_id in self._served)

    def let_be_served(self, *, only_met: bool = False) -> None:
        """What `take_back` reclaimed, as far as it is not back, may stay. only_met: forget what is on its way."""
        for span_id in list(self._served):
            if not (only_met and self._demands[span_id].num_demanded):
                self._drop(self._demands[span_id])

    @property
    def is_idle(self) -> bool:
        """Whether nothing is demanded, nor about to be."""
        return not self._demands and self._short is None

    def is_cooling(self, debtor_id: str, now: float) -> bool:
        """Whether this debtor was reclaimed from just now: to lend to it again would undo that."""
        return now < self._cooling.get(debtor_id, -math.inf)

    def validate(self) -> None:
        """Every demand is made, and repeated until it is met."""
        for span_id, loan in self._demands.items():
            assert loan.demand is not None and span_id in self._remind_at
        made = [loan for loan in self._state.loans.loans.values() if loan.demand is not None]
        assert all(self._demands.get(loan.span.span_id) is loan for loan in made), "a demand nobody remembers"
        assert self._served <= self._demands.keys()
        assert self._state.is_short == (self._short is not None) == (self._look_at < math.inf)
        self._remind_at.validate()

    @property
    def _is_met(self) -> bool:
        """Whether all that was demanded is on its way, so that the rest may be."""
        return bool(self._demands) and not any(loan.num_demanded for loan in self._demands.values())

    def _shortage(self, now: float) -> Lack:
        """What the oldest own request lacks and loans could bring home."""
        state = self._state
        lack = self._lacking(now)
        state.lacks_more = lack.blocks > state.loans.num_blocks
        if state.is_one_sided:
            lack = self._before_borrowing(lack)
        if not 0 < lack.blocks <= state.loans.num_blocks or state.instance_state != "ready":
            lack = NONE_LACKS
        if lack.seq is not self._short:
            self._short, state.is_short = lack.seq, lack.seq is not None
            self._short_since = now
            self._look_at = math.inf if lack.seq is None else now + state.settings.reclaim_after_s
        return lack

    def _before_borrowing(self, lack: Lack) -> Lack:
        """The same of an instance that borrows nothing while it lends: what loans can bring home is wanted even if that
        is not enough, and is there before those that run stand still for want of slots."""
        state = self._state
        missing = len(state.running()) - state.pool.num_free
        if lack.blocks <= 0 and missing > 0:
            lack = lack._replace(seq=state.running().oldest, blocks=missing)
        return lack._replace(blocks=min(lack.blocks, state.loans.num_blocks))

    def _reclaim(self, lack: int, now: float) -> None:
        demanded = sum(loan.num_demanded for loan in self._demands.values())
        missing = lack - demanded - sum(loan.num_returning for loan in self._state.loans.loans.values())
        most = self._state.settings.reclaim_blocks - demanded
        has_waited = now >= self._short_since + self._state.settings.reclaim_after_s + self.patience_s
        loans = self._reclaimable(now, min(missing, most), has_waited and not self._state.lacks_more)
        for span_id, keep in choose(loans, missing, most):
            loan, deadline_s = self._state.loans.loans[span_id], self._state.settings.reclaim_deadline_s
            self._demand(loan, keep, deadline_s, now, "an own request lacks memory")

    @property
    def patience_s(self) -> float:
        """As long as a debtor that has no room might take. By then it has mostly ended by itself; only afterwards it is
        to preempt."""
        return self._state.settings.reclaim_deadline_s + self._state.settings.lease_s

    def _reclaimable(self, now: float, missing: int, may_preempt: bool) -> list[Lent]:
        """What may be reclaimed and, unless it may preempt, what its debtor has room for; where all of it would not be
        enough, also for what is to lie in it still: who began with that could not go on."""
        lacks_more = self._state.lacks_more

        def is_at_home(one: Lent) -> bool:
            return min(missing, one.kept if lacks_more else one.filled) <= one.room

        return [one for one in self._old_enough(now) if may_preempt or is_at_home(one)]

    def _old_enough(self, now: float) -> list[Lent]:
        """What may be reclaimed: neither young nor demanded already."""
        old = now - self._state.settings.reclaim_after_s
        return [
            Lent(
                span_id,
                loan.num_kept,
                min(loan.filled + loan.pulling, loan.num_kept),
                loan.granted_at,
                loan.is_avoidable,
                loan.debtor_id,
                loan.debtor_room,
            )
            for span_id, loan in self._state.loans.loans.items()
            if not loan.revoking
            and loan.demand is None
            and loan.debtor_id != self._state.pinned_debtor
            and loan.granted_at <= old
        ]

    def _demand(self, loan: Loan, keep: int, deadline_s: float, now: float, why: str) -> None:
        state = self._state
        state.loans.reclaim(loan, Demand(keep, now + deadline_s))
        self._demands[loan.span.span_id] = loan
        self._cooling = {debtor: until for debtor, until in self._cooling.items() if now < until}
        self._cooling[loan.debtor_id] = now + 2 * state.settings.reclaim_deadline_s
        blocks = loan.num_demanded
        state.counters.reclaimed_blocks += blocks
        state.demanded_at = now
        state.publish(events.Reclaimed(request_id=loan.request_id, debtor=loan.debtor_id, blocks=blocks, why=why))
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
        for span_id in self._demands.keys() - self._served:
            self._drop(self._demands[span_id])

    def _drop(self, loan: Loan) -> None:
        del self._demands[loan.span.span_id]
        self._served.discard(loan.span.span_id)
        self._remind_at.cancel(loan.span.span_id)
        self._state.loans.reclaim(loan, None)
