"""The gManager process: a socket, a clock, and the state machine between them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import structlog

from distkv import events
from distkv.actors.alarm import Alarm
from distkv.actors.event_lines import EventLines
from distkv.actors.gmanager.acks import Acks
from distkv.actors.gmanager.outbox import Outbox
from distkv.actors.task_scope import callback_errors, task_scope
from distkv.actors.trace import Trace
from distkv.actors.unsent import UnsentMessages
from distkv.clock import Clock, MonotonicClock
from distkv.config import GManagerConfig, parse_address
from distkv.control.cluster.gmanager import GManager
from distkv.control.commands import Answer, Broadcast, GManagerCommand, GManagerRequested, Publish, Tick
from distkv.errors import ConfigError, WireError
from distkv.log.line_limit import LineLimit
from distkv.wire.address import join_host_port
from distkv.wire.channel import ServerChannel
from distkv.wire.envelope_factory import EnvelopeFactory
from distkv.wire.inboxes import GMANAGER_PORT
from distkv.wire.messages.common import Member
from distkv.wire.messages.envelope import Envelope, ToGManager
from distkv.wire.messages.to_gmanager import Join
from distkv.wire.messages.to_rmanager import HeartbeatAck, JoinRefused
from distkv.wire.sockets.flood_guard import FloodGuard
from distkv.wire.sockets.options import read_when_others_rest

MAX_MEMBER_BYTES = 2048
"""Several times what an entry needs; a part of the list then fits a message."""
MAX_RECEIVED_BYTES = 8 * 2**20
"""More than the longest heartbeat. One that is mostly unknown fields takes the loop 5 ms for each MiB."""
QUOTA_BYTES = 32 * 2**20
"""By one connection in a second."""
TICK_REST_S = 0.005
"""Among thousands somebody is due to be looked at every moment."""
READ_FIRST_S = 0.2
READ_FIRST_TURNS = 4
"""Where messages always wait, time passes after so long, and so many messages for each connection: they are read in
turn, so that of each that had something to say something was read."""


class GManagerActor:
    """Feeds messages and time to `control.GManager` and sends what it answers."""

    def __init__(
        self,
        config: GManagerConfig,
        server: ServerChannel[ToGManager],
        clock: Clock,
        incarnation: int = 1,
        trace: Trace | None = None,
    ) -> None:
        """incarnation: grows with every start of this gManager, > 0. trace: the caller's, of this gManager. Created
        under the running loop."""
        self._server = server
        self._clock = clock
        self._envelopes = EnvelopeFactory("gmanager")
        self._outbox = Outbox(server, self._envelopes)
        self._acks = Acks(server, self._envelopes)
        self._lines = EventLines(clock)
        self._core = GManager(config.membership, config.advice, incarnation=incarnation)
        self._trace = trace or Trace(None, "gmanager")
        self._trace.gmanager_begins(config, incarnation)
        self._validates = config.validate_state
        self._no_addresses = LineLimit()
        self._unsent = UnsentMessages()
        self._reads_first_since: tuple[float, int] | None = None
        self._alarm = Alarm(clock, self._core.next_deadline, self.tick, TICK_REST_S)

    async def serve(self) -> None:
        """Answer messages until cancelled."""
        await self._server.deliver(self._take, self._rest)

    async def ticking(self) -> None:
        """Let time pass for the state machine whenever it needs it, until cancelled."""
        await self._alarm.run()

    def tick(self) -> None:
        """Time has come for something. If messages wait to be read they are first, or some of everybody where there is
        no end of them."""
        if not self._server.has_waiting() or self._has_read_of_all():
            self._reads_first_since = None
            self._handle(Tick(), "")
            self._alarm.check()

    def _rest(self) -> None:
        if self._reads_first_since is not None and not self._server.has_waiting():
            self._reads_first_since = None
        self._alarm.check()

    def _has_read_of_all(self) -> bool:
        now, taken = self._clock.now(), self._server.taken
        if self._reads_first_since is None:
            self._reads_first_since = now, taken
        since, taken_before = self._reads_first_since
        return now - since >= READ_FIRST_S and taken - taken_before >= READ_FIRST_TURNS * self._server.num_connections

    def close(self) -> None:
        """Send no more, and write the lines that wait."""
        self._outbox.close()
        self._acks.close()
        self._lines.close()

    def _take(self, route: bytes, envelope: Envelope[ToGManager]) -> None:
        body = envelope.body
        if isinstance(body, Join) and (reason := self._bad_member(body.member)):
            self._refuse(route, body.member.instance_id, reason, envelope.id)
        else:
            self._handle(GManagerRequested(envelope.sender, route, body), envelope.id)

    @staticmethod
    def _bad_member(member: Member) -> str:
        """Why an entry cannot be listed: nobody can connect to its address, or it is too long; empty if it can be."""
        size_bytes = len(msgspec.msgpack.encode(member))
        if size_bytes > MAX_MEMBER_BYTES:
            return f"its entry in the member list takes {size_bytes} bytes, more than {MAX_MEMBER_BYTES}"
        try:
            is_plain = parse_address(member.address) == member.address
        except ConfigError:
            is_plain = False
        return "" if is_plain else f"{member.address!r} is no address such as tcp://127.0.0.1:7070"

    def _refuse(self, route: bytes, instance_id: str, reason: str, cause: str) -> None:
        commands: list[GManagerCommand] = [Answer(route, JoinRefused(reason=reason))]
        if (left_out := self._no_addresses.admit(self._clock.now())) is not None:
            commands.append(Publish(events.JoinRefused(instance=instance_id, reason=reason, left_out=left_out)))
        self._carry_out(commands, cause)

    def _handle(self, event: GManagerRequested | Tick, cause: str) -> None:
        now = self._clock.now()
        try:
            commands = self._core.handle(event, now)
        except Exception:
            self._trace.decided(event, now, None)
            raise
        self._trace.decided(event, now, commands)
        if self._validates:
            self._core.validate()
        self._carry_out(commands, cause)

    def _carry_out(self, commands: Iterable[GManagerCommand], cause: str) -> None:
        for command in commands:
            match command:
                case Answer(body=HeartbeatAck(want_full=False, want_join=False) as ack):
                    self._acks.put(command.route, ack, cause)
                case Answer():
                    self._acks.send_now(command.route)
                    self._answer(command, cause)
                case Broadcast():
                    self._outbox.put(command, cause)
                case Publish():
                    self._lines.publish(command.event, cause)

    def _answer(self, command: Answer, cause: str) -> None:
        try:
            self._server.send(command.route, self._envelopes.wrap(command.body, cause))
        except WireError as error:
            self._unsent.report(command.body, error)


async def run(config: GManagerConfig, ready: Callable[[dict[str, Any]], None], stop: asyncio.Event) -> int:
    """Serve until `stop`; returns the exit code. Raises ConfigError when the address cannot be used."""
    address = f"tcp://{join_host_port(config.host, config.port)}"
    read_when_others_rest()
    with Trace(config.trace_file, "gmanager") as trace:
        async with (
            ServerChannel.bind(
                address,
                GMANAGER_PORT,
                name="gmanager",
                max_received_bytes=MAX_RECEIVED_BYTES,
                insecure=config.insecure,
                guard=FloodGuard(size_bytes=QUOTA_BYTES),
            ) as server,
            task_scope() as tasks,
        ):
            actor = GManagerActor(config, server, MonotonicClock(), time.time_ns(), trace)
            try:
                tasks.create_task(callback_errors(), name="callback errors")
                tasks.create_task(actor.serve(), name="serve")
                tasks.create_task(actor.ticking(), name="ticking")
                ready({"address": server.address, "pid": os.getpid()})
                await stop.wait()
            finally:
                actor.close()
    structlog.get_logger().info("stopped")
    return 0
