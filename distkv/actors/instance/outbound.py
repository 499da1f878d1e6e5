"""An rManager's own connections: to the gManager and to the rManagers of its peers."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable

from distkv.errors import LinkClosed, WireError
from distkv.wire.channel import ClientChannel
from distkv.wire.envelope_factory import EnvelopeFactory
from distkv.wire.messages.common import Member
from distkv.wire.messages.envelope import Control, Envelope

OnMessage = Callable[[str, Envelope], None]


class Outbound:
    """One connection: sends, and reads what comes back on it."""

    def __init__(
        self,
        address: str,
        name: str,
        envelopes: EnvelopeFactory,
        on_message: OnMessage,
        on_lost: Callable[[str], None] | None = None,
        on_connected: Callable[[], None] | None = None,
    ) -> None:
        self.name, self.address = name, address
        self._envelopes = envelopes
        self._on_message = on_message
        lost = None if on_lost is None else lambda: on_lost(name)
        # Secret, and the same for all its connections: the server takes what is ours only from this route.
        identity = b"i" + secrets.token_bytes(16)
        self._channel = ClientChannel.connect(address, identity, on_connected=on_connected, on_disconnected=lost)
        self._reader = asyncio.create_task(self._read(), name=f"read {name}")

    @property
    def connected(self) -> bool:
        return self._channel.connected

    def send(self, body: Control, cause: str) -> bool:
        return self._channel.send(self._envelopes.wrap(body, cause))

    async def close(self) -> None:
        self._channel.close()
        self._reader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reader

    async def _read(self) -> None:
        while True:
            try:
                envelope = await self._channel.recv()
            except WireError:
                continue  # counted by the channel; a peer that talks nonsense is lost by its leases
            except LinkClosed:
                return
            self._on_message(self.name, envelope)


class Outbounds:
    """All connections of one rManager. gManagers are tried in the order of the configuration."""

    def __init__(
        self,
        gmanagers: tuple[str, ...],
        envelopes: EnvelopeFactory,
        on_gmanager_message: OnMessage,
        on_peer_message: OnMessage,
        on_peer_lost: Callable[[str], None],
        on_gmanager: Callable[[], None],
    ) -> None:
        self._envelopes = envelopes
        self._on_peer_message = on_peer_message
        self._on_peer_lost = on_peer_lost
        self._gmanagers = [
            Outbound(address, "gmanager", envelopes, on_gmanager_message, on_connected=on_gmanager)
            for address in gmanagers
        ]
        self._peers: dict[str, Outbound] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def tell_gmanager(self, body: Control, cause: str) -> bool:
        """Send to the first gManager that is there; what none hears is dropped, as every such message allows."""
        for gmanager in self._gmanagers:
            if gmanager.connected:
                return gmanager.send(body, cause)
        return False

    def tell_peer(self, member: Member, body: Control, cause: str) -> bool:
        """Send to a peer, over a connection that is opened when first needed."""
        peer = self._peers.get(member.instance_id)
        if peer is not None and peer.address != member.address:
            self._drop(member.instance_id)
            peer = None
        if peer is None:
            peer = Outbound(
                member.address, member.instance_id, self._envelopes, self._on_peer_message, self._on_peer_lost
            )
            self._peers[member.instance_id] = peer
        return peer.send(body, cause)

    def keep_only(self, members: dict[str, Member]) -> None:
        """Close connections to peers that are gone."""
        for instance_id, peer in list(self._peers.items()):
            member = members.get(instance_id)
            if member is None or member.state == "dead" or member.address != peer.address:
                self._drop(instance_id)

    async def close(self) -> None:
        """Close all; what was sent gets a moment to leave."""
        for instance_id in list(self._peers):
            self._drop(instance_id)
        for gmanager in self._gmanagers:
            await gmanager.close()
        await asyncio.gather(*self._closing)

    def _drop(self, instance_id: str) -> None:
        task = asyncio.create_task(self._peers.pop(instance_id).close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
