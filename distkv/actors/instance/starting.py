"""What an instance answers while its worker still loads: that it is starting."""

from __future__ import annotations

import asyncio
import os

from distkv.actors.instance.outbound import Outbound
from distkv.actors.ticking import every
from distkv.config import InstanceConfig
from distkv.wire.channel import ServerChannel
from distkv.wire.envelope_factory import EnvelopeFactory
from distkv.wire.messages.common import Member
from distkv.wire.messages.envelope import Envelope, ToClient
from distkv.wire.messages.to_client import InstanceStatus, Located, RequestEnded, Status
from distkv.wire.messages.to_gmanager import Join, Locate, MembersQuery
from distkv.wire.messages.to_rmanager import Members, StatusQuery, Submit


class StartingResponder:
    """Announces the instance as "starting" and turns requests away as retryable."""

    def __init__(self, config: InstanceConfig, incarnation: int, server: ServerChannel, worker_pid: int) -> None:
        self._server = server
        self._heartbeat_s = config.control.heartbeat_s
        self._envelopes = EnvelopeFactory(config.instance_id)
        self._member = Member(
            instance_id=config.instance_id,
            incarnation=incarnation,
            address=server.address,
            role=config.role,
            state="starting",
            pid=os.getpid(),
            worker_pid=worker_pid,
            block_tokens=config.engine.block_size,
        )
        self._gmanagers = [
            Outbound(address, "gmanager", self._envelopes, lambda _name, _envelope: None, on_connected=self._announce)
            for address in config.gmanager
        ]

    def tasks(self) -> tuple[asyncio.Task[object], ...]:
        """Serving and announcing, until cancelled."""
        return asyncio.ensure_future(self._serve()), asyncio.ensure_future(every(self._heartbeat_s, self._announce))

    async def close(self) -> None:
        """Stop announcing. More than once is fine."""
        for gmanager in self._gmanagers:
            await gmanager.close()
        self._gmanagers = []

    def _announce(self) -> None:
        for gmanager in self._gmanagers:
            if gmanager.connected:
                gmanager.send(Join(member=self._member, compat=""), "")

    async def _serve(self) -> None:
        while True:
            route, envelope = await self._server.recv()
            answer = self._answer(envelope)
            if answer is not None:
                self._server.send(route, self._envelopes.wrap(answer, envelope.id))

    def _answer(self, envelope: Envelope) -> ToClient | None:
        member = self._member
        reason = f"instance {member.instance_id} is starting"
        match envelope.body:
            case StatusQuery():
                return Status(instance=InstanceStatus.of(member, state="starting"))
            case MembersQuery():
                return Members(version=0, members=(member,))
            case Locate(request_id=request_id):
                return Located(request_id=request_id, reason=reason)
            case Submit(request_id=request_id):
                return RequestEnded(request_id=request_id, kind="failed", reason=reason, retryable=True)
            case _:
                return None
