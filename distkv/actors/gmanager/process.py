"""The gManager process: a socket, a clock, and the state machine between them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from typing import Any

import structlog

from distkv import events
from distkv.actors.task_scope import every, task_scope
from distkv.clock import Clock, MonotonicClock
from distkv.config import GManagerConfig, parse_address
from distkv.control.cluster.gmanager import GManager
from distkv.control.commands import Answer, Command, GManagerRequested, Publish, Tick
from distkv.errors import ConfigError
from distkv.wire.address import join_host_port
from distkv.wire.channel import ServerChannel
from distkv.wire.envelope_factory import EnvelopeFactory
from distkv.wire.inboxes import GMANAGER_PORT
from distkv.wire.messages.common import Member
from distkv.wire.messages.envelope import ToGManager
from distkv.wire.messages.to_gmanager import Join
from distkv.wire.messages.to_rmanager import JoinRefused

TICK_S = 0.1


class GManagerActor:
    """Feeds messages and time to `control.GManager` and sends what it answers."""

    def __init__(self, config: GManagerConfig, server: ServerChannel[ToGManager], clock: Clock) -> None:
        self._server = server
        self._clock = clock
        self._envelopes = EnvelopeFactory("gmanager")
        self._log = structlog.get_logger()
        self._core = GManager(config.membership)
        self._validates = config.validate_state

    async def serve(self) -> None:
        """Answer messages until cancelled."""
        while True:
            route, envelope = await self._server.recv()
            if isinstance(envelope.body, Join) and (reason := self._bad_address(envelope.body.member)):
                refused = events.JoinRefused(instance=envelope.body.member.instance_id, reason=reason)
                self._carry_out([Answer(route, JoinRefused(reason=reason)), Publish(refused)], envelope.id)
                continue
            self._handle(GManagerRequested(envelope.sender, route, envelope.body), envelope.id)

    def tick(self) -> None:
        """Let time pass for the state machine."""
        self._handle(Tick(), "")

    @staticmethod
    def _bad_address(member: Member) -> str:
        """Why nobody can connect to the address that an instance gives as its own; empty if it is one."""
        try:
            is_plain = parse_address(member.address) == member.address
        except ConfigError:
            is_plain = False
        return "" if is_plain else f"{member.address!r} is no address such as tcp://127.0.0.1:7070"

    def _handle(self, event: GManagerRequested | Tick, cause: str) -> None:
        now = self._clock.now()
        commands = self._core.handle(event, now)
        if self._validates:
            self._core.validate(now)
        self._carry_out(commands, cause)

    def _carry_out(self, commands: Iterable[Command], cause: str) -> None:
        for command in commands:
            match command:
                case Answer():
                    self._server.send(command.route, self._envelopes.wrap(command.body, cause))
                case Publish():
                    self._log.info(command.event.name, cause=cause, **command.event.fields())
                case _:
                    raise AssertionError(f"a gManager never issues {command}")


async def run(config: GManagerConfig, ready: Callable[[dict[str, Any]], None], stop: asyncio.Event) -> int:
    """Serve until `stop`; returns the exit code. Raises ConfigError when the address cannot be used."""
    address = f"tcp://{join_host_port(config.host, config.port)}"
    async with (
        ServerChannel.bind(address, GMANAGER_PORT, name="gmanager", insecure=config.insecure) as server,
        task_scope() as tasks,
    ):
        actor = GManagerActor(config, server, MonotonicClock())
        tasks.create_task(actor.serve(), name="serve")
        tasks.create_task(every(TICK_S, actor.tick), name="tick")
        ready({"address": server.address, "pid": os.getpid()})
        await stop.wait()
    structlog.get_logger().info("stopped")
    return 0
