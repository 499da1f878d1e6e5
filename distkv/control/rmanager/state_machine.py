"""The rManager's decisions: one event in, commands out. No I/O, no clock, no tensors.

    rm = RManager(settings, make_decoder, Random(seed))
    commands = rm.handle(event, now)

Everything that happens to an instance's memory and requests passes through `handle`; `validate` checks every invariant
of one instance.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import assert_never

from distkv.control import commands as c
from distkv.control.blocks import BlockPool
from distkv.control.loan.debtor.borrow import Purpose
from distkv.control.request.answer.output import MakeDecoder
from distkv.control.request.sequence import Sequence
from distkv.control.rmanager.inboxes import Inboxes
from distkv.control.rmanager.parts import Parts
from distkv.control.rmanager.reports.reporting import instance_status, request_statuses
from distkv.control.rmanager.state import MakePool, RManagerSettings, RManagerState
from distkv.wire.messages import to_client as tc
from distkv.wire.messages import to_gmanager as tg
from distkv.wire.messages.common import Member
from distkv.wire.messages.counters import Counters


class RManager:
    """State machine of one instance."""

    def __init__(
        self,
        settings: RManagerSettings,
        make_decoder: MakeDecoder,
        entropy: Random,
        make_pool: MakePool = BlockPool,
    ) -> None:
        """make_pool: another allocator, for simulations."""
        self.state = RManagerState(settings, make_pool)
        self._parts = Parts(self.state, make_decoder, entropy)
        self._inboxes = Inboxes(self.state, self._parts)
        self.quiet = self._parts.quiet

    def handle(self, event: c.Event, now: float) -> list[c.Command]:
        """Take one event at time `now` (s, monotonic); returns what to do, in order."""
        self.state.histories.now = now
        match event:
            case c.FromWorker():
                self._inboxes.from_worker(event.message, now)
            case c.FromGManager():
                self._inboxes.from_gmanager(event.message, now)
            case c.PeerAnswered():
                self._parts.losses.peers(self._parts.peers.heard_from(event.peer_id, event.message), now)
                self._inboxes.peer_answered(event.peer_id, event.message, now)
            case c.PeerRequested():
                self._inboxes.peer_requested(event, now)
            case c.ClientRequested():
                self._inboxes.client_requested(event, now)
            case c.Tokenized():
                self._parts.clients.submitted(event.route, now)
                self._parts.heartbeats.on_submitted(event.submit.request_id)
                self._parts.requests.submit(event, now)
            case c.Tick():
                self._tick(event.is_behind, now)
            case c.PeerDisconnected():
                self._parts.peers.suspect(event.instance_id, now)
            case c.ClientGone():
                self._inboxes.client_gone(event.route)
            case c.DrainRequested():
                self._parts.drain.start(event.timeout_s, now)
            case _:
                assert_never(event)
        return self._settle(now)

    def continued(self, decoded: c.Decoded) -> c.Continued:
        """Take results that were kept while decode was quiet, see `quiet`: nothing else comes of them."""
        now = decoded.times[-1]
        self.state.histories.now = now
        continued = self.quiet.handle(decoded.results, decoded.times)
        issued = self._settle(now)
        assert not issued, f"not quiet: {issued}"
        return continued

    def _settle(self, now: float) -> list[c.Command]:
        self._advance(now)
        self._parts.requests.forget_ended()
        return self._issue()

    def _issue(self) -> list[c.Command]:
        issued, self.state.commands = self.state.commands, []
        return issued

    # --- time

    def _tick(self, is_behind: bool, now: float) -> None:
        parts = self._parts
        parts.losses.peers(parts.peers.tick(now), now)
        self.state.paths.tick(now)
        silent, unusable = self.state.borrower.tick(now)
        parts.debts.give_back(unusable)
        for instance_id in silent:
            parts.peers.silent(instance_id, now)
        parts.creditor.tick(now)
        parts.reclaimer.tick(now)
        self._end_leases(now)
        parts.debts.tick(now)
        for route in parts.clients.silent(is_behind, now):
            self._inboxes.client_silent(route)
        parts.mover.tick(now)
        if parts.heartbeats.due(now):
            most = tg.MAX_WAITING_SIZES if self.state.is_planned else 0
            sizes, tokens = parts.demand.waiting_sizes(most), parts.demand.waiting_tokens(most)
            waiting_blocks, dropped = parts.demand.waiting_blocks(), parts.planned.dropped()
            self.state.emit(c.TellGManager(parts.heartbeats.build(waiting_blocks, sizes, tokens, dropped)))
            if parts.peers.cursor.is_behind:
                self.state.emit(c.TellGManager(parts.peers.cursor.query()))

    def _end_leases(self, now: float) -> None:
        expired = self._parts.debts.take_expired(now)
        self.state.counters.lease_expiries += len(expired)
        self._parts.losses.leases(expired, "its lease ran out", now)

    def _advance(self, now: float) -> None:
        """Bring everything as far as it can go: grants, losses, admissions, steps, moves."""
        parts, state, sequences = self._parts, self.state, self.state.sequences
        parts.peers.tell_worker()
        self._end_leases(now)  # also without a Tick: what is planned names no span past its lease
        parts.requests.tick(now)
        parts.swapper.advance(now)
        touched: dict[str, Sequence] = {}
        settled = -1
        while settled != sequences.changes:
            while (borrow := state.borrower.take_finished()) is not None:
                if borrow.purpose is Purpose.PLANNED:
                    parts.planned.on_borrowed(borrow)
                else:
                    parts.admission.on_borrowed(borrow, now)
            touched |= self._check_places()
            settled = sequences.changes
            parts.admission.admit(now)
            touched |= self._check_places()
            while (step := state.scheduler.plan(state.running(), now)) is not None:
                state.emit(c.TellWorker(step))
            parts.making_room.advance(now)
            touched |= self._check_places()
        for seq in touched.values():
            parts.mover.advance(seq, now)
        parts.reclaimer.advance(now)
        parts.serving.advance(now)
        parts.creditor.advance(now)
        parts.homecoming.advance(now)
        parts.drain.advance(now)

    def _check_places(self) -> dict[str, Sequence]:
        touched: dict[str, Sequence] = {}
        while found := self.state.sequences.take_touched():
            touched |= found
            for seq in found.values():
                self._parts.holdings.check_places(seq)
        return touched

    # --- questions

    def refuse_at_once(self, request_id: str) -> tc.RequestEnded | None:
        """Why no request is taken in now, whatever it is; None if one may be."""
        return self._parts.requests.refusals.at_once(request_id)

    def next_deadline(self) -> float:
        """When this needs a `Tick`, unless something happens before; a `Tick` before that changes nothing."""
        return self._parts.next_deadline()

    @property
    def newest_seq(self) -> int:
        """Of its heartbeats."""
        return self._parts.heartbeats.newest_seq

    @property
    def is_idle(self) -> bool:
        """Whether no request is here."""
        return not self.state.sequences

    def most_tokens(self, now: float) -> int:
        """Prompt and output of the longest request that can be served here, or could a short while ago; the KV of its
        last token is not needed."""
        settings = self.state.settings
        pool_tokens = self._parts.requests.refusals.lately_blocks(now) * settings.block_tokens + 1
        return min(pool_tokens, settings.max_model_len or pool_tokens)

    @property
    def members(self) -> Mapping[str, Member]:
        """The peers by id."""
        return self.state.members

    def introduce(self, member: Member, compat: str) -> list[c.Command]:
        """How this instance presents itself: to the gManager now and whenever one asks, and to who asks it directly."""
        self._parts.peers.own, self._inboxes.compat = member, compat
        self.state.members.place_on("" if member.data is None else member.data.host_key)
        self._inboxes.join()
        return self._issue()

    def status(self, member: Member, others: Counters) -> tc.Status:
        """The instance as `distkv status` shows it. member: its own entry. others: what counted besides control."""
        return tc.Status(
            instance=instance_status(self.state, member, others),
            requests=request_statuses(self.state),
        )

    def explain(self, query: tg.ExplainQuery, now: float) -> tc.Explained:
        """Why a request lies where it lies. Looks at all that are here."""
        return self._parts.explainer.explain(query.request_id, now)

    def validate(self) -> None:
        """Every invariant of one instance."""
        self.state.validate(self._parts.slots_given_up())
        self._parts.validate()
        assert not self.state.sequences.touched, "what changed was not looked at"
