"""What was borrowed and is gone: by a step that missed partials, a lease that ended, or a peer that is lost."""

from __future__ import annotations

from collections.abc import Iterable

from distkv import events
from distkv.control.loan.debtor.debts import DebtBook
from distkv.control.loan.debtor.paths import Path
from distkv.control.request.block import Debt
from distkv.control.request.sequence import Sequence
from distkv.control.rmanager.peers.peers import LostPeer
from distkv.control.rmanager.state import RManagerState


class Losses:
    """Takes what is lost from the sequences it was borrowed for: they compute it again."""

    def __init__(self, state: RManagerState, debts: DebtBook) -> None:
        self._state = state
        self._debts = debts

    def in_step(self, seq: Sequence, creditor_ids: tuple[str, ...]) -> None:
        """A step missed partials of these creditors."""
        debts = [debt for debt in seq.placement.debts if debt.creditor_id in creditor_ids and debt.filled]
        self._lose([(seq, debt) for debt in debts], "partials were missing")

    def leases(self, found: list[tuple[Sequence, Debt]], why: str, now: float) -> None:
        """Leases have ended, or were not renewed."""
        for creditor_id in sorted({debt.creditor_id for _, debt in found}):
            self.path_failed(creditor_id, why, now)
        self._lose(found, why)

    def path_failed(self, creditor_id: str, why: str, now: float) -> None:
        """What lay there could not be used: others are tried first for a while."""
        self._state.paths.failed(Path(self._state.settings.instance_id, creditor_id), why, now)

    def _lose(self, found: list[tuple[Sequence, Debt]], why: str) -> None:
        for seq, debt in found:
            if debt not in seq.placement.debts:
                continue
            self._state.scheduler.take_back(seq)
            blocks = self._debts.lose(seq, debt)
            self._state.sequences.touch(seq)
            self._state.histories.note(seq.request_id, "lost", instance_id=debt.creditor_id, why=why, blocks=blocks)
            self._state.publish(
                events.SpanLost(request_id=seq.request_id, creditor=debt.creditor_id, blocks=blocks, why=why)
            )

    def peers(self, peers: Iterable[LostPeer], now: float) -> None:
        """What was borrowed there is gone. What was lent to them comes back when its lease ends, or when the debtor
        itself is heard in a new incarnation."""
        state = self._state
        for peer in peers:
            state.publish(events.PeerLost(peer=peer.instance_id, restarted=peer.new_incarnation is not None))
            self._lose(self._debts.at(peer.instance_id), "the creditor is gone")
            state.borrower.on_peer_lost(peer.instance_id, now)
            self._debts.on_peer_lost(peer.instance_id)
