"""The debtor's book: spans it owes, their leases, and how they end: given back, given up, or lost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile

from distkv.control.commands import TellPeer
from distkv.control.loan.debtor.leases import renewal_period_s, valid_until
from distkv.control.request.block import Block, Debt
from distkv.control.request.sequence import Sequence
from distkv.control.rmanager.state import RManagerState
from distkv.control.timers import Timers
from distkv.wire.messages.common import SpanRef
from distkv.wire.messages.to_rmanager import MAX_ITEMS, Granted, Release, Released, Renew, Renewed


@dataclass(frozen=True, slots=True)
class Renewal:
    """One that was sent and not answered yet."""

    sent_at: float
    creditor_id: str
    spans: frozenset[str]


@dataclass(slots=True, eq=False)
class Closing:
    """A span given back whose creditor may still be reading `slots` of ours."""

    slots: list[int]
    span: SpanRef
    creditor_id: str


class DebtBook:
    """Debts of all sequences of one instance, grants that borrows still collect included.

    An event costs what the spans it names cost, however many there are; a renewal all those of its creditor.
    """

    def __init__(self, state: RManagerState) -> None:
        self._state = state
        self._debts: dict[str, tuple[Sequence, Debt]] = {}
        self._at: dict[str, dict[str, Debt]] = {}
        self._renewals: dict[int, Renewal] = {}
        self._renew_at: Timers[str] = Timers()
        self._expire_at: Timers[str] = Timers()
        self._closing: dict[str, Closing] = {}
        self._close_at: Timers[str] = Timers()

    def find(self, span: SpanRef) -> tuple[Sequence, Debt] | None:
        """The sequence and debt of a span in this epoch."""
        found = self._debts.get(span.span_id)
        return found if found is not None and found[1].span == span else None

    @property
    def is_owing(self) -> bool:
        """Whether anything is owed to anybody."""
        return bool(self._debts)

    def at(self, creditor_id: str) -> list[tuple[Sequence, Debt]]:
        """What is owed to one creditor."""
        return [self._debts[span_id] for span_id in self._at.get(creditor_id, ())]

    # --- beginnings

    def on_granted(self, creditor_id: str, granted: Granted, now: float) -> None:
        """A creditor granted: a borrow waits for it, or it goes back. An answer that comes twice counts once."""
        span = SpanRef(span_id=granted.span_id, epoch=granted.epoch)
        if (found := self.find(span)) is not None and found[1].creditor_id == creditor_id:
            return
        taken = self._state.borrower.on_granted(creditor_id, granted, now)
        if taken is None:
            self._state.emit(TellPeer(creditor_id, Release(span=span)))
        else:
            self.add(*taken, now)

    def add(self, seq: Sequence, debt: Debt, now: float) -> None:
        """A debt begins."""
        self._debts[debt.span.span_id] = seq, debt
        self._state.num_debts = len(self._debts)
        self._at.setdefault(debt.creditor_id, {})[debt.span.span_id] = debt
        self._state.owed.add(debt.creditor_id)
        self._expire_at.set(debt.span.span_id, debt.valid_until)
        self._renew_at.bring_forward(debt.creditor_id, now + renewal_period_s(debt.lease_s))

    def _remove(self, debt: Debt) -> None:
        span_id = debt.span.span_id
        if (found := self._debts.get(span_id)) is None or found[1] is not debt:
            return
        del self._debts[span_id]
        self._state.num_debts = len(self._debts)
        self._expire_at.cancel(span_id)
        held = self._at[debt.creditor_id]
        del held[span_id]
        if not held:
            del self._at[debt.creditor_id]
            self._state.owed.discard(debt.creditor_id)
            self._renew_at.cancel(debt.creditor_id)

    # --- leases

    def next_deadline(self) -> float:
        """When `take_expired` or `tick` has something to do."""
        return min(self._renew_at.next_at(), self._expire_at.next_at(), self._close_at.next_at())

    def take_expired(self, now: float) -> list[tuple[Sequence, Debt]]:
        """Debts whose lease has run out, each once: to be asked for before anything is planned."""
        return self._not_collected([self._debts[span_id] for span_id in self._expire_at.take_due(now)])

    def tick(self, now: float) -> None:
        """Renew leases that are due."""
        self._forget_unanswered(now)
        for creditor_id in self._renew_at.take_due(now):
            self._renew(creditor_id, now)
        for span_id in self._close_at.take_due(now):
            self._close(span_id)

    def on_renewed(self, creditor_id: str, message: Renewed) -> list[tuple[Sequence, Debt]]:
        """Leases hold on, as long as the creditor says, from when the renewal was sent; returns debts whose renewal was
        refused."""
        renewal = self._renewals.get(message.renewal)
        if renewal is None or renewal.creditor_id != creditor_id:
            return []
        del self._renewals[message.renewal]
        refused = [found for span in message.refused if span.span_id in renewal.spans and (found := self.find(span))]
        for _, debt in refused:
            self._expire_at.cancel(debt.span.span_id)
        gone = {debt.span.span_id for _, debt in refused}
        for span_id in renewal.spans - gone:
            if (one := self._debts.get(span_id)) is not None:
                self._renewed(one[1], renewal, message.ttl_s)
        return self._not_collected(refused)

    def _renewed(self, debt: Debt, renewal: Renewal, ttl_s: float | None) -> None:
        debt.lease_s = debt.lease_s if ttl_s is None else ttl_s
        debt.valid_until = valid_until(renewal.sent_at, debt.lease_s, self._state.settings.lease_margin_s)
        self._expire_at.set(debt.span.span_id, debt.valid_until)
        self._renew_at.bring_forward(debt.creditor_id, renewal.sent_at + renewal_period_s(debt.lease_s))

    def _forget_unanswered(self, now: float) -> None:
        """Renewals that were sent a lease ago or earlier extend nothing any more."""
        lease_s = self._state.settings.lease_s
        old = takewhile(lambda item: now - item[1].sent_at >= lease_s, self._renewals.items())
        for number in [number for number, _ in old]:
            del self._renewals[number]

    def _renew(self, creditor_id: str, now: float) -> None:
        """Renew all that one creditor has lent, and say again which positions it has back but not answered for."""
        debts = self._at[creditor_id].values()
        spans, state = tuple(debt.span for debt in debts), self._state
        keep = max(len(state.running()), state.growing.blocks())  # what came home into it would have to leave again
        room = max(0, state.pool.num_free - keep)
        for first in range(0, len(spans), MAX_ITEMS):
            some, renewal = spans[first : first + MAX_ITEMS], state.next_id()
            self._renewals[renewal] = Renewal(now, creditor_id, frozenset(span.span_id for span in some))
            renew = Renew(renewal=renewal, spans=some, ttl_s=state.settings.lease_s, room_blocks=room)
            state.emit(TellPeer(creditor_id, renew))
        for debt in debts:
            if debt.releasing:
                self._tell_released(debt, debt.releasing)
        self._renew_at.set(creditor_id, now + min(renewal_period_s(debt.lease_s) for debt in debts))

    def _not_collected(self, found: list[tuple[Sequence, Debt]]) -> list[tuple[Sequence, Debt]]:
        """Those that blocks lie in or are to go to; grants that a borrow still collects just go back."""
        placed = []
        for seq, debt in found:
            if debt in seq.placement.debts:
                placed.append((seq, debt))
            else:
                self._state.borrower.forget(debt)
                self._release(debt)
        return placed

    # --- endings

    def abandon(self, seq: Sequence, debt: Debt, most: int | None = None) -> int:
        """Give back positions of a debt that nothing was placed in: the spare ones, and of the others the last ones, as
        far as it takes to give back `most`; their blocks stay where they are. Returns how many."""
        first = debt.filled + debt.num_ready
        if most is not None:
            first = max(first, len(debt.blocks) - max(0, most - debt.num_spare))
        positions = seq.placement.abandon(debt, first)
        self.release_positions(seq, debt, positions)
        return len(positions)

    def release_unused(self, seq: Sequence, debt: Debt, keep: int = 0) -> None:
        """Give back the positions of a debt that no block is to go to, but for `keep` spare ones."""
        self.release_positions(seq, debt, seq.placement.abandon_unused(debt, keep))

    def release_positions(self, seq: Sequence, debt: Debt, positions: list[int]) -> None:
        """Give back what blocks have left, when no step in flight names it; with the last position, the span."""
        self._state.sequences.spare_has_changed(seq)
        if seq.placement.close_if_empty(debt):
            self._remove(debt)
            self._state.deferred.add(seq, [], lambda: self._release(debt))
        elif positions:
            self._state.deferred.add(seq, [], lambda: self._release_part(debt, positions))

    def lose(self, seq: Sequence, debt: Debt) -> int:
        """The creditor or the lease is gone: what was placed there is to be computed again; returns how many blocks.

        The caller takes back the sequence's steps in flight first.
        """
        lost = seq.lose(debt)
        self._state.sequences.spare_has_changed(seq)
        self._release(debt)
        return lost

    def give_up(self, seq: Sequence, debt: Debt, blocks: Iterable[Block]) -> None:
        """Release positions of a span with what lies in them, and keep the others: it is to be computed again.

        The caller takes back the sequence's steps in flight first.
        """
        self.release_positions(seq, debt, seq.give_up(debt, blocks))

    def give_back(self, debts: Iterable[Debt]) -> None:
        """Release grants that were never used."""
        for debt in debts:
            self._release(debt)

    def drop(self, seq: Sequence, now: float) -> None:
        """The sequence ends or starts over: all its memory is free when its last step and the last reader are done."""
        cleared = seq.clear()
        for debt, slots in cleared.being_read:
            self._closing[debt.span.span_id] = Closing(slots, debt.span, debt.creditor_id)
            self._close_at.set(debt.span.span_id, now + max(debt.lease_s, self._state.settings.lease_s))
        for debt in cleared.debts:
            self._remove(debt)
        self._state.deferred.add(None, cleared.slots, lambda: self.give_back(cleared.debts))

    def on_released(self, creditor_id: str, message: Released) -> None:
        """A creditor is done with a span, or positions of it, that we gave back."""
        if message.positions:
            found = self.find(message.span)
            if found is not None and found[1].creditor_id == creditor_id:
                found[1].releasing.difference_update(message.positions)
            return
        closing = self._closing.get(message.span.span_id)
        if closing is not None and closing.creditor_id == creditor_id and closing.span == message.span:
            self._close(message.span.span_id)

    def on_peer_lost(self, instance_id: str) -> None:
        """Nobody reads for a dead creditor, and what it granted is gone."""
        for _, debt in self.at(instance_id):
            self._remove(debt)
        for span_id, closing in list(self._closing.items()):
            if closing.creditor_id == instance_id:
                self._close(span_id)

    @property
    def is_closing(self) -> bool:
        """Whether a creditor may still read memory of a span that was given back."""
        return bool(self._closing)

    def closing_slots(self) -> list[int]:
        """Slots held until their reader is done."""
        return [slot for closing in self._closing.values() for slot in closing.slots]

    def _release(self, debt: Debt) -> None:
        self._remove(debt)
        self._state.emit(TellPeer(debt.creditor_id, Release(span=debt.span)))

    def _release_part(self, debt: Debt, positions: Iterable[int]) -> None:
        if self.find(debt.span) is not None:  # else all of it goes back, or is lost
            debt.releasing.update(positions)
            self._tell_released(debt, positions)

    def _tell_released(self, debt: Debt, positions: Iterable[int]) -> None:
        in_order = tuple(sorted(positions))
        for first in range(0, len(in_order), MAX_ITEMS):
            release = Release(span=debt.span, positions=in_order[first : first + MAX_ITEMS])
            self._state.emit(TellPeer(debt.creditor_id, release))

    def _close(self, span_id: str) -> None:
        closing = self._closing.pop(span_id, None)
        self._close_at.cancel(span_id)
        if closing is not None:
            self._state.deferred.add(None, closing.slots)

    # --- itself

    def validate(self) -> None:
        """The index has just the debts there are; each has its timers."""
        debts = self._state.all_debts()
        assert {id(debt) for _, debt in self._debts.values()} == {id(debt) for debt in debts}, "a debt is in no index"
        assert self._state.num_debts == len(self._debts)
        for span_id, (_, debt) in self._debts.items():
            assert debt.span.span_id == span_id and self._at[debt.creditor_id][span_id] is debt
            assert span_id in self._expire_at and debt.creditor_id in self._renew_at, f"{span_id} has no timer"
        assert sum(len(held) for held in self._at.values()) == len(self._debts)
        assert self._state.owed == self._at.keys(), "a creditor is owed nothing, or not known"
        for timers in (self._renew_at, self._expire_at, self._close_at):
            timers.validate()
