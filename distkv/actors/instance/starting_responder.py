"""What an instance answers while its worker still loads: that it is starting."""

from __future__ import annotations

import os

from distkv.actors.instance.connections import GManagerConnections
from distkv.config import InstanceConfig
from distkv.wire.channel import ServerChannel
from distkv.wire.envelope_factory import EnvelopeFactory
from distkv.wire.messages.common import Member
from distkv.wire.messages.envelope import ToClient, ToRManager
from distkv.wire.messages.to_client import ClusterState, Explained, InstanceStatus, Located, RequestEnded, Status
from distkv.wire.messages.to_gmanager import ClusterQuery, ExplainQuery, Join, Locate, MembersQuery
from distkv.wire.messages.to_rmanager import Members, StatusQuery, Submit


class StartingResponder:
    """Announces the instance as "starting" and turns requests away as retryable."""

    def __init__(
        self,
        config: InstanceConfig,
        incarnation: int,
        server: ServerChannel[ToRManager],
        gmanagers: GManagerConnections,
        envelopes: EnvelopeFactory,
        worker_pid: int,
    ) -> None:
        self._server = server
        self._gmanagers = gmanagers
        self._envelopes = envelopes
        gmanagers.on_connected = self.announce
        self._member = Member(
            instance_id=config.instance_id,
            incarnation=incarnation,
            address=server.address,
            state="starting",
            pid=os.getpid(),
            worker_pid=worker_pid,
            block_tokens=config.engine.block_size,
            heartbeat_s=config.control.heartbeat_s,
        )

    def announce(self) -> None:
        """Say to every gManager that is there that this instance is starting."""
        self._gmanagers.send_to_all(Join(member=self._member, compat=""))

    async def serve(self) -> None:
        """Answer clients until cancelled. Peers get no answer: they know no instance that is starting."""
        while True:
            route, envelope = await self._server.recv()
            answer = self._answer(envelope.body)
            if answer is not None:
                self._server.send(route, self._envelopes.wrap(answer, envelope.id))

    def _answer(self, message: ToRManager) -> ToClient | None:
        member = self._member
        reason = f"instance {member.instance_id} is starting"
        match message:
            case StatusQuery():
                return Status(instance=InstanceStatus.of(member, state="starting"))
            case ExplainQuery(request_id=request_id):
                return Explained(query=request_id, instance_id=member.instance_id)
            case ClusterQuery():
                return ClusterState()
            case MembersQuery():
                return Members(version=0, members=(member,))
            case Locate(request_id=request_id):
                return Located(request_id=request_id, reason=reason)
            case Submit(request_id=request_id):
                return RequestEnded(request_id=request_id, kind="failed", reason=reason, retryable=True)
            case _:
                return None
