"""The rManager at work: messages and time go into the state machine, its commands go out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

import structlog

from distkv.actors.instance.outbound import Outbounds
from distkv.actors.instance.prompt_intake import PromptIntake
from distkv.actors.instance.status import StatusResponder
from distkv.actors.instance.trace import Trace
from distkv.actors.instance.worker_child import WorkerProcess
from distkv.clock import Clock, MonotonicClock
from distkv.config import InstanceConfig
from distkv.control import commands as c
from distkv.control.rmanager.state_machine import RManager
from distkv.errors import ClusterError
from distkv.events import UnexpectedMessage
from distkv.text.tokenizer import Tokenizer
from distkv.wire.channel import ServerChannel
from distkv.wire.envelope_factory import EnvelopeFactory
from distkv.wire.messages import from_worker as fw
from distkv.wire.messages import to_gmanager as tg
from distkv.wire.messages import to_rmanager as tr
from distkv.wire.messages.common import Member
from distkv.wire.messages.envelope import Envelope

TICKS_BETWEEN_CHECKS = 20


class InstanceGone(ClusterError):
    """The instance cannot go on; its process exits non-zero so that a supervisor starts a new life."""


class InstanceActor:
    """One instance. `start` once, then run its readers, `tick` and `ended` side by side."""

    def __init__(
        self,
        config: InstanceConfig,
        core: RManager,
        member: Member,
        compat: str,
        server: ServerChannel,
        worker: WorkerProcess,
        tokenizer: Tokenizer | None,
        trace: Trace,
        clock: Clock | None = None,
    ) -> None:
        self._config = config
        self._core = core
        self._member = member
        self._compat = compat
        self._server = server
        self._worker = worker
        self._trace = trace
        self._clock = clock or MonotonicClock()
        self._envelopes = EnvelopeFactory(config.instance_id)
        self._log = structlog.get_logger()
        self._intake = PromptIntake(tokenizer, self._handle, self._answer)
        self._status = StatusResponder(core, member, worker, server, self._answer)
        self._outbounds: Outbounds | None = None
        self._gone_routes: list[bytes] = []
        self._ticks = 0
        self.joined = asyncio.Event()
        self._end: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def start(self, outbounds: Outbounds) -> None:
        """From now on there are connections to send on."""
        self._outbounds = outbounds
        self.introduce()

    def introduce(self) -> None:
        """Say who we are, to the gManager if one is connected; `joined` is set when it has told everyone."""
        self._carry_out(self._core.introduce(self._member, self._compat), "")

    def drain(self) -> None:
        """Stop taking requests; `ended` returns when everything is finished or given back, or time is up."""
        self._handle(c.DrainRequested(self._config.shutdown_timeout_s), "")

    def tick(self) -> None:
        """Let time pass."""
        now = self._clock.now()
        self._status.tick(now)
        self._handle(c.Tick(), "")
        self._ticks += 1
        if self._ticks % TICKS_BETWEEN_CHECKS == 0 and not self._core.state.sequences:
            self._core.validate()

    async def ended(self) -> int:
        """The exit code, when there is one. Raises InstanceGone when the instance cannot go on."""
        return await asyncio.shield(self._end)

    # --- in

    async def read_server(self) -> None:
        """Messages of clients and peers."""
        while True:
            route, envelope = await self._server.recv()
            match envelope.body:
                case tr.Submit():
                    self._intake.submit(envelope.body, route, envelope.id)
                case tr.Cancel() if self._intake.cancel(envelope.body.request_id, route):
                    pass
                case tr.StatusQuery():
                    self._status.ask(route, envelope.id, self._clock.now())
                case tr.Cancel() | tr.KeepAlive() | tg.MembersQuery() | tg.Locate() as message:
                    self._receive(envelope.sender, envelope, c.ClientRequested(route, message))
                case (tr.TryMoveKvcache() | tr.BlocksReady() | tr.Renew() | tr.Release() | tr.Reclaim()) as message:
                    self._receive(envelope.sender, envelope, c.PeerRequested(envelope.sender, route, message))
                case _:
                    self._unexpected(envelope.sender, envelope)

    async def read_worker(self) -> None:
        """Messages of the own engine worker."""
        while True:
            envelope = await self._worker.recv()
            match envelope.body:
                case fw.WorkerFailed(reason=reason):
                    raise InstanceGone(f"the engine worker failed: {reason}")
                case fw.WorkerStats():
                    self._status.on_stats(envelope.body)
                case fw.StepResult() | fw.Checksummed() | fw.Pulled() | fw.Revoked() as message:
                    if isinstance(message, fw.StepResult):
                        self._status.worker_counters = message.counters
                    self._receive("worker", envelope, c.FromWorker(message))
                case _:
                    self._unexpected("worker", envelope)

    async def watch_worker(self) -> None:
        """Raise InstanceGone when the worker ends."""
        how = await self._worker.ended()
        if not self._end.done():
            raise InstanceGone(f"the engine worker is gone: {how}")

    async def probe_worker(self) -> None:
        """Raise InstanceGone when the worker hangs: what it lends would never come back, what it runs never end."""
        how = await self._worker.hung()
        if not self._end.done():
            raise InstanceGone(f"the engine worker hangs: {how}")

    def on_gmanager_message(self, name: str, envelope: Envelope) -> None:
        """A message on our own connection to a gManager."""
        match envelope.body:
            case tr.JoinRefused(reason=reason):
                if not self._end.done():
                    self._end.set_exception(InstanceGone(f"the gManager refused this instance: {reason}"))
            case tr.Members() | tr.HeartbeatAck() | tr.Creditors() as message:
                self._receive(name, envelope, c.FromGManager(message))
                if isinstance(message, tr.Members) and self._is_in(message):
                    self.joined.set()
            case _:
                self._unexpected(name, envelope)

    def _is_in(self, message: tr.Members) -> bool:
        return any(m.incarnation == self._member.incarnation and m.state == "ready" for m in message.members)

    def on_peer_message(self, peer_id: str, envelope: Envelope) -> None:
        """An answer on our own connection to a peer."""
        match envelope.body:
            case tr.Granted() | tr.Refused() | tr.Complete() | tr.Renewed() | tr.Released() as message:
                self._receive(peer_id, envelope, c.PeerAnswered(peer_id, message))
            case _:
                self._unexpected(peer_id, envelope)

    def on_peer_lost(self, instance_id: str) -> None:
        """The connection to a peer broke."""
        self._handle(c.PeerDisconnected(instance_id), "")

    def _receive(self, sender: str, envelope: Envelope, event: c.Event) -> None:
        self._trace.received(sender, envelope.body)
        self._handle(event, envelope.id)

    def _unexpected(self, sender: str, envelope: Envelope) -> None:
        event = UnexpectedMessage(sender=sender, type=type(envelope.body).__name__)
        self._log.info(event.name, **event.fields())

    # --- out

    def _handle(self, event: c.Event, cause: str) -> None:
        self._decide(event, cause)
        if self._config.validate_state:
            self._core.validate()
        while self._gone_routes:
            self._decide(c.ClientGone(self._gone_routes.pop()), cause)

    def _decide(self, event: c.Event, cause: str) -> None:
        started_s = time.perf_counter()
        commands = self._core.handle(event, self._clock.now())
        self._status.counters.plan_s += time.perf_counter() - started_s
        self._carry_out(commands, cause)

    def _carry_out(self, commands: Iterable[c.Command], cause: str) -> None:
        assert self._outbounds is not None
        members = self._core.state.members
        for command in commands:
            self._trace.sent(command)
            match command:
                case c.TellWorker():
                    self._worker.send(command.body, cause)
                case c.TellGManager():
                    self._outbounds.tell_gmanager(command.body, cause)
                case c.TellPeer():
                    if command.instance_id in members:
                        self._outbounds.tell_peer(members[command.instance_id], command.body, cause)
                case c.Answer():
                    self._answer(command, cause)
                case c.Publish():
                    self._log.info(command.event.name, cause=cause, **command.event.fields())
                case c.Exit():
                    self._log.info("exiting", reason=command.reason)
                    if not self._end.done():
                        self._end.set_result(command.code)
        self._outbounds.keep_only(members)

    def _answer(self, command: c.Answer, cause: str) -> None:
        if not self._server.send(command.route, self._envelopes.wrap(command.body, cause)):
            self._gone_routes.append(command.route)
