"""The rManager at work: messages and time go into the state machine, its commands go out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import assert_never

import msgspec
import structlog

from distkv import events
from distkv.actors.alarm import Alarm
from distkv.actors.event_lines import EventLines
from distkv.actors.instance.connections import GManagerConnections, PeerConnections
from distkv.actors.instance.grammars import Grammars
from distkv.actors.instance.prompt_intake import PromptIntake
from distkv.actors.instance.status_responder import StatusResponder
from distkv.actors.instance.step_chunks import StepChunks
from distkv.actors.instance.worker_group import WorkerGroup
from distkv.actors.trace import Trace
from distkv.actors.unsent import UnsentMessages
from distkv.clock import Clock, MonotonicClock
from distkv.config import InstanceConfig
from distkv.control import commands as c
from distkv.control.recording.records import Introduced
from distkv.control.rmanager.state_machine import RManager
from distkv.errors import ClusterError, WireError
from distkv.text.tokenizer import Tokenizer
from distkv.wire.channel import ServerChannel
from distkv.wire.envelope_factory import EnvelopeFactory
from distkv.wire.messages import from_worker as fw
from distkv.wire.messages import to_client as tc
from distkv.wire.messages import to_gmanager as tg
from distkv.wire.messages import to_rmanager as tr
from distkv.wire.messages.common import Member
from distkv.wire.messages.envelope import FromWorker, GManagerAnswer, PeerAnswer, ToRManager

TICKS_BETWEEN_CHECKS = 20
REFUSED_FOR_S = 5.0
"""An instance that may not join tries again for so long before it ends."""


class InstanceGone(ClusterError):
    """The instance cannot go on; its process exits non-zero so that a supervisor starts a new one."""


class InstanceActor:
    """One instance: what comes by each of its channels becomes an event, and commands go out by them."""

    def __init__(
        self,
        config: InstanceConfig,
        core: RManager,
        member: Member,
        compat: str,
        server: ServerChannel[ToRManager],
        gmanagers: GManagerConnections,
        worker: WorkerGroup,
        tokenizer: Tokenizer | None,
        trace: Trace,
        envelopes: EnvelopeFactory,
        tasks: asyncio.TaskGroup,
        clock: Clock | None = None,
    ) -> None:
        """`tasks` ends with the actor; the channels and the worker are the caller's."""
        self._config = config
        self._core = core
        self._member = member
        self._compat = compat
        self._server = server
        self._gmanagers = gmanagers
        self._worker = worker
        self._trace = trace
        self._clock = clock or MonotonicClock()
        self._envelopes = envelopes
        self._tasks = tasks
        self._log = structlog.get_logger()
        self._peers = PeerConnections(envelopes, tasks, self.on_peer, self.on_peer_lost)
        self._grammars = Grammars(worker.send)
        self._intake = PromptIntake(
            tokenizer,
            tasks,
            self._handle,
            self._answer,
            lambda: core.most_tokens(self._clock.now()),
            core.state.settings.vocab_size,
            self._grammars,
        )
        self._status = StatusResponder(core, member, worker, self._malformed, self._answer)
        self._follow_ups: list[c.Event] = []
        self._unsent = UnsentMessages()
        self._lines = EventLines(self._clock)
        self._alarm = Alarm(self._clock, self._next_deadline, self.tick)
        self._ticks = 0
        self._last_refusal = ""
        self._refused_since: float | None = None
        self.joined = asyncio.Event()
        self._end: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def start(self) -> None:
        """Serve from now on, until `tasks` end."""
        self._gmanagers.on_message, self._gmanagers.on_connected = self.on_gmanager, self.introduce
        self._tasks.create_task(self._read_server(), name="read server")
        self._tasks.create_task(self._read_worker(), name="read worker")
        self._tasks.create_task(self._alarm.run(), name="alarm")
        self._worker.watch(self._tasks)
        self.introduce()

    def close(self) -> None:
        """Disconnect from peers; what was sent gets a moment to leave."""
        self._lines.close()
        self._peers.close()
        self._grammars.close()

    def introduce(self) -> None:
        """Say who we are, to the gManager if one is connected; `joined` is set when it has sent that to all."""
        commands = self._core.introduce(self._member, self._compat)
        self._trace.decided(Introduced(self._member, self._compat), self._clock.now(), commands)
        self._carry_out(commands, "")

    def drain(self) -> None:
        """Stop taking requests; `ended` returns when everything is finished or given back, or time is up."""
        self._handle(c.DrainRequested(self._config.shutdown_timeout_s), "")
        self._intake.close(f"instance {self._member.instance_id} is draining")

    def tick(self) -> None:
        """Let time pass."""
        self._status.tick(self._clock.now())
        self._handle(c.Tick(is_behind=self._server.has_waiting()), "")
        self._ticks += 1
        if self._ticks % TICKS_BETWEEN_CHECKS == 0 and self._core.is_idle:
            self._core.validate()

    async def ended(self) -> int:
        """The exit code, when there is one. Raises InstanceGone when the instance cannot go on."""
        return await self._end

    # --- in, one method per channel

    async def _read_server(self) -> None:
        while True:
            route, envelope = await self._server.recv()
            self.on_server(route, envelope.sender, envelope.body, envelope.id)

    async def _read_worker(self) -> None:
        while True:
            envelope = await self._worker.recv()
            self.on_worker(envelope.body, envelope.id)

    def on_server(self, route: bytes, claimed_sender: str, message: ToRManager, cause: str) -> None:
        """By the own port: of a client, or of a peer that says to be `claimed_sender`."""
        match message:
            case tr.Submit() if (ended := self._core.refuse_at_once(message.request_id)) is not None:
                self._answer(c.Answer(route, ended), cause)
            case tr.Submit():
                self._intake.submit(message, route, cause)
            case tr.StatusQuery():
                self._status.query(route, cause, self._clock.now())
                self._alarm.check()
            case tr.Cancel() if self._intake.cancel(message.request_id, route):
                pass
            case tr.Cancel() | tr.KeepAlive() | tg.MembersQuery() | tg.Locate() | tg.ExplainQuery() | tg.ClusterQuery():
                self._handle(c.ClientRequested(route, message), cause)
            case tr.TryMoveKvcache() | tr.BlocksReady() | tr.Renew() | tr.Release():
                self._handle(c.PeerRequested(claimed_sender, route, message), cause)
            case _:
                assert_never(message)

    def on_worker(self, message: FromWorker, cause: str) -> None:
        """By the pipe of the own engine worker."""
        match message:
            case fw.WorkerFailed(reason=reason):
                raise InstanceGone(f"the engine worker failed: {reason}")
            case fw.WorkerStats():
                self._status.on_stats(message, self._clock.now())
                self._alarm.check()
            case fw.Compiled():
                self._grammars.compiled(message)
            case fw.StepResult() | fw.Checksummed() | fw.Pulled() | fw.Linked() | fw.Revoked():
                if isinstance(message, fw.StepResult):
                    self._status.worker_counters = message.counters
                self._handle(c.FromWorker(message), cause)
            case fw.WorkerReady():
                raise InstanceGone("the engine worker is ready for a second time")
            case _:
                assert_never(message)

    def on_gmanager(self, message: GManagerAnswer, cause: str) -> None:
        """By an own connection to a gManager."""
        if isinstance(message, tr.JoinRefused):
            self._join_refused(message)
            return
        self._handle(c.FromGManager(message), cause)
        if isinstance(message, tr.Members):
            self._peers.keep_only(self._core.members)
        if isinstance(message, tr.Members) and any(
            m.incarnation == self._member.incarnation and m.state == "ready" for m in message.members
        ):
            self.joined.set()
            self._last_refusal, self._refused_since = "", None

    @property
    def is_refused(self) -> bool:
        """Whether a gManager has not let it join so far, which it tries again for a while."""
        return self._refused_since is not None

    def _join_refused(self, refused: tr.JoinRefused) -> None:
        """One that joined before goes on, unless another process serves under its name, and joins with a later
        heartbeat. One that never joined tries again too, for a while: a gManager that has just started may know only a
        stranger, and a former process of its name may be about to end."""
        now = self._clock.now()
        if self._refused_since is None:
            self._refused_since = now
        if refused.reason != self._last_refusal:
            self._log.warning("a gManager does not let this instance join", reason=refused.reason)
        self._last_refusal = refused.reason
        may_go_on = self.joined.is_set() and not refused.is_taken
        if not may_go_on and now >= self._refused_since + REFUSED_FOR_S and not self._end.done():
            self._end.set_exception(InstanceGone(f"the gManager refused this instance: {refused.reason}"))

    def on_peer(self, peer_id: str, message: PeerAnswer, cause: str) -> None:
        """By an own connection to a peer."""
        self._handle(c.PeerAnswered(peer_id, message), cause)

    def on_peer_lost(self, instance_id: str) -> None:
        """The connection to a peer broke."""
        self._handle(c.PeerDisconnected(instance_id), "")

    def _malformed(self) -> int:
        return self._server.malformed + self._gmanagers.malformed + self._peers.malformed

    # --- out

    def _handle(self, event: c.Event, cause: str) -> None:
        self._decide(event, cause)
        if self._config.validate_state:
            self._core.validate()
        while self._follow_ups:
            self._decide(self._follow_ups.pop(), cause)
        self._alarm.check()

    def _next_deadline(self) -> float:
        return min(self._core.next_deadline(), self._status.next_deadline())

    def _decide(self, event: c.Event, cause: str) -> None:
        now, started_s = self._clock.now(), time.perf_counter()
        try:
            commands = self._core.handle(event, now)
        except Exception:
            self._trace.decided(event, now, None)
            raise
        self._status.counters.plan_s += time.perf_counter() - started_s
        self._trace.decided(event, now, commands)
        self._carry_out(commands, cause)

    def _carry_out(self, commands: Iterable[c.Command], cause: str) -> None:
        members = self._core.members
        chunks = StepChunks()
        for command in commands:
            match command:
                case c.TellWorker():
                    self._worker.send(command.body, cause)
                case c.TellGManager(body=tg.Join() as join):
                    belongs = self.joined.is_set() and not self.is_refused
                    self._gmanagers.send(msgspec.structs.replace(join, belongs=belongs), cause)
                case c.TellGManager():
                    self._gmanagers.send(command.body, cause)
                case c.TellPeer():
                    if command.instance_id in members:
                        self._peers.send(members[command.instance_id], command.body, cause)
                case c.Answer():
                    for answer in chunks.add(command):
                        self._answer(answer, cause)
                case c.Publish():
                    self._lines.publish(command.event, cause)
                    if isinstance(command.event, events.PeerLost):
                        self._peers.keep_only(members)
                case c.ReleaseGrammar():
                    self._grammars.release(command.grammar_id)
                case c.Exit():
                    self._log.info("exiting", reason=command.reason)
                    if not self._end.done():
                        self._end.set_result(command.code)
                case _:
                    assert_never(command)
        for answer in chunks.rest():
            self._answer(answer, cause)

    def _answer(self, command: c.Answer, cause: str) -> None:
        try:
            is_there = self._server.send(command.route, self._envelopes.wrap(command.body, cause))
        except WireError as error:
            self._answer_unsent(command, error, cause)
            return
        if not is_there:
            self._follow_ups.append(c.ClientGone(command.route))

    def _answer_unsent(self, command: c.Answer, error: WireError, cause: str) -> None:
        """What no client would read fails its own request or query, and nothing else on that connection."""
        route, body = command.route, command.body
        if isinstance(body, tc.TokenChunks):
            for chunk in body.chunks:
                self._answer(c.Answer(route, chunk), cause)
            return
        self._unsent.report(body, error)
        if isinstance(body, tc.TokenChunk):
            ended = tc.RequestEnded(
                request_id=body.request_id, kind="failed", reason=f"an answer cannot be sent: {error}"
            )
            self._answer(c.Answer(route, ended), cause)
            self._follow_ups.append(c.ClientRequested(route, tr.Cancel(request_id=body.request_id)))
        elif isinstance(body, tc.Status) and body.requests:
            self._answer(c.Answer(route, tc.Status(instance=body.instance)), cause)
