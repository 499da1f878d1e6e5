"""Control-plane channels: envelopes over ZeroMQ, under asyncio.

Delivery: the envelopes of one `ClientChannel` reach the `ServerChannel` in order and at most once, and so do those the
server sends to one route. `send` returning True means "queued here", not "arrived": what is under way when a
connection drops is lost, and what is still queued at a client is delivered after it has reconnected, perhaps to a
restarted server. Nothing is authenticated.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from itertools import repeat
from typing import Generic, Self

import structlog
import zmq

from distkv.errors import ConfigError, MalformedMessage, WireError
from distkv.wire.address import split_host_port
from distkv.wire.codec import MAX_MESSAGE_BYTES, EnvelopeDecoder, encode_envelope, envelope_id, request_id
from distkv.wire.envelope_factory import EnvelopeFactory
from distkv.wire.messages.common import clipped
from distkv.wire.messages.envelope import Body, Control, Envelope
from distkv.wire.messages.to_client import Rejected
from distkv.wire.rejections import Rejections
from distkv.wire.sockets.connecting import new_dealer
from distkv.wire.sockets.connection_limit import ConnectionLimit
from distkv.wire.sockets.connection_watch import ConnectionWatch
from distkv.wire.sockets.destination import Destination
from distkv.wire.sockets.flood_guard import FloodGuard
from distkv.wire.sockets.listening import listen_at
from distkv.wire.sockets.loop_socket import LoopSocket
from distkv.wire.sockets.tcp_connection import shut_down
from distkv.wire.sockets.unfinished_messages import UnfinishedMessages
from distkv.wire.sockets.waiting_messages import UNLIMITED, Excess

POLITE_LINGER_S = 0.5
MAX_ANSWER_BYTES = 128 * 2**20
"""To one route in QUOTA_S. One that asks for much and reads nothing is cut off before much more has piled up."""


class ServerChannel(Generic[Body]):
    """The end that many clients connect to. A client is known by its route, also after it has reconnected. Whoever
    knows a route can take it over, so a `ClientChannel` chooses a random one for its server alone. What may wait here
    is bounded, and who has more is shut: `WaitingMessages`, `UnfinishedMessages`.

    malformed: messages refused since the start. taken: all of one frame that were read, these too. address: where
    clients really connect to.
    """

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        address: str,
        inbox: EnvelopeDecoder[Body],
        name: str,
        max_message_bytes: int,
        max_received_bytes: int,
        guard: FloodGuard,
        limit: ConnectionLimit,
    ) -> None:
        self.address = address
        self.malformed = self.taken = 0
        self._inbox = inbox
        self._envelopes = EnvelopeFactory(name)
        self._max_message_bytes, self._max_received_bytes = max_message_bytes, max_received_bytes
        self._guard = guard
        self._answers = FloodGuard(messages=sys.maxsize, size_bytes=MAX_ANSWER_BYTES)
        self._limit = limit
        self._unfinished = UnfinishedMessages(
            limit.descriptors,
            max_received_bytes,
            lambda: not self._socket.has_unread(),
            self._stopped_unfinished,
            limit.heard,
        )
        self._socket = LoopSocket(socket, address, on_excess=self._stop_excess, on_read=self._unfinished.read)
        self._rejections = Rejections()

    @classmethod
    def bind(
        cls,
        address: str,
        inbox: EnvelopeDecoder[Body],
        *,
        name: str = "server",
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        max_received_bytes: int | None = None,
        insecure: bool = False,
        guard: FloodGuard | None = None,
        max_connections: int | None = None,
    ) -> Self:
        """Listen at "tcp://host:port" (IPv4, [IPv6]; port 0 or * is automatic). Call it under the running loop.

        inbox: what may come in. name: how this end signs a `Rejected`. max_message_bytes: the limit of both directions,
        or where `max_received_bytes` is given, of what is sent. guard: how much may come by one connection.
        max_connections: how many there may be; half the descriptors of the process if not given. Raises ConfigError
        when the address cannot be used, or is reachable from other machines without `insecure`.
        """
        longest = max_received_bytes or max_message_bytes
        socket, real, limit = listen_at(address, longest, max_connections, insecure=insecure)
        try:
            return cls(socket, real, inbox, name, max_message_bytes, longest, guard or FloodGuard(), limit)
        except BaseException:
            limit.close()
            socket.close(linger=0)
            raise

    async def recv(self) -> tuple[bytes, Envelope[Body]]:
        """The next envelope and the route to answer it by.

        What this inbox does not decode is counted and answered with `Rejected`, caused by the envelope it was in if
        that can be read; a route that sends nothing else is not read any more. A connection that exceeds what the guard
        admits is shut, and an over-long message ends its connection inside ZeroMQ. Raises LinkClosed once this end is
        closed.
        """
        while True:
            if (message := self._read(await self._socket.recv())) is not None:
                return message

    async def deliver(self, take: Callable[[bytes, Envelope[Body]], None], rest: Callable[[], None]) -> None:
        """As `recv` again and again, until cancelled: call `take` with each route and envelope, and `rest` whenever
        none is left or other tasks have their turn. For who is sent very many. Raises what they raise."""

        def read(frames: list[bytes | memoryview]) -> None:
            if (message := self._read(frames)) is not None:
                take(*message)

        await self._socket.deliver(read, rest)

    def send(self, route: bytes, envelope: Envelope[Control]) -> bool:
        """Queue an envelope; never blocks. False when the client is gone, or reads so slowly that its queue is full, or
        is answered more than MAX_ANSWER_BYTES in a second.

        Raises FrameTooLarge, and sends nothing, over the limit of `bind`: it would end the client's connection.
        """
        frame = encode_envelope(envelope, self._max_message_bytes)
        return self._answers.admits(route, len(frame), time.monotonic()) and self._socket.send((route, frame))

    def encoded_for(self, route: bytes, envelope: Envelope[Control]) -> bytes | None:
        """An envelope for `send_each`; None if its route is answered more than MAX_ANSWER_BYTES in a second. Raises as
        `send`."""
        frame = encode_envelope(envelope, self._max_message_bytes)
        return frame if self._answers.admits(route, len(frame), time.monotonic()) else None

    def send_each(self, messages: Iterable[tuple[bytes, bytes]]) -> None:
        """Queue each frame for its route, one after the other; what cannot be sent is left out."""
        self._socket.send_each(messages)

    def encoded(self, envelope: Envelope[Control]) -> zmq.Frame:
        """An envelope for `send_to_all`. Raises as `send`."""
        return zmq.Frame(encode_envelope(envelope, self._max_message_bytes))

    def send_to_all(self, routes: Iterable[bytes], frame: zmq.Frame) -> None:
        """Queue for many what was encoded once, a few microseconds for each. One that is gone, whose queue is full or
        that is answered more than MAX_ANSWER_BYTES in a second is left out."""
        size_bytes, now_s = len(frame), time.monotonic()
        admitted = (route for route in routes if self._answers.admits(route, size_bytes, now_s))
        self._socket.send_each(zip(admitted, repeat(frame)))

    def has_waiting(self) -> bool:
        """Whether a message is here that was not received yet. Clients are read in turn."""
        return self._socket.has_waiting()

    @property
    def num_connections(self) -> int:
        """How many are open."""
        return len(self._limit.descriptors)

    def close(self) -> None:
        """Stop listening; what was sent before gets a moment to leave."""
        self._unfinished.close()
        self._limit.close()
        self._socket.close(POLITE_LINGER_S)

    def abort(self) -> None:
        """Stop listening and drop what has not left yet."""
        self._unfinished.close()
        self._limit.close()
        self._socket.close(0)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close() if kind is None else self.abort()

    def _read(self, frames: list[bytes | memoryview]) -> tuple[bytes, Envelope[Body]] | None:
        """A message as it came; None if it is not to be taken."""
        route, now_s = bytes(frames[0]), time.monotonic()
        content = frames[1:]
        self.taken += len(content) == 1
        if not self._guard.admits(route, sum(map(len, content)), now_s, messages=len(content)):
            self._stop_flood(route, now_s)
            return None
        if self._rejections.is_shut_out(route):
            return None
        try:
            if len(content) != 1:
                raise MalformedMessage(f"a message has 1 frame, this one has {len(content)}")
            envelope = self._inbox.decode(content[0], self._max_received_bytes)
        except WireError as e:
            self._reject(route, str(e), envelope_id(content[0]) if len(content) == 1 else "")
            return None
        self._rejections.good(route)
        return route, envelope

    def _reject(self, route: bytes, reason: str, cause: str) -> None:
        self.malformed += 1
        self._rejections.bad(route)
        closed = self._rejections.is_shut_out(route)
        self.send(route, self._envelopes.wrap(Rejected(reason=clipped(reason), closed=closed), cause))

    def _stop_flood(self, route: bytes, now_s: float) -> None:
        """Drop what a route sent beyond its quota, and shut the connection it came by."""
        self.malformed += 1
        if self._guard.is_flooding(route):
            is_shut = shut_down(self._socket.source, received=self._guard.bar(route, now_s))
            _report_shut(self.address, is_shut)

    def _stop_excess(self, excess: Excess) -> None:
        """Too much waits of a route: take nothing of it, and shut the connection it came by."""
        self.malformed += 1
        self._guard.bar(excess.sender, time.monotonic())
        _report_shut(self.address, shut_down(excess.source, received=excess.size_bytes))

    def _stopped_unfinished(self, descriptor: int) -> None:
        """A connection was shut because of a message that is too long and did not end, or of far too many."""
        self.malformed += 1
        if (route := self._socket.drop(descriptor)) is not None:
            self._guard.bar(route, time.monotonic())
        _report_shut(self.address, True)


class ClientChannel(Generic[Body]):
    """The end that connects to one server, and reconnects by itself when the connection drops. What waits here of the
    server has no bound, but for a message that does not end: then the connection is shut.

    connected: whether the server is there now. malformed: messages refused since the start.
    """

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        address: str,
        inbox: EnvelopeDecoder[Body],
        max_message_bytes: int,
        on_connected: Callable[[], None],
        on_disconnected: Callable[[], None],
        longest_retry_s: float,
    ) -> None:
        self.malformed = 0
        self._inbox = inbox
        self._max_message_bytes = max_message_bytes
        self._on_connected, self._on_disconnected = on_connected, on_disconnected
        with ExitStack() as undo:
            # Nothing of a server is dropped: a stream with a hole would end as one that is whole.
            self._socket = LoopSocket(socket, address, UNLIMITED, on_read=self._note_read)
            undo.callback(self._socket.close, 0)
            self._destination = Destination(self._socket, *split_host_port(address), longest_retry_s)
            self._watch = ConnectionWatch(socket, address, self._reached, self._lost, self._destination.failed)
            undo.callback(self._watch.close)
            self._unfinished = UnfinishedMessages(
                self._watch.descriptors,
                max_message_bytes,
                lambda: not self._socket.has_unread(),
                self._stopped_unfinished,
                judges_pace=False,
            )
            undo.callback(self._unfinished.close)
            self._destination.start()
            undo.pop_all()

    @classmethod
    def connect(
        cls,
        address: str,
        inbox: EnvelopeDecoder[Body],
        *,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        on_connected: Callable[[], None] = lambda: None,
        on_disconnected: Callable[[], None] = lambda: None,
        longest_retry_s: float = 1.0,
    ) -> Self:
        """Start to connect to "tcp://host:port" and return at once; what is sent meanwhile waits. Needs a running loop.

        inbox: what the server may answer. max_message_bytes: the limit of both directions. The callbacks run in the
        loop. longest_retry_s: pauses between attempts to connect double up to this. Raises ConfigError when `address`
        is not one, LinkClosed when this process has no descriptors left.
        """
        if not address.startswith("tcp://"):
            raise ConfigError("address", f"expected tcp://HOST:PORT, got {address!r}")
        with new_dealer(address, max_message_bytes, longest_retry_s) as socket:
            return cls(socket, address, inbox, max_message_bytes, on_connected, on_disconnected, longest_retry_s)

    @property
    def connected(self) -> bool:
        return self._watch.connected

    async def wait_connected(self) -> None:
        """Return when the server is there; it may take for ever. Raises LinkClosed once closed here."""
        await self._watch.wait_connected()

    def send(self, envelope: Envelope[Control]) -> bool:
        """Queue an envelope; never blocks. False when the queue is full or the channel closed.

        Raises FrameTooLarge, and sends nothing, over the limit of `connect`: it would end the connection.
        """
        frame = encode_envelope(envelope, self._max_message_bytes)
        return self._destination.keep(frame) if self._destination.keeps else self._socket.send((frame,))

    async def recv(self) -> Envelope[Body]:
        """The next envelope; waits also while the server is away (`on_disconnected` is called when it goes).

        Raises WireError, with the request that it is about, when the server sends what this inbox does not decode, and
        LinkClosed once closed here.
        """
        return self._decode(await self._socket.recv())

    def recv_now(self) -> Envelope[Body] | None:
        """The next envelope if it is here already, else None. For `on_disconnected`: what arrived before the end
        still counts. Raises as `recv`."""
        frames = self._socket.recv_now()
        return None if frames is None else self._decode(frames)

    def _decode(self, frames: list[bytes | memoryview]) -> Envelope[Body]:
        try:
            if len(frames) != 1:
                raise MalformedMessage(f"a message has 1 frame, this one has {len(frames)}")
            return self._inbox.decode(frames[0], self._max_message_bytes)
        except WireError as error:
            self.malformed += 1
            error.request_id = request_id(frames[0])
            raise

    def _reached(self) -> None:
        for frame in self._destination.reached():
            self._socket.send((frame,))
        self._on_connected()

    def _lost(self) -> None:
        self._destination.lost()
        self._on_disconnected()

    def _note_read(self, _: int, frames: int, size_bytes: int) -> None:
        for descriptor in self._watch.descriptors:
            self._unfinished.read(descriptor, frames, size_bytes)

    def _stopped_unfinished(self, _: int) -> None:
        """The connection was shut because of a message that is too long and did not end."""
        self.malformed += 1
        _report_shut(self._socket.name, True)

    def close(self) -> None:
        """Disconnect; what was sent before gets a moment to leave."""
        for frame in self._destination.close():
            self._socket.send((frame,))
        self._close(POLITE_LINGER_S)

    def abort(self) -> None:
        """Disconnect and drop what has not left yet."""
        self._destination.close()
        self._close(0)

    def _close(self, linger_s: float) -> None:
        self._unfinished.close()
        self._watch.close()
        self._socket.close(linger_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close() if kind is None else self.abort()


def _report_shut(address: str, is_shut: bool) -> None:
    structlog.get_logger().warning("a connection sent too much", at=address, shut=is_shut)
