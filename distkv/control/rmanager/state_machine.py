"""The rManager's decisions: one event in, commands out. No I/O, no clock, no tensors.

    rm = RManager(settings, make_decoder, Random(seed))
    commands = rm.handle(event, now)

Everything that happens to an instance's memory and requests passes through `handle`; `validate` checks every invariant
of one instance.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Protocol, assert_never

from distkv.control import commands as c
from distkv.control.loan.borrow import Purpose
from distkv.control.loan.creditor import Creditor
from distkv.control.loan.debts import DebtBook
from distkv.control.loan.homecoming import Homecoming
from distkv.control.loan.moves import Mover
from distkv.control.loan.recall import Recaller
from distkv.control.loan.reclaimer import Reclaimer
from distkv.control.plan.planned_moves import PlannedMoves
from distkv.control.plan.redispatcher import Redispatcher
from distkv.control.plan.swaps import Swapper
from distkv.control.request.lifecycle import RequestLifecycle
from distkv.control.request.output import MakeDecoder
from distkv.control.request.sequence import Sequence
from distkv.control.rmanager.clients import CLIENT_TIMEOUT_S, ClientBook
from distkv.control.rmanager.drain import Drain
from distkv.control.rmanager.explaining import Explainer
from distkv.control.rmanager.heartbeats import Heartbeats
from distkv.control.rmanager.losses import Losses
from distkv.control.rmanager.peers import PeerBook
from distkv.control.rmanager.quiet import Quiet
from distkv.control.rmanager.reporting import instance_status, request_statuses
from distkv.control.rmanager.state import RManagerSettings, RManagerState
from distkv.control.schedule.admission import Admission
from distkv.control.schedule.holdings import Holdings
from distkv.control.schedule.making_room import MakingRoom
from distkv.control.serving.guard import ServingGuard
from distkv.wire.messages import from_worker as fw
from distkv.wire.messages import to_client as tc
from distkv.wire.messages import to_gmanager as tg
from distkv.wire.messages import to_rmanager as tr
from distkv.wire.messages.common import Member
from distkv.wire.messages.counters import Counters
from distkv.wire.messages.envelope import PeerAnswer


class Timed(Protocol):
    """A part with timers."""

    def next_deadline(self) -> float:
        """When it needs a `Tick`, on the clock of `now`; infinity if never."""
        ...


class RManager:
    """State machine of one instance."""

    def __init__(self, settings: RManagerSettings, make_decoder: MakeDecoder, entropy: Random) -> None:
        self.state = RManagerState(settings)
        self._debts = DebtBook(self.state)
        self._mover = Mover(self.state, self._debts)
        self._recaller = Recaller(self.state, self._debts)
        self._swapper = Swapper(self.state, self._debts, self._recaller)
        self._homecoming = Homecoming(self.state, self._debts, self._recaller)
        self._holdings = Holdings(self.state, self._debts, entropy)
        self._making_room = MakingRoom(self.state, self._holdings, entropy)
        self._planned = PlannedMoves(self.state, self._debts, self._holdings, self._recaller, lambda: self.newest_seq)
        self._admission = Admission(self.state, self._debts, self._holdings, self._making_room)
        self._reclaimer = Reclaimer(self.state, self._admission.lacking)
        self._serving = ServingGuard(self.state, self._reclaimer)
        self._creditor = Creditor(self.state, self._reclaimer)
        self._losses = Losses(self.state, self._debts)
        self._requests = RequestLifecycle(self.state, self._debts, make_decoder, entropy, self._losses.in_step)
        self._redispatcher = Redispatcher(self.state, self._requests)
        self._peers = PeerBook(self.state, lambda instance_id: bool(self._debts.at(instance_id)))
        self._heartbeats = Heartbeats(self.state)
        self._clients = ClientBook()
        self._explainer = Explainer(self.state, self._admission)
        self._drain = Drain(self.state, self._requests, self._creditor, self._debts, self._holdings)
        idle = self._recaller, self._swapper, self._reclaimer, self._homecoming, self._admission
        self.quiet = Quiet(self.state, self._heartbeats, self._requests.observe, idle)
        self._compat = ""
        self._timed: tuple[Timed, ...] = (
            self._peers,
            self.state.paths,
            self.state.borrower,
            self._creditor,
            self._reclaimer,
            self._serving,
            self._debts,
            self._admission,
            self._making_room,
            self._requests,
            self._clients,
            self._mover,
            self._heartbeats,
            self._homecoming,
            self._drain,
            self._swapper,
        )

    def handle(self, event: c.Event | c.Decoded, now: float) -> list[c.Command]:
        """Take one event at time `now` (s, monotonic); returns what to do, in order."""
        self.state.histories.now = now
        match event:
            case c.FromWorker():
                self._from_worker(event.message, now)
            case c.Decoded():
                self.quiet.handle(event.results, event.times)
            case c.FromGManager():
                self._from_gmanager(event.message, now)
            case c.PeerAnswered():
                self._losses.peers(self._peers.heard_from(event.peer_id, event.message), now)
                self._peer_answered(event.peer_id, event.message, now)
            case c.PeerRequested():
                self._peer_requested(event, now)
            case c.ClientRequested():
                self._client_requested(event, now)
            case c.Tokenized():
                self._clients.submitted(event.route, now)
                self._requests.submit(event, now)
            case c.Tick():
                self._tick(now)
            case c.PeerDisconnected():
                self._peers.suspect(event.instance_id, now)
            case c.ClientGone():
                self._client_gone(event.route, now)
            case c.DrainRequested():
                self._drain.start(event.timeout_s, now)
            case _:
                assert_never(event)
        self._advance(now)
        self._requests.forget_ended()
        return self._issue()

    def _issue(self) -> list[c.Command]:
        issued, self.state.commands = self.state.commands, []
        return issued

    # --- messages, by the channel they may come by

    def _from_worker(
        self, message: fw.StepResult | fw.Checksummed | fw.Pulled | fw.Linked | fw.Revoked, now: float
    ) -> None:
        match message:
            case fw.StepResult():
                self._heartbeats.on_step(message.compute_s)
                for creditor_id in {lost for result in message.results for lost in result.lost}:
                    self._losses.path_failed(creditor_id, "partials were missing", now)
                self._requests.on_result(message, now)
            case fw.Checksummed():
                self._mover.on_checksummed(message)
            case fw.Pulled():
                if not self._creditor.on_pulled(message):
                    num_home = self._recaller.on_pulled(message, now) or 0
                    self._swapper.on_pulled(message.pull_id, num_home, message.problem, now)
            case fw.Linked():
                self._debts.give_back(self.state.borrower.on_linked(message, now))
            case fw.Revoked():
                num_free = self.state.pool.num_free
                if (loan := self._creditor.on_revoked(message)) is not None:
                    self._swapper.on_returned(loan.debtor_id, self.state.pool.num_free - num_free, now)
            case _:
                assert_never(message)

    def _from_gmanager(self, message: c.ByGManager, now: float) -> None:
        match message:
            case tr.Members():
                self.state.policy = message.policy
                self._losses.peers(self._peers.take(message, now), now)
            case tr.HeartbeatAck():
                self.state.policy = message.policy
                self._heartbeats.on_ack(message)
                self._peers.cursor.announced(message.incarnation, message.version)
                self._redispatcher.on_room(message.room_tokens, now)
                if message.want_join:
                    self._join()
            case tr.Creditors():
                self._redispatcher.on_creditors(message, now)
                self.state.borrower.on_creditors(message, now)
            case tr.MoveKvcache():
                self._homecoming.on_planned(now)
                self._planned.on_move(message, now)
            case tr.Redispatch():
                self._redispatcher.on_redispatch(message, now)
            case tr.Freeze():
                self._swapper.on_freeze(message, now)
            case tr.Swap():
                self._swapper.on_swap(message, now)
            case tr.Thaw():
                self._swapper.on_thaw(message)
            case _:
                assert_never(message)

    def _peer_answered(self, peer_id: str, message: PeerAnswer, now: float) -> None:
        if isinstance(message, tr.Refused | tr.Reclaim) and message.is_draining:
            self._peers.drains(peer_id)
        match message:
            case tr.Granted():
                self._debts.on_granted(peer_id, message, now)
            case tr.Refused():
                self.state.borrower.on_refused(peer_id, message, now)
            case tr.Complete():
                self._mover.on_complete(peer_id, message, now)
            case tr.Renewed():
                self._losses.leases(self._debts.on_renewed(peer_id, message), "its renewal was refused", now)
            case tr.Released():
                self._debts.on_released(peer_id, message)
            case tr.Reclaim():
                self._recaller.on_reclaim(peer_id, message, now)
            case _:
                assert_never(message)

    def _peer_requested(self, event: c.PeerRequested, now: float) -> None:
        sender, route, message = event.claimed_sender, event.route, event.message
        match message:
            case tr.TryMoveKvcache():
                self._creditor.on_try_move(sender, route, message, now)
                self._heartbeats.on_lendable_reported()
            case tr.BlocksReady():
                self._creditor.on_blocks_ready(route, message)
            case tr.Renew():
                self._creditor.on_renew(route, message, now)
            case tr.Release():
                self._creditor.on_release(route, message)
            case _:
                assert_never(message)

    def _client_requested(self, event: c.ClientRequested, now: float) -> None:
        route, message = event.route, event.message
        match message:
            case tr.Cancel():
                self._requests.cancel(message.request_id, now, route)
            case tr.KeepAlive():
                self._clients.alive(route, now)
            case tg.MembersQuery():
                for part in self._peers.members_messages(message):
                    self.state.emit(c.Answer(route, part))
            case tg.Locate():
                self.state.emit(c.Answer(route, self._peers.located(message.request_id)))
            case tg.ExplainQuery():
                self.state.emit(c.Answer(route, self._explainer.answer(message, route, now)))
            case tg.ClusterQuery():
                self.state.emit(c.Answer(route, tc.ClusterState()))
            case _:
                assert_never(message)

    def _join(self) -> None:
        if self._peers.own is not None:
            settings = self.state.settings
            join = tg.Join(
                member=self._peers.own_now(),
                compat=self._compat,
                serves=settings.serves,
                profile=settings.profile,
                swaps=True,
            )
            self.state.emit(c.TellGManager(join))

    def _client_gone(self, route: bytes, now: float) -> None:
        self._clients.gone(route)
        for seq in self.state.sequences.of_route(route):
            self._requests.cancel(seq.request_id, now)

    def _client_silent(self, route: bytes, now: float) -> None:
        """It may be gone, or only have been busy: then it gets the end of its requests."""
        for seq in self.state.sequences.of_route(route):
            self._requests.fail(seq, f"nothing was heard of its client for {CLIENT_TIMEOUT_S:g} s", now)

    # --- time

    def _tick(self, now: float) -> None:
        self._losses.peers(self._peers.tick(now), now)
        self.state.paths.tick(now)
        silent, unusable = self.state.borrower.tick(now)
        self._debts.give_back(unusable)
        for instance_id in silent:
            self._peers.silent(instance_id, now)
        self._creditor.tick(now)
        self._reclaimer.tick(now)
        self._end_leases(now)
        self._debts.tick(now)
        for route in self._clients.silent(now):
            self._client_silent(route, now)
        self._mover.tick(now)
        if self._heartbeats.due(now):
            most = tg.MAX_WAITING_SIZES if self.state.is_planned else 0
            sizes, tokens = self._admission.waiting_sizes(most), self._admission.waiting_tokens(most)
            waiting_blocks, dropped = self._admission.waiting_blocks(), self._planned.dropped()
            self.state.emit(c.TellGManager(self._heartbeats.build(waiting_blocks, sizes, tokens, dropped)))
            if self._peers.cursor.is_behind:
                self.state.emit(c.TellGManager(self._peers.cursor.query()))

    def _end_leases(self, now: float) -> None:
        expired = self._debts.take_expired(now)
        self.state.counters.lease_expiries += len(expired)
        self._losses.leases(expired, "its lease ran out", now)

    def _advance(self, now: float) -> None:
        """Bring everything as far as it can go: grants, losses, admissions, steps, moves."""
        state, sequences = self.state, self.state.sequences
        self._peers.tell_worker()
        self._end_leases(now)  # also without a Tick: what is planned names no span past its lease
        self._requests.tick(now)
        self._swapper.advance(now)
        touched: dict[str, Sequence] = {}
        settled = -1
        while settled != sequences.changes:
            while (borrow := state.borrower.take_finished()) is not None:
                if borrow.purpose is Purpose.PLANNED:
                    self._planned.on_borrowed(borrow)
                else:
                    self._admission.on_borrowed(borrow, now)
            touched |= self._check_places()
            settled = sequences.changes
            self._admission.admit(now)
            touched |= self._check_places()
            while (step := state.scheduler.plan(state.running(), now)) is not None:
                state.emit(c.TellWorker(step))
            self._making_room.advance(now)
            touched |= self._check_places()
        for seq in touched.values():
            self._mover.advance(seq, now)
        self._reclaimer.advance(now)
        self._serving.advance(now)
        self._homecoming.advance(now)
        self._drain.advance(now)

    def _check_places(self) -> dict[str, Sequence]:
        touched: dict[str, Sequence] = {}
        while found := self.state.sequences.take_touched():
            touched |= found
            for seq in found.values():
                self._holdings.check_places(seq)
        return touched

    # --- questions

    def refuse_at_once(self, request_id: str) -> tc.RequestEnded | None:
        """Why no request is taken in now, whatever it is; None if one may be."""
        return self._requests.refuse_at_once(request_id)

    def next_deadline(self) -> float:
        """When this needs a `Tick`, unless something happens before; a `Tick` before that changes nothing."""
        return min(part.next_deadline() for part in self._timed)

    @property
    def newest_seq(self) -> int:
        """Of its heartbeats."""
        return self._heartbeats.newest_seq

    @property
    def is_idle(self) -> bool:
        """Whether no request is here."""
        return not self.state.sequences

    @property
    def most_tokens(self) -> int:
        """Prompt and output of the longest request that can be served here; the KV of its last token is not needed."""
        settings = self.state.settings
        pool_tokens = self.state.cluster_blocks() * settings.block_tokens + 1
        return min(pool_tokens, settings.max_model_len or pool_tokens)

    @property
    def members(self) -> Mapping[str, Member]:
        """The peers by id."""
        return self.state.members

    def introduce(self, member: Member, compat: str) -> list[c.Command]:
        """How this instance presents itself: to the gManager now and whenever one asks, and to who asks it directly."""
        self._peers.own, self._compat = member, compat
        self._join()
        return self._issue()

    def status(self, member: Member, others: Counters) -> tc.Status:
        """The instance as `distkv status` shows it. member: its own entry. others: what counted besides control."""
        return tc.Status(
            instance=instance_status(self.state, member, others),
            requests=request_statuses(self.state),
        )

    def explain(self, query: tg.ExplainQuery, now: float) -> tc.Explained:
        """Why a request lies where it lies. Looks at all that are here."""
        return self._explainer.explain(query.request_id, now)

    def validate(self) -> None:
        """Every invariant of one instance."""
        self.state.validate(self._debts.closing_slots() + self._recaller.slots() + self._swapper.slots())
        self._heartbeats.validate()
        self._peers.validate()
        self._debts.validate()
        self._mover.validate()
        self._reclaimer.validate()
        self._swapper.validate()
        assert not self.state.sequences.touched, "what changed was not looked at"
