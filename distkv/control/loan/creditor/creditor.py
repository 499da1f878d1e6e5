"""The creditor's side of the contract: grant, pull, renew, take back (000 §4.4, docs/loans.md)."""

from __future__ import annotations

import msgspec

from distkv import events
from distkv.checksums import pack
from distkv.control.commands import Answer, TellWorker
from distkv.control.loan.creditor.lending import Loan
from distkv.control.loan.creditor.reclaimer import Reclaimer
from distkv.control.rmanager.state import LAST_S, RManagerState
from distkv.wire.messages.common import SpanRef
from distkv.wire.messages.from_worker import Pulled, Revoked
from distkv.wire.messages.to_rmanager import (
    BlocksReady,
    Complete,
    Granted,
    Reclaim,
    Refused,
    Release,
    Released,
    Renew,
    Renewed,
    TryMoveKvcache,
    Vacant,
)
from distkv.wire.messages.to_worker import Grant, Pull, Revoke

MAX_SHARERS = 3
"""So many creditors are recommended to a debtor at once: what its request still lacks, they keep together."""


class Creditor:
    """Answers debtors; every loan it ends goes through the worker, which knows when the last reader is done."""

    def __init__(self, state: RManagerState, reclaimer: Reclaimer) -> None:
        self._state = state
        self._reclaimer = reclaimer
        self._pulls: dict[int, tuple[Loan, BlocksReady]] = {}

    def on_try_move(self, sender: str, route: bytes, message: TryMoveKvcache, now: float) -> None:
        """Reserve, or refuse with what is free."""
        state = self._state
        if not message.num_blocks:
            state.earmarks.ask((sender, message.request_id), route, message.waited_s, 0, 0, now)
        if reason := self._why_to_nobody(sender, message, now):
            is_draining = state.instance_state == "draining"
            refused = Refused(
                span_id=message.span_id,
                reason=reason,
                free_blocks=0,
                is_draining=is_draining,
                retry_after_s=state.serving.retry_after_s(now),
            )
            state.emit(Answer(route, refused))
            return
        reason = self._why_not_to(sender, message, now)
        if not reason and message.is_avoidable:
            reason = self._why_not_avoidable()
        if reason:
            refused = Refused(span_id=message.span_id, reason=reason, free_blocks=state.lendable(), is_kept=True)
            state.emit(Answer(route, refused))
            return
        for loan in state.loans.of_debtor(sender):
            if loan.debtor_incarnation != message.debtor_incarnation:  # of a former process
                self._revoke(loan, tell_debtor=False)
        request = sender, message.request_id
        kept = 0
        if message.is_avoidable or not message.is_running:
            kept = state.earmarks.kept_from(request, state.earmarks.since(message.waited_s, now), now)
        if message.is_avoidable:
            kept += state.kept_for_next(now)
        answer, is_new = state.loans.try_grant(route, message, state.lendable_to(*request), now, kept)
        if isinstance(answer, Granted):
            serving = state.serving
            answer = msgspec.structs.replace(
                answer, serve_fraction=serving.fraction, max_serve_fraction=serving.max_fraction
            )
        granted = len(answer.slots) if isinstance(answer, Granted) else 0
        wanted = self._wanted(message.num_blocks, granted) if granted < message.num_blocks else 0
        if not message.is_avoidable:  # that waits for memory at home too, and keeps none from others
            state.earmarks.ask(request, route, message.waited_s, wanted, granted, now)
        if isinstance(answer, Granted) and is_new:
            span = SpanRef(span_id=answer.span_id, epoch=answer.epoch)
            state.emit(TellWorker(Grant(span=span, slots=answer.slots)))
            state.publish(events.Lent(request_id=message.request_id, debtor=sender, blocks=len(answer.slots)))
        state.emit(Answer(route, answer))

    def _wanted(self, num_blocks: int, granted: int) -> int:
        """rBlocks to keep for a request that got less than it asked for: those, and a share of the others, for it asks
        other creditors too."""
        missing = min(num_blocks, self._state.settings.lendable_blocks) - granted
        return granted - (-missing // max(1, min(MAX_SHARERS, self._state.members.num_creditors)))

    def _why_to_nobody(self, sender: str, message: TryMoveKvcache, now: float) -> str:
        """Why nothing is lent to whoever asks for what this one does; empty if that is not so."""
        state = self._state
        if state.instance_state != "ready" and not self._goes_on(sender, message, now):
            return f"this instance is {state.instance_state}"
        if state.serving.is_limited and state.loans.find(message.span_id) is None:
            return state.serving.why()
        return ""

    def _why_not_to(self, sender: str, message: TryMoveKvcache, now: float) -> str:
        """Why nothing is lent to this debtor, whatever others may have; empty if it may have some.

        A debtor that is newer than the member list here is refused too, and tries again later. One that is listed as
        dead is not: it asks.
        """
        state = self._state
        if message.debtor_id != sender:
            return "not the debtor's own asking"
        member = state.members.find(sender)
        if member is None or member.incarnation != message.debtor_incarnation:
            return "the debtor is no member"
        if self._reclaimer.is_cooling(sender, now):
            return "memory that was lent to the debtor is needed here"
        return ""

    def _goes_on(self, sender: str, message: TryMoveKvcache, now: float) -> bool:
        """Whether this instance drains, and the request has memory here and no other place: it may end before the time
        is up."""
        state = self._state
        if state.instance_state != "draining" or message.is_avoidable or state.leaves_at - now <= LAST_S:
            return False
        of_request = message.request_id, message.debtor_incarnation
        return any(
            (loan.request_id, loan.debtor_incarnation) == of_request and not loan.revoking
            for loan in state.loans.of_debtor(sender)
        )

    def _why_not_avoidable(self) -> str:
        """Why nothing is lent to a request that its own instance could hold; empty if it may have some."""
        queue = self._state.sequences.queue
        if queue.resuming or queue.next_fitting(self._state.pool.num_free) is not None:
            return "requests wait here that fit, and the debtor's own pool could hold this one"
        if self._state.owed:
            return "this instance has borrowed, and the debtor's own pool could hold the request"
        return ""

    def on_blocks_ready(self, route: bytes, message: BlocksReady) -> None:
        """Have the worker pull what a debtor has ready."""
        state = self._state
        if (loan := state.loans.get(message.span)) is not None and loan.route != route:
            problem = "the span is another debtor's"
            state.emit(Answer(route, Complete(span=message.span, index=message.index, num_blocks=0, problem=problem)))
            return
        if state.loans.is_reading(message):
            return
        if (again := state.loans.answer_again(message)) is not None:
            state.emit(Answer(route, again))
            return
        started = state.loans.start_pull(message)
        if isinstance(started, str):
            answer = Complete(span=message.span, index=message.index, num_blocks=0, problem=started)
            state.emit(Answer(route, answer))
            return
        loan, slots = started
        pull_id = state.next_id()
        self._pulls[pull_id] = (loan, message)
        state.emit(
            TellWorker(
                Pull(
                    pull_id=pull_id,
                    span=loan.span,
                    source_id=message.source_id,
                    source_incarnation=message.source_incarnation,
                    source_slots=tuple(block.slot for block in message.blocks),
                    slots=slots,
                    checksums=pack(block.checksum for block in message.blocks),
                )
            )
        )

    def on_pulled(self, message: Pulled) -> bool:
        """A pull is over; false if it was none for a debtor."""
        pull = self._pulls.pop(message.pull_id, None)
        if pull is None:
            return False
        loan, ready = pull
        self._state.loans.end_pull(loan, ok=not message.problem)
        if not loan.revoking:
            done = 0 if message.problem else len(ready.blocks)
            answer = Complete(span=loan.span, index=ready.index, num_blocks=done, problem=message.problem)
            self._state.emit(Answer(loan.route, answer))
        return True

    def on_renew(self, route: bytes, message: Renew, now: float) -> None:
        """Extend the leases that still hold."""
        loans = self._state.loans
        answer = Renewed(
            renewal=message.renewal,
            refused=loans.renew(message.spans, route, message.ttl_s, now, message.room_blocks),
            incarnation=self._state.settings.incarnation,
            ttl_s=loans.lease_s(message.ttl_s),
        )
        self._state.emit(Answer(route, answer))

    def on_release(self, route: bytes, message: Release) -> None:
        """The debtor gives back a span, or a part of it, or never wanted it. Of anybody else's span nothing is said and
        nothing done."""
        loan = self._state.loans.find(message.span.span_id)
        if loan is None or loan.route != route or not message.span.covers(loan.span):
            self._state.emit(Answer(route, Released(span=message.span, positions=message.positions)))
        elif not message.positions:
            self._revoke(loan, tell_debtor=True)
        elif not loan.revoking:
            self._close(loan, message.positions)

    def on_revoked(self, message: Revoked) -> Loan | None:
        """Nobody uses the span, or these positions of it, any more; returns the loan whose slots have come free."""
        loan = self._state.loans.revoked(message.span, message.positions)
        if loan is not None and (loan.tell_debtor or message.positions):
            self._state.emit(Answer(loan.route, Released(span=loan.span, positions=message.positions)))
        return loan

    def advance(self, now: float) -> None:
        """Have who waits for what is kept here ask again, once that is free."""
        state = self._state
        if (kept := state.earmarks.take_vacant(state.lendable_to, now)) is not None:
            vacant = Vacant(request_id=kept.request[1], free_blocks=state.lendable_to(*kept.request))
            state.emit(Answer(kept.route, vacant))

    def reclaim_all(self, deadline_s: float) -> None:
        """This instance drains: ask every debtor to take its blocks elsewhere."""
        for loan in self._state.loans.held():
            self._state.emit(Answer(loan.route, Reclaim(span=loan.span, deadline_s=deadline_s, is_draining=True)))

    def tick(self, now: float) -> None:
        """Take back what nobody renewed."""
        for loan in self._state.loans.expired(now):
            self._state.counters.lease_expiries += 1
            self._state.publish(events.LeaseExpired(request_id=loan.request_id, debtor=loan.debtor_id))
            self._revoke(loan, tell_debtor=False)

    def next_deadline(self) -> float:
        """When `tick` has something to do."""
        return self._state.loans.next_deadline()

    def _revoke(self, loan: Loan, tell_debtor: bool) -> None:
        if self._state.loans.revoke(loan, tell_debtor):
            self._state.emit(TellWorker(Revoke(span=loan.span)))

    def _close(self, loan: Loan, positions: tuple[int, ...]) -> None:
        """Take positions of a span back, and all of it with the last one."""
        fresh = self._state.loans.close(loan, positions)
        if not loan.num_kept:
            self._revoke(loan, tell_debtor=True)
        elif fresh:
            self._state.emit(TellWorker(Revoke(span=loan.span, positions=fresh)))
        if back := tuple(position for position in positions if position in loan.returned):
            self._state.emit(Answer(loan.route, Released(span=loan.span, positions=back)))
