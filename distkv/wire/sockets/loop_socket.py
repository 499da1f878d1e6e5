"""A ZeroMQ socket under an event loop: `recv` waits, `send` never does.

ZeroMQ's descriptor only says that something may have happened, and any call on the socket may take that sign away. So
whoever waits for a message has found none since the last sign, and while somebody waits, what happened is asked for
after every other call. That rule is kept here and nowhere else. Who does not wait asks for nothing: asking costs as
much as a message.

A receiver that finds more than it can take in a turn reads as much as comes in the next one, and takes it later: see
`WaitingMessages`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import zmq

from distkv.errors import LinkClosed
from distkv.wire.sockets.waiting_messages import Excess, WaitingLimit, WaitingMessages

_TURN_S = 0.002
"""A receiver that always finds a message lets the loop's other tasks run after so long."""
_MOST_AHEAD_S = 0.05
"""It then reads ahead, a turn at a time, for as long as it took messages, and no longer than this."""
# Plain numbers: combining the library's enums makes a new one each time, twice for every message.
_IN = int(zmq.POLLIN)
_NOW, _NOW_MORE = int(zmq.DONTWAIT), int(zmq.DONTWAIT | zmq.SNDMORE)
_EVENTS, _SOURCE = int(zmq.EVENTS), int(zmq.SRCFD)
_LONG_BYTES = 2**16
"""A frame of so many bytes is not copied: 16 MiB would take the loop some milliseconds."""
MAX_PARTS = 256
"""Far more than a message of the protocol has: a route and one frame. One can be made of millions, which take the
loop seconds to read. So one of more parts than this comes in pieces of so many, each with the route; in all but the
first the frames are empty, whatever they were."""


NO_SOURCE = -1
"""Of a message from a ZeroMQ of before 4.0, or from who talks like one: the library does not say."""


class LoopSocket:
    """Owns `socket` and its place in the running loop; one task receives at a time, or has delivered to it.

    source: of a ROUTER, the descriptor of the connection by which the last message came, as it was then, or NO_SOURCE.
    """

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        name: str,
        limit: WaitingLimit | None = None,
        on_excess: Callable[[Excess], None] = lambda _: None,
        on_read: Callable[[int, int, int], None] = lambda _source, _frames, _size_bytes: None,
    ) -> None:
        """limit: on what was read ahead; who exceeds it is told to `on_excess`. on_read: is called with the source, and
        the number and bytes of the frames without the route, of what is read of ZeroMQ, before it is received."""
        self.name = name
        self.source = NO_SOURCE
        self._socket = socket
        self._has_routes = socket.get(zmq.TYPE) == zmq.ROUTER
        self._on_read = on_read
        self._ahead = WaitingMessages(self._has_routes, limit or WaitingLimit(), on_excess)
        self._rest_of: list[bytes | memoryview] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._delivery: _Delivery | None = None
        self._closed = False
        self._turn_ends_s = 0.0
        self._loop = asyncio.get_running_loop()
        self._fd = int(socket.get(zmq.FD))
        self._loop.add_reader(self._fd, self._signalled)

    async def recv(self) -> list[bytes | memoryview]:
        """The frames of the next message, or of a piece of it, long ones where ZeroMQ has put them. Cancelling loses
        nothing. Raises LinkClosed once closed here."""
        if (late_s := time.monotonic() - self._turn_ends_s) >= 0:
            # A sender that never pauses must not keep the loop from its other tasks.
            await asyncio.sleep(0)
            behind_s = late_s + _TURN_S
            while (behind_s := self._read_ahead(behind_s)) > 0:  # noqa: ASYNC110 - it is what reads
                await asyncio.sleep(0)
            self._turn_ends_s = time.monotonic() + _TURN_S
        while (frames := self.recv_now()) is None:
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
            self._turn_ends_s = time.monotonic() + _TURN_S
        return frames

    async def deliver(self, take: Callable[[list[bytes | memoryview]], None], rest: Callable[[], None]) -> None:
        """Call `take` with each message as `recv` returns it, and `rest` whenever none is left or others have their
        turn, until cancelled. No task is woken for it, which costs as much as several short messages. Raises what they
        raise, and LinkClosed once closed here."""
        delivery = self._delivery = _Delivery(take, rest, self._loop.create_future())
        try:
            self._hand_over()
            await delivery.ended
        finally:
            self._delivery = None

    def recv_now(self) -> list[bytes | memoryview] | None:
        """The frames of the next message if it is here already, else None. Raises LinkClosed once closed here."""
        if self._closed:
            raise self._is_closed()
        if self._ahead:
            return self._take_ahead()
        try:
            return self._receive()
        except zmq.Again:
            return None
        finally:
            self._check_for_reader()

    def send(self, frames: Sequence[bytes]) -> bool:
        """Hand a message to ZeroMQ; False when its queue is full or the route leads nowhere (any more)."""
        if self._closed:
            return False
        *first, last = frames
        try:
            for frame in first:
                self._socket.send(frame, _NOW_MORE)
            self._socket.send(last, _NOW)
        except zmq.ZMQError as e:
            if e.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise
            return False
        finally:
            self._check_for_reader()
        return True

    def send_each(self, messages: Iterable[tuple[bytes, bytes | zmq.Frame]]) -> None:
        """As `send`, of each a route and a frame, whose bytes are shared if it is a `zmq.Frame`; what cannot be sent is
        left out."""
        if self._closed:
            return
        try:
            for route, frame in messages:
                try:
                    self._socket.send(route, _NOW_MORE)
                    self._socket.send(frame, _NOW)
                except zmq.ZMQError as e:
                    if e.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                        raise
        finally:
            self._check_for_reader()

    def connect(self, endpoint: str) -> None:
        """Begin to connect to "tcp://ADDRESS:PORT", a number. Raises zmq.ZMQError."""
        self._socket.set(zmq.IPV6, int("[" in endpoint))
        try:
            self._socket.connect(endpoint)
        finally:
            self._check_for_reader()

    def disconnect(self, endpoint: str) -> None:
        """End this connection, and drop what has not left by it or was not read. Raises zmq.ZMQError."""
        self._socket.set(zmq.LINGER, 0)  # else it goes on beside the next one for as long as something has not left
        try:
            self._socket.disconnect(endpoint)
        finally:
            self._check_for_reader()

    def has_waiting(self) -> bool:
        """Whether a message is here that was not received yet."""
        return bool(self._ahead) or self.has_unread()

    def has_unread(self) -> bool:
        """Whether ZeroMQ has a message that was not read yet, neither received nor ahead."""
        if self._closed:
            return False
        is_here = bool(int(self._socket.get(_EVENTS)) & _IN)
        if is_here:
            self._wake()
        return is_here

    def drop(self, source: int) -> bytes | None:
        """Take no more of the route by which too much came, by a connection that was shut, until all that is here was
        read; returns it if it is known. What was read ahead is still received."""
        return self._ahead.drop(source)

    def close(self, linger_s: float) -> None:
        """Close; messages handed over before get `linger_s` to leave. Waiting receivers get LinkClosed."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._fd)
        self._ahead.clear()
        self._socket.close(linger=round(linger_s * 1000))
        self._wake()

    def _is_closed(self) -> LinkClosed:
        return LinkClosed(self.name, "it was closed on this side")

    def _receive(self) -> list[bytes | memoryview]:
        if self._rest_of is not None:
            return self._pass_over(self._rest_of)
        frames: list[bytes | memoryview] = []
        if self._has_routes:  # short, so that to copy it is less work than to share it; a frame always follows
            frames.append(self._socket.recv(_NOW))
        part = self._socket.recv(_NOW, copy=False)
        frames.append(_content(part))
        size_bytes = len(part)
        while part.more and len(frames) < MAX_PARTS:
            part = self._socket.recv(_NOW, copy=False)
            frames.append(_content(part))
            size_bytes += len(part)
        if self._has_routes:
            try:
                source: Any = part.get(_SOURCE)
                self.source = source
            except zmq.ZMQError:
                self.source = NO_SOURCE
        if part.more:
            self._rest_of = frames[: int(self._has_routes)]
        self._on_read(self.source, len(frames) - self._has_routes, size_bytes)
        return frames

    def _pass_over(self, route: list[bytes | memoryview]) -> list[bytes | memoryview]:
        """The next piece of a message of too many parts. To keep what is in them would take half as long again."""
        receive, parts = self._socket.recv, 1
        while (has_more := receive(_NOW, copy=False).more) and parts < MAX_PARTS - 1:
            parts += 1
        if not has_more:
            self._rest_of = None
        empty: list[bytes | memoryview] = [b""] * parts
        self._on_read(self.source, parts, 0)
        return [*route, *empty]

    def _take_ahead(self) -> list[bytes | memoryview]:
        frames, self.source = self._ahead.take()
        return frames

    def _read_ahead(self, behind_s: float) -> float:
        """Read what ZeroMQ has, for a turn at most, into this process' own memory, where it is counted. behind_s: for
        how long messages were taken meanwhile; returns what is left of it."""
        began_s = time.monotonic()
        while not self._closed:
            try:
                frames = self._receive()
            except zmq.Again:
                self._ahead.forgive()
                return 0.0
            self._ahead.put(frames, self.source)
            if (read_s := time.monotonic() - began_s) >= _TURN_S:
                return min(behind_s, _MOST_AHEAD_S) - read_s
        return 0.0

    def _hand_over(self) -> None:
        """Deliver what is here, for no longer than a turn; the rest of it follows when others have had theirs."""
        if (delivery := self._delivery) is None:
            return
        delivery.is_idle, delivery.turn = False, None
        try:
            if delivery.behind_s > 0:
                delivery.behind_s = self._read_ahead(delivery.behind_s)
            if delivery.behind_s > 0:
                self._take_turn(delivery)
            else:
                self._take_some(delivery)
            delivery.rest()
        except Exception as error:
            if not delivery.ended.done():
                delivery.ended.set_exception(error)

    def _take_some(self, delivery: _Delivery) -> None:
        began_s = time.monotonic()
        while not delivery.ended.done():
            if self._closed:
                raise self._is_closed()
            try:
                frames = self._take_ahead() if self._ahead else self._receive()
            except zmq.Again:
                delivery.is_idle = True
                return
            delivery.take(frames)
            if (taken_s := time.monotonic() - began_s) >= _TURN_S:
                delivery.behind_s = taken_s
                self._take_turn(delivery)
                return

    def _take_turn(self, delivery: _Delivery) -> None:
        """The next one, once others have had theirs; there is one at most, or they would grow with every sign."""
        if delivery.turn is None:
            delivery.turn = self._loop.call_soon(self._hand_over)

    def _signalled(self) -> None:
        """The descriptor is readable, until somebody asks what happened; a reader does that by reading."""
        if self._delivery is not None:
            if self._delivery.turn is None:
                self._hand_over()
        elif self._waiter is None:
            self._check()
        else:
            self._wake()

    def _check(self) -> None:
        if not self._closed and int(self._socket.get(_EVENTS)) & _IN:
            self._wake()

    def _check_for_reader(self) -> None:
        """After a call that may have taken away the sign that a reader waits for."""
        if self._is_waited_for and not self._closed and int(self._socket.get(_EVENTS)) & _IN:
            self._wake()

    @property
    def _is_waited_for(self) -> bool:
        return self._waiter is not None or (self._delivery is not None and self._delivery.is_idle)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        if self._delivery is not None and self._delivery.is_idle:
            self._delivery.is_idle = False
            self._take_turn(self._delivery)


@dataclass(slots=True)
class _Delivery:
    """Who takes messages. is_idle: there were none since the last sign. behind_s: for how long some were taken since
    the last were read ahead. turn: the next one, if it is scheduled."""

    take: Callable[[list[bytes | memoryview]], None]
    rest: Callable[[], None]
    ended: asyncio.Future[None]
    is_idle: bool = False
    behind_s: float = 0.0
    turn: asyncio.Handle | None = None


def _content(part: zmq.Frame) -> bytes | memoryview:
    return part.bytes if len(part) < _LONG_BYTES else part.buffer
