"""What comes in by each channel of an rManager, and which part gets it."""

from __future__ import annotations

from typing import assert_never

from distkv.control import commands as c
from distkv.control.rmanager.clients import CLIENT_TIMEOUT_S
from distkv.control.rmanager.parts import Parts
from distkv.control.rmanager.state import RManagerState
from distkv.wire.messages import from_worker as fw
from distkv.wire.messages import to_client as tc
from distkv.wire.messages import to_gmanager as tg
from distkv.wire.messages import to_rmanager as tr
from distkv.wire.messages.envelope import PeerAnswer


class Inboxes:
    """compat: of the instance, as it joins."""

    def __init__(self, state: RManagerState, parts: Parts) -> None:
        self.compat = ""
        self._state, self._parts = state, parts

    def from_worker(
        self, message: fw.StepResult | fw.Checksummed | fw.Pulled | fw.Linked | fw.Revoked, now: float
    ) -> None:
        """What its worker answers."""
        match message:
            case fw.StepResult():
                self._parts.heartbeats.on_step(message.compute_s)
                for creditor_id in sorted({lost for result in message.results for lost in result.lost}):
                    self._parts.losses.path_failed(creditor_id, "partials were missing", now)
                self._parts.requests.on_result(message, now)
            case fw.Checksummed():
                self._parts.mover.on_checksummed(message)
            case fw.Pulled():
                if not self._parts.creditor.on_pulled(message):
                    num_home = self._parts.recaller.on_pulled(message, now) or 0
                    self._parts.swapper.on_pulled(message.pull_id, num_home, message.problem, now)
            case fw.Linked():
                self._parts.debts.give_back(self._state.borrower.on_linked(message, now))
            case fw.Revoked():
                num_free = self._state.pool.num_free
                if (loan := self._parts.creditor.on_revoked(message)) is not None:
                    self._parts.swapper.on_returned(loan.debtor_id, self._state.pool.num_free - num_free, now)
            case _:
                assert_never(message)

    def from_gmanager(self, message: c.ByGManager, now: float) -> None:
        """What a gManager answers, or wants."""
        match message:
            case tr.Members():
                self._state.policy = message.policy
                self._parts.losses.peers(self._parts.peers.take(message, now), now)
            case tr.HeartbeatAck():
                self._state.policy = message.policy
                self._parts.heartbeats.on_ack(message)
                self._parts.peers.cursor.announced(message.incarnation, message.version)
                self._parts.redispatcher.on_room(message.room_tokens)
                if message.want_join:
                    self.join()
            case tr.Creditors():
                self._parts.redispatcher.on_creditors(message, now)
                self._state.borrower.on_creditors(message, now)
            case tr.MoveKvcache():
                self._parts.homecoming.on_planned(now)
                self._parts.planned.on_move(message, now)
            case tr.Redispatch():
                self._parts.redispatcher.on_redispatch(message, now)
            case tr.Freeze():
                self._parts.swapper.on_freeze(message, now)
            case tr.Swap():
                self._parts.swapper.on_swap(message, now)
            case tr.Thaw():
                self._parts.swapper.on_thaw(message)
            case _:
                assert_never(message)

    def peer_answered(self, peer_id: str, message: PeerAnswer, now: float) -> None:
        """A peer answers, or wants back what it lent."""
        if isinstance(message, tr.Refused | tr.Reclaim) and message.is_draining:
            self._parts.peers.drains(peer_id)
        match message:
            case tr.Granted():
                self._parts.debts.on_granted(peer_id, message, now)
            case tr.Refused():
                self._state.borrower.on_refused(peer_id, message, now)
            case tr.Complete():
                self._parts.mover.on_complete(peer_id, message, now)
            case tr.Renewed():
                self._parts.losses.leases(
                    self._parts.debts.on_renewed(peer_id, message), "its renewal was refused", now
                )
            case tr.Released():
                self._parts.debts.on_released(peer_id, message)
            case tr.Reclaim():
                self._parts.recaller.on_reclaim(peer_id, message, now)
            case tr.Vacant():
                self._parts.admission.on_vacant(peer_id, message.request_id, now)
            case _:
                assert_never(message)

    def peer_requested(self, event: c.PeerRequested, now: float) -> None:
        """A peer is debtor here, or wants to be."""
        sender, route, message = event.claimed_sender, event.route, event.message
        match message:
            case tr.TryMoveKvcache():
                self._parts.creditor.on_try_move(sender, route, message, now)
                self._parts.heartbeats.on_lendable_reported()
            case tr.BlocksReady():
                self._parts.creditor.on_blocks_ready(route, message)
            case tr.Renew():
                self._parts.creditor.on_renew(route, message, now)
            case tr.Release():
                self._parts.creditor.on_release(route, message)
            case _:
                assert_never(message)

    def client_requested(self, event: c.ClientRequested, now: float) -> None:
        """A client asks for something, or only says that it is there."""
        route, message = event.route, event.message
        match message:
            case tr.Cancel():
                self._parts.requests.cancel(message.request_id, now, route)
            case tr.KeepAlive():
                self._parts.clients.alive(route, now)
            case tg.MembersQuery():
                for part in self._parts.peers.members_messages(message):
                    self._state.emit(c.Answer(route, part))
            case tg.Locate():
                self._state.emit(c.Answer(route, self._parts.peers.located(message.request_id)))
            case tg.ExplainQuery():
                self._state.emit(c.Answer(route, self._parts.explainer.answer(message, route, now)))
            case tg.ClusterQuery():
                self._state.emit(c.Answer(route, tc.ClusterState()))
            case _:
                assert_never(message)

    def join(self) -> None:
        """Present the instance to the gManager, once it is known how."""
        if self._parts.peers.own is not None:
            settings = self._state.settings
            join = tg.Join(
                member=self._parts.peers.own_now(),
                compat=self.compat,
                serves=settings.serves,
                profile=settings.profile,
                swaps=True,
            )
            self._state.emit(c.TellGManager(join))

    def client_gone(self, route: bytes) -> None:
        """The connection of a client broke."""
        self._parts.clients.gone(route)
        self._parts.requests.end_all_of(route)

    def client_silent(self, route: bytes) -> None:
        """It may be gone, or only have been busy: then it gets the end of its requests."""
        self._parts.requests.end_all_of(route, f"nothing was heard of its client for {CLIENT_TIMEOUT_S:g} s")
