"""An rManager's own connections: to gManagers and to the rManagers of its peers.

Who sends what comes by one of them is whom we called. What an inbox does not decode is counted and dropped: a peer
whose answers cannot be decoded is lost by its leases.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Generic

import structlog

from distkv.actors.unsent import UnsentMessages
from distkv.errors import ConfigError, LinkClosed, WireError
from distkv.wire.channel import ClientChannel
from distkv.wire.codec import EnvelopeDecoder
from distkv.wire.envelope_factory import EnvelopeFactory
from distkv.wire.inboxes import GMANAGER_CONNECTION, PEER_CONNECTION
from distkv.wire.messages.common import Member, clipped
from distkv.wire.messages.envelope import Body, Control, GManagerAnswer, PeerAnswer, PeerRequest, ToGManager
from distkv.wire.messages.to_client import Rejected
from distkv.wire.messages.to_gmanager import Heartbeat, Join, as_sign_of_life
from distkv.wire.messages.to_rmanager import JoinRefused

OnGManager = Callable[[GManagerAnswer, str], None]
"""Takes a message of a gManager and the id of its envelope."""

OnPeer = Callable[[str, PeerAnswer, str], None]
"""Takes the id of a peer, its message, and the id of its envelope."""

SILENT_S = 3.0
"""A gManager that has not answered for so long is stopped or stuck, though its host is there."""
GMANAGER_RETRY_S = 1.0
PEER_RETRY_S = 16.0
"""The pauses between attempts to connect double from 50 ms up to these: a peer that is gone stays gone."""
REPORT_S = 10.0
"""What a connection refuses or is refused for is logged once in this time."""


class Connection(Generic[Body]):
    """One connection to `name`: `send`, and `read` in a task of its own until `close`."""

    def __init__(
        self,
        address: str,
        name: str,
        inbox: EnvelopeDecoder[Body | Rejected],
        envelopes: EnvelopeFactory,
        on_connected: Callable[[], None] = lambda: None,
        on_lost: Callable[[], None] = lambda: None,
        retry_s: float = GMANAGER_RETRY_S,
    ) -> None:
        self.name, self.address = name, address
        self._envelopes = envelopes
        self._unsent = UnsentMessages()
        self._loop = asyncio.get_running_loop()
        self._unanswered_since_s: float | None = None
        self._reported_s = -REPORT_S
        self._on_connected = on_connected
        self._channel = ClientChannel.connect(
            address, inbox, on_connected=self._is_there, on_disconnected=on_lost, longest_retry_s=retry_s
        )

    @property
    def connected(self) -> bool:
        return self._channel.connected

    @property
    def is_silent(self) -> bool:
        """Whether nothing was heard for SILENT_S since something was sent."""
        return self._unanswered_since_s is not None and self._loop.time() - self._unanswered_since_s >= SILENT_S

    @property
    def malformed(self) -> int:
        return self._channel.malformed

    def send(self, body: Control, cause: str) -> bool:
        """Queue a message; False when that is not possible, also because it is too long."""
        if self._unanswered_since_s is None:
            self._unanswered_since_s = self._loop.time()
        try:
            return self._channel.send(self._envelopes.wrap(body, cause))
        except WireError as error:
            self._unsent.report(body, error)
            return False

    async def read(self, on_message: Callable[[Body, str], None]) -> None:
        """Hand on what comes until the connection is closed here."""
        while True:
            try:
                envelope = await self._channel.recv()
            except WireError as error:
                if self._may_report():
                    structlog.get_logger().warning("an answer was refused", sender=self.name, problem=str(error))
                continue
            except LinkClosed:
                return
            self._unanswered_since_s = None
            body = envelope.body
            if not isinstance(body, Rejected):
                on_message(body, envelope.id)
            elif self._may_report():
                reason = clipped(body.reason)
                structlog.get_logger().error("this instance was refused", by=self.name, reason=reason)

    def _is_there(self) -> None:
        self._unanswered_since_s = None
        self._on_connected()

    def _may_report(self) -> bool:
        now_s = self._loop.time()
        if now_s - self._reported_s < REPORT_S:
            return False
        self._reported_s = now_s
        return True

    def close(self) -> None:
        """What was sent gets a moment to leave."""
        self._channel.close()


class GManagerConnections:
    """Connections to all gManagers, for as long as the process lives. They are tried in the order of the configuration.

    on_message, on_connected: what happens to answers, and when a gManager is there (again); to be set by who serves.
    """

    def __init__(self, addresses: tuple[str, ...], envelopes: EnvelopeFactory, tasks: asyncio.TaskGroup) -> None:
        """`tasks` reads them."""
        self.on_message: OnGManager = lambda _message, _cause: None
        self.on_connected: Callable[[], None] = lambda: None
        self._connections: list[Connection[GManagerAnswer]] = [
            Connection(address, "gmanager", GMANAGER_CONNECTION, envelopes, lambda: self.on_connected())
            for address in addresses
        ]
        for connection in self._connections:
            tasks.create_task(connection.read(self._from(connection)), name=f"read {connection.address}")

    @property
    def malformed(self) -> int:
        return sum(connection.malformed for connection in self._connections)

    def send(self, body: ToGManager, cause: str) -> bool:
        """Send to the gManager that is spoken to; what none hears is dropped, as every such message allows.

        A Join and a heartbeat go to all that are there: what the others know of this instance is what they would go by.
        """
        if isinstance(body, Join):
            self.send_to_all(body)
            return True
        spoken_to = self._spoken_to()
        if isinstance(body, Heartbeat):
            sign_of_life = as_sign_of_life(body)
            for connection in self._connections:
                if connection.connected and connection is not spoken_to:
                    connection.send(sign_of_life, cause)
        return spoken_to is not None and spoken_to.send(body, cause)

    def send_to_all(self, body: ToGManager) -> None:
        """Send to every gManager that is there."""
        for connection in self._connections:
            if connection.connected:
                connection.send(body, "")

    def close(self) -> None:
        for connection in self._connections:
            connection.close()

    def _spoken_to(self) -> Connection[GManagerAnswer] | None:
        """To the first gManager that is there and answers, else to the first that is there."""
        there = [connection for connection in self._connections if connection.connected]
        return next((connection for connection in there if not connection.is_silent), there[0] if there else None)

    def _from(self, connection: Connection[GManagerAnswer]) -> OnGManager:
        """What takes the messages of one: another than is spoken to may not hear all who are alive, but it may refuse
        this instance."""

        def receive(message: GManagerAnswer, cause: str) -> None:
            if isinstance(message, JoinRefused) or connection is self._spoken_to():
                self.on_message(message, cause)

        return receive


class PeerConnections:
    """Connections to the rManagers of peers, each opened when first needed. malformed: answers that were refused."""

    def __init__(
        self,
        envelopes: EnvelopeFactory,
        tasks: asyncio.TaskGroup,
        on_message: OnPeer,
        on_lost: Callable[[str], None],
    ) -> None:
        """`tasks` reads them."""
        self._envelopes = envelopes
        self._tasks = tasks
        self._on_message = on_message
        self._on_lost = on_lost
        self._connections: dict[str, Connection[PeerAnswer]] = {}
        self._lives: dict[str, tuple[str, int]] = {}
        self._malformed_before = 0
        self._reported_s = -REPORT_S
        self._no_addresses: dict[str, str] = {}

    @property
    def malformed(self) -> int:
        return self._malformed_before + sum(connection.malformed for connection in self._connections.values())

    def send(self, member: Member, body: PeerRequest, cause: str) -> bool:
        """Send to a peer; nothing goes to one that is known dead. One whose address is none is lost at once; `on_lost`
        says so from the loop."""
        if member.state == "dead":
            return False
        connection = self._connections.get(member.instance_id)
        if connection is not None and _life(member) != self._lives[member.instance_id]:
            self._drop(member.instance_id)
            connection = None
        try:
            return (connection or self._open(member)).send(body, cause)
        except LinkClosed as error:
            now_s = asyncio.get_running_loop().time()
            if now_s - self._reported_s >= REPORT_S:
                self._reported_s = now_s
                structlog.get_logger().error("a peer cannot be called", peer=member.instance_id, why=error.why)
            return False
        except ConfigError as error:
            if self._no_addresses.get(member.instance_id) != member.address:
                self._no_addresses[member.instance_id] = member.address
                structlog.get_logger().warning("a peer has no address", peer=member.instance_id, why=str(error))
            asyncio.get_running_loop().call_soon(self._on_lost, member.instance_id)
            return False

    def keep_only(self, members: Mapping[str, Member]) -> None:
        """Close connections to peers that are gone; to be called when `members` changed."""
        self._no_addresses = {name: address for name, address in self._no_addresses.items() if name in members}
        for instance_id in list(self._connections):
            member = members.get(instance_id)
            if member is None or member.state == "dead" or _life(member) != self._lives[instance_id]:
                self._drop(instance_id)

    def close(self) -> None:
        for instance_id in list(self._connections):
            self._drop(instance_id)

    def _open(self, member: Member) -> Connection[PeerAnswer]:
        name = member.instance_id
        connection: Connection[PeerAnswer] = Connection(
            member.address,
            name,
            PEER_CONNECTION,
            self._envelopes,
            on_lost=lambda: self._on_lost(name),
            retry_s=PEER_RETRY_S,
        )
        self._connections[name], self._lives[name] = connection, _life(member)
        self._tasks.create_task(
            connection.read(lambda message, cause: self._on_message(name, message, cause)),
            name=f"read {name}",
        )
        return connection

    def _drop(self, instance_id: str) -> None:
        connection = self._connections.pop(instance_id)
        del self._lives[instance_id]
        self._malformed_before += connection.malformed
        connection.close()


def _life(member: Member) -> tuple[str, int]:
    """A connection is to one process: one that was restarted is called anew, at once."""
    return member.address, member.incarnation
