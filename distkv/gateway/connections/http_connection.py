"""One HTTP connection: uvicorn's, within limits on its head, its pace, and how many there are.

Uvicorn reads what comes, whatever its size and however slowly. Here a head has a size, a number of headers and a
deadline, what frames a body stays in proportion to it, and a reader who takes nothing is cut off. Requests that offer
an upgrade are served without it. What begins, is complete or is lost at the same time goes on a few in a turn of the
event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from distkv.client.turns import Turns
from distkv.gateway.connections.descriptors import most_spare
from distkv.gateway.connections.portions import Portions
from distkv.gateway.connections.request_parser import RequestParser
from distkv.gateway.operations.paths import HEALTH_PATHS, OPEN_PATHS
from distkv.gateway.schema.errors import ApiError, unavailable

MAX_HEAD_BYTES = 32 * 2**10
MAX_HEADERS = 128
HEAD_S = 10.0
"""From the connection, or the first byte of a further request, to the end of the head."""
WRITE_S = 60.0
"""A reader who leaves 64 KiB untaken for so long is cut off."""
MAX_PIPELINED = 16
PART_BYTES = 4 * 2**10
"""So much is read at a time: in chunks of a byte it takes the parser a millisecond where cores are busy."""
SHORT_BYTES = 2 * 2**10
"""What begins a request and is no longer is read at once: health checks wait for nobody."""
FRAMING = 8
"""Bytes of framing for each byte of a body: chunks of one byte are the worst of what is not meant to hurt."""
LEAST_WOKEN = 4
"""Of what waits for its turn of the event loop, in each: connections to be served, and requests."""


class Connections:
    """All connections of a server. most: how many serve the API. turns: of their requests. portions: of what they read.

    One more ends the one that has been longest without a complete request, idle or half sent. When all of them are
    busy, `most_spare` more may ask for the OPEN_PATHS, so that health checks and metrics always get in.
    """

    def __init__(self, most: int) -> None:
        self.most, self._most_spare = most, most_spare()
        self.turns = Turns(least=LEAST_WOKEN)
        self.portions = Portions(PART_BYTES)
        self.idle: dict[LimitedConnection, None] = {}
        self.spare: dict[LimitedConnection, None] = {}

    def let_in(self, newest: LimitedConnection, count: int) -> bool:
        """Make room for a connection, the last of `count`. False if it is a spare one."""
        if count - len(self.spare) <= self.most or self._cut_oldest(self.idle):
            self.idle[newest] = None
            return True
        if len(self.spare) >= self._most_spare:
            self._cut_oldest(self.spare)
        self.spare[newest] = None
        return False

    def make_room(self) -> bool:
        """End the one that has been longest without a complete request; False if there is none."""
        return self._cut_oldest(self.idle)

    def forget(self, one: LimitedConnection) -> None:
        """It is closed, or busy."""
        self.idle.pop(one, None)
        self.spare.pop(one, None)

    def _cut_oldest(self, some: dict[LimitedConnection, None]) -> bool:
        oldest = next(iter(some), None)
        if oldest is not None:
            oldest.cut_off()
        return oldest is not None


class _Refused(Exception):
    """Ends the parser; the connection says why."""


class LimitedConnection(HttpToolsProtocol):
    """See above. `known` has all connections of the server."""

    def __init__(self, known: Connections, **how: Any) -> None:
        super().__init__(**how)
        self.parser = RequestParser(self)  # type: ignore[assignment]
        self._known = known
        self._is_spare = False
        self._refusal: ApiError | None = None
        self._in_head = True
        self._fed_bytes = self._body_bytes = self._num_headers = 0
        self._unread = bytearray()
        self._waits_to_read = False
        self._unanswered: deque[RequestResponseCycle] = deque()
        self._begun: RequestResponseCycle | None = None
        """By what is being read; it cannot have been woken yet."""
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    # --- the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._is_spare = not self._known.let_in(self, len(self.connections))
        self._head_timer = self.loop.call_later(HEAD_S, self._head_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._known.forget(self)
        for timer in (self._head_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        self._head_timer = self._write_timer = None
        # Uvicorn tells the last one that came, and at once; it is an earlier one that runs where requests were sent
        # ahead, and thousands may be lost together.
        self.cycle = None  # type: ignore[assignment]
        for cycle in self._unanswered:
            cycle.disconnected = True
            self._known.turns.take(cycle.message_event.set)
        super().connection_lost(exc)

    def cut_off(self) -> None:
        """End the connection now, without an answer."""
        self._known.forget(self)
        self.transport.abort()

    def _head_is_late(self) -> None:
        self._head_timer = None
        self._refuse(ApiError(408, f"the head of the request did not come within {HEAD_S:.0f} s", code="head_too_slow"))

    # --- what comes

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if not self._unread:
            is_short = self._in_head and len(data) <= SHORT_BYTES
            if is_short or self._known.portions.take(len(data)):
                self._read(data)
                return
        self._unread += data
        self.transport.pause_reading()
        self._read_on()

    def _read_on(self) -> None:
        if not self._waits_to_read:
            self._waits_to_read = True
            self._known.portions.wait(self._read_some)

    def _read_some(self) -> None:
        """Read a part of what came; meanwhile no more comes."""
        self._waits_to_read = False
        if not self.transport.is_closing():
            part = bytes(self._unread[:PART_BYTES])
            del self._unread[:PART_BYTES]
            self._read(part)
        if self.transport.is_closing():
            self._unread.clear()
        elif self._unread:
            self._read_on()
        elif not self.flow.read_paused:
            self.transport.resume_reading()

    def _read(self, data: bytes) -> None:
        self._fed_bytes += len(data)
        self._begun = None
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._in_head and self._fed_bytes > MAX_HEAD_BYTES:
            self._refuse(_head_too_large())
        elif self._in_head and self._head_timer is None and self._fed_bytes:
            self._head_timer = self.loop.call_later(HEAD_S, self._head_is_late)
        elif not self._in_head and self._fed_bytes > MAX_HEAD_BYTES + FRAMING * self._body_bytes:
            self._refuse(ApiError(400, "the body is framed by more bytes than it has", code="invalid_http"))

    def _unset_keepalive_if_required(self) -> None:
        """What uvicorn calls when something comes. An answered request whose body still comes is as good as idle."""
        if self._in_head or self.cycle is None or not self.cycle.response_complete:
            super()._unset_keepalive_if_required()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._num_headers, self._body_bytes = True, 0, 0
        self._unset_keepalive_if_required()
        if len(self.pipeline) >= MAX_PIPELINED:
            self._stop(ApiError(400, f"more than {MAX_PIPELINED} requests wait for an answer", code="invalid_http"))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._num_headers += 1
        if self._num_headers > MAX_HEADERS:
            self._stop(_head_too_large())
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.parser.get_method() == b"CONNECT":
            self._stop(ApiError(405, "CONNECT is for proxies, and this is none", code="method_not_allowed"))
        if self.parser.should_upgrade():
            return  # its head is read again
        head_bytes = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if head_bytes > MAX_HEAD_BYTES:
            self._stop(_head_too_large())
        self._in_head = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        if self._is_spare and self.url.partition(b"?")[0].decode("latin-1") not in OPEN_PATHS:
            self._stop(unavailable("too many connections are open", "too_many_connections", close=True))
        super().on_headers_complete()
        self._unanswered.append(self.cycle)
        self._begun = self.cycle
        if self._is_spare:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        if not self.cycle.response_complete:
            self._known.idle.pop(self, None)
        self._in_head, self._fed_bytes = True, 0
        if self.cycle is self._begun:
            super().on_message_complete()
        else:
            self._known.turns.take(partial(_complete, self.cycle))

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """When it is its turn, unless nobody wants the answer any more."""
        start = super()._start_asgi_task
        self._known.turns.take(
            lambda: False if cycle.disconnected else start(cycle, app), urgent=cycle.scope["path"] in HEALTH_PATHS
        )

    def on_response_complete(self) -> None:
        self._unanswered.popleft()
        super().on_response_complete()
        if not self.transport.is_closing() and self.cycle.response_complete:
            self._known.idle[self] = None

    # --- what goes

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(WRITE_S, self.cut_off)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def send_400_response(self, msg: str) -> None:
        """What uvicorn calls when the parser fails, by a broken request or by `_stop`."""
        self._refuse(self._refusal or ApiError(400, msg, code="invalid_http"))

    def _stop(self, refusal: ApiError) -> None:
        self._refusal = refusal
        raise _Refused

    def _refuse(self, refusal: ApiError) -> None:
        """Answer in place of the application, and close; where another response is due first, or under way, that is cut
        off."""
        if self.transport.is_closing():
            return
        if self._unanswered:
            cycle = self._unanswered[0]
            if len(self._unanswered) > 1 or cycle.response_started or not self._is_reading(cycle):
                self.cut_off()
                return
            cycle.disconnected = True
        body = refusal.encoded()
        head = [
            f"HTTP/1.1 {refusal.status} Refused",
            "content-type: application/json",
            f"content-length: {len(body)}",
            *(f"{name}: {value}" for name, value in refusal.headers.items() if name != "connection"),
            "connection: close\r\n\r\n",
        ]
        self.transport.write("\r\n".join(head).encode() + body)
        self.transport.close()

    def _is_reading(self, cycle: RequestResponseCycle) -> bool:
        """Whether its body still comes, so that what is wrong is wrong with that."""
        return cycle is self.cycle and not self._in_head


def _complete(cycle: RequestResponseCycle) -> None:
    """All of its body is here."""
    if not cycle.response_complete:
        cycle.more_body = False
        cycle.message_event.set()


def _head_too_large() -> ApiError:
    problem = f"the head is over the limit of {MAX_HEAD_BYTES} bytes or {MAX_HEADERS} headers"
    return ApiError(431, problem, code="head_too_large")
