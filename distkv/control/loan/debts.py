"""The debtor's book: spans it owes, their leases, and how they end: given back, given up, or lost."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from distkv.control.commands import TellPeer
from distkv.control.request.block import Debt
from distkv.control.request.sequence import Sequence
from distkv.control.rmanager.state import RManagerState
from distkv.wire.messages.common import SpanRef
from distkv.wire.messages.to_rmanager import Granted, Release, Renew, Renewed


@dataclass(slots=True, eq=False)
class Closing:
    """A span given back whose creditor may still be reading `slots` of ours."""

    slots: list[int]
    span: SpanRef
    creditor_id: str
    until: float


class DebtBook:
    """Debts of all sequences of one instance."""

    def __init__(self, state: RManagerState) -> None:
        self._state = state
        self._renewals: dict[int, tuple[float, str, tuple[SpanRef, ...]]] = {}
        self._renewed_at = -math.inf
        self._closing: dict[str, Closing] = {}

    def find(self, span: SpanRef) -> tuple[Sequence, Debt] | None:
        """The sequence and debt of a span in this epoch."""
        for seq in self._state.sequences.values():
            for debt in seq.placement.debts:
                if debt.span == span:
                    return seq, debt
        return None

    # --- leases

    def tick(self, now: float) -> list[tuple[Sequence, Debt]]:
        """Renew leases that are due; returns debts whose lease has run out."""
        debts = self._state.all_debts()
        shortest_s = min((debt.lease_s for debt in debts), default=self._state.settings.lease_s)
        if now >= self._renewed_at + shortest_s / 4:
            self._renewed_at = now
            self._renew(debts, now)
        for span_id, closing in list(self._closing.items()):
            if now >= closing.until:
                self._close(span_id)
        return [
            (seq, debt)
            for seq in self._state.sequences.values()
            for debt in seq.placement.debts
            if now >= debt.valid_until
        ]

    def on_renewed(self, creditor_id: str, message: Renewed) -> list[tuple[Sequence, Debt]]:
        """Leases hold on from when the renewal was sent; returns debts whose renewal was refused."""
        renewal = self._renewals.get(message.renewal)
        if renewal is None or renewal[1] != creditor_id:
            return []
        sent_at, _, spans = self._renewals.pop(message.renewal)
        refused = [span for span in message.refused if span in spans]
        held = set(_keys(spans)) - set(_keys(refused))
        for debt in self._state.all_debts():
            if (debt.span.span_id, debt.span.epoch) in held:
                debt.valid_until = sent_at + debt.lease_s - self._state.settings.lease_margin_s
        return [found for span in refused if (found := self.find(span)) is not None]

    def _renew(self, debts: Iterable[Debt], now: float) -> None:
        lease_s = self._state.settings.lease_s
        self._renewals = {k: v for k, v in self._renewals.items() if now - v[0] < lease_s}
        by_creditor: dict[str, list[SpanRef]] = {}
        for debt in debts:
            by_creditor.setdefault(debt.creditor_id, []).append(debt.span)
        for creditor_id, spans in by_creditor.items():
            renewal = self._state.next_id()
            self._renewals[renewal] = (now, creditor_id, tuple(spans))
            self._state.emit(TellPeer(creditor_id, Renew(renewal=renewal, spans=tuple(spans), ttl_s=lease_s)))

    # --- endings

    def abandon(self, seq: Sequence, debt: Debt) -> None:
        """Give up the positions of a debt that nothing was placed in; their blocks stay where they are, if anywhere."""
        seq.placement.abandon_rest(debt)
        self.release_if_empty(seq, debt)

    def lose(self, seq: Sequence, debt: Debt) -> int:
        """The creditor or the lease is gone: what was placed there is to be computed again; returns how many blocks.

        The caller takes back the sequence's steps in flight first.
        """
        lost = seq.lose(debt)
        self._state.emit(TellPeer(debt.creditor_id, Release(span=debt.span)))
        return lost

    def release_if_empty(self, seq: Sequence, debt: Debt) -> None:
        """Give a span back, when no step in flight names it, once no block lies in it or is to go there."""
        if seq.placement.close_if_empty(debt):
            self._state.defer(seq, [], lambda: self._release(debt))

    def give_back(self, debts: Iterable[Debt]) -> None:
        """Release grants that were never used."""
        for debt in debts:
            self._release(debt)

    def give_back_unwanted(self, creditor_id: str, granted: Granted) -> None:
        """A grant came after nobody waited for it any more."""
        span = SpanRef(span_id=granted.span_id, epoch=granted.epoch)
        self._state.emit(TellPeer(creditor_id, Release(span=span)))

    def drop(self, seq: Sequence, now: float) -> None:
        """The sequence ends or starts over: all its memory is free when its last step and the last reader are done."""
        cleared = seq.clear()
        until = now + self._state.settings.lease_s
        for debt, slots in cleared.being_read:
            self._closing[debt.span.span_id] = Closing(slots, debt.span, debt.creditor_id, until)
        self._state.defer(None, cleared.slots, lambda: self.give_back(cleared.debts))

    def on_released(self, creditor_id: str, span: SpanRef) -> None:
        """A creditor is done with a span we gave back."""
        closing = self._closing.get(span.span_id)
        if closing is not None and closing.creditor_id == creditor_id and closing.span == span:
            self._close(span.span_id)

    def on_peer_lost(self, instance_id: str) -> None:
        """Nobody reads for a dead creditor."""
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
        self._state.emit(TellPeer(debt.creditor_id, Release(span=debt.span)))

    def _close(self, span_id: str) -> None:
        closing = self._closing.pop(span_id, None)
        if closing is not None:
            self._state.defer(None, closing.slots)


def _keys(spans: Iterable[SpanRef]) -> list[tuple[str, object]]:
    return [(span.span_id, span.epoch) for span in spans]
