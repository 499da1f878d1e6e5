"""Connections on their way in: accepted as they come, served a few in a turn of the event loop, health checks first.

To accept a connection takes ten microseconds and to serve its request a millisecond, so whoever comes after a thousand
others would wait a second for them. Accepted ones therefore wait here, and what they have sent is looked at before it
is read: one that begins like a health check is served at once, others by turns between the addresses that they are
from. Who leaves meanwhile is let go at once and takes nobody's place. Through TLS nothing can be seen, and a handshake
comes first: so many at a time as have room, and one more ends the oldest.
"""

from __future__ import annotations

import asyncio
import errno
import select
import socket
import ssl
import time
from collections.abc import Callable

import structlog

from distkv.client.owned_tasks import OwnedTasks
from distkv.client.turns import Turns
from distkv.gateway.operations.client_queue import ClientQueue
from distkv.gateway.operations.clients import network_of
from distkv.gateway.operations.paths import HEALTH_PATHS

ACCEPT_S = 0.002
"""Connections are accepted for so long in a turn of the event loop."""
MOST_LOOKED_AT = 256
"""Of connections that have said something or left since they were accepted, in a turn."""
PAUSE_S = 1.0
"""After the system had no descriptor or memory for a connection."""
HANDSHAKE_S = 10.0
"""For a TLS handshake."""
_LOOK_BYTES = 16
_LEFT = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
_HEALTH_CHECKS = tuple(f"{method} {path}".encode() for path in HEALTH_PATHS for method in ("GET", "HEAD", "POST"))


class Acceptor:
    """Takes the connections of `listener`, which listens, and gives each a protocol that `make` makes, until `close`.

    most: how many wait here; others wait in the system. tls: None for plain connections. make_room: ends one that is
    served, for want of a descriptor; False if it knows of none that can be spared. room: how many more could be served
    now. Needs a running loop.

    So many TLS handshakes may be under way. Where there is less room, half of those that may wait here may be
    handshakes, so that new ones are served when all others are idle or busy.
    """

    def __init__(
        self,
        listener: socket.socket,
        make: Callable[[], asyncio.Protocol],
        most: int,
        turns: Turns,
        tasks: OwnedTasks,
        tls: ssl.SSLContext | None = None,
        make_room: Callable[[], bool] = lambda: False,
        room: Callable[[], int] = lambda: 0,
    ) -> None:
        self._listener, self._make, self._most = listener, make, most
        self._turns, self._tasks, self._tls = turns, tasks, tls
        self._make_room, self._room = make_room, room
        self._loop = asyncio.get_running_loop()
        self._checks: ClientQueue[socket.socket] = ClientQueue()
        """Those that have begun a health check."""
        self._waiting: ClientQueue[socket.socket] = ClientQueue()
        self._watched: dict[int, tuple[str, socket.socket]] = {}
        """Those that wait, by descriptor: whether they leave, and say something if they have not yet."""
        self._handshakes: dict[asyncio.Task[None], None] = {}
        """The oldest first."""
        self._news = select.epoll()
        self._pause: asyncio.TimerHandle | None = None
        self._is_accepting = self._is_closed = False
        self._loop.add_reader(self._news.fileno(), self._look_again)
        self._go_on()

    def close(self) -> None:
        """Accept no more, and close what waits; safe to call twice."""
        if self._is_closed:
            return
        self._is_closed = True
        self._stop()
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._news.fileno())
        self._news.close()
        for queue in (self._checks, self._waiting):
            while queue:
                queue.take()[1].close()
        while self._cut_oldest_handshake():
            pass

    def _go_on(self) -> None:
        self._pause = None
        if not self._is_accepting and not self._is_closed:
            self._is_accepting = True
            self._loop.add_reader(self._listener.fileno(), self._accept)

    def _stop(self) -> None:
        if self._is_accepting:
            self._is_accepting = False
            self._loop.remove_reader(self._listener.fileno())

    def _accept(self) -> None:
        ends_s = time.monotonic() + ACCEPT_S
        while time.monotonic() < ends_s:
            without_room = min(len(self._handshakes) - self._room(), self._most // 2)
            if len(self._waiting) + len(self._checks) + max(0, without_room) >= self._most:
                self._stop()  # until one of them has been served
                return
            try:
                connection, (host, *_) = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE) and (self._cut_oldest_handshake() or self._make_room()):
                    return  # its descriptor is free in the next turn
                structlog.get_logger().warning("no connection can be accepted", reason=error.strerror)
                self._stop()
                self._pause = self._loop.call_later(PAUSE_S, self._go_on)
                return
            connection.setblocking(False)
            self._take(network_of(host), connection)

    def _take(self, host: str, connection: socket.socket) -> None:
        said = _begin(connection)
        if said is not None and said.startswith(_HEALTH_CHECKS):
            self._checks.put(host, connection)
            self._turns.take(self._serve_next, urgent=True)
            return
        self._waiting.put(host, connection)
        self._watched[connection.fileno()] = host, connection
        self._news.register(connection, _LEFT | (select.EPOLLIN if said is None else 0))
        self._turns.take(self._serve_next)

    def _look_again(self) -> None:
        for descriptor, news in self._news.poll(0, MOST_LOOKED_AT):
            host, connection = self._watched[descriptor]
            if news & _LEFT:
                self._taken(connection)
                self._waiting.remove(host, connection)
                connection.close()
            elif (_begin(connection) or b"").startswith(_HEALTH_CHECKS):
                self._taken(connection)
                self._waiting.remove(host, connection)
                self._checks.put(host, connection)
                self._turns.take(self._serve_next, urgent=True)
            else:
                self._news.modify(connection, _LEFT)

    def _taken(self, connection: socket.socket) -> None:
        """It does not wait any more."""
        if self._watched.pop(connection.fileno(), None) is not None:
            self._news.unregister(connection)
        if self._pause is None:
            self._go_on()

    def _serve_next(self) -> bool:
        """Whether there was one to be served: those that have left take nobody's turn."""
        if not (queue := self._checks or self._waiting):
            return False
        _, connection = queue.take()
        self._taken(connection)
        if _begin(connection) == b"":
            connection.close()
            return False
        self._tasks.start(self._connect(connection), name="connection")
        return True

    async def _connect(self, connection: socket.socket) -> None:
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is None:
                await self._loop.connect_accepted_socket(self._make, connection)
            else:
                await self._handshake(connection, self._tls)
        except OSError:
            connection.close()  # it has left, speaks no TLS, or not in time
        except BaseException:
            connection.close()
            raise

    async def _handshake(self, connection: socket.socket, tls: ssl.SSLContext) -> None:
        if len(self._handshakes) >= max(self._room(), self._most // 2):
            self._cut_oldest_handshake()
        task = asyncio.current_task()
        assert task is not None
        self._handshakes[task] = None
        try:
            await self._loop.connect_accepted_socket(self._make, connection, ssl=tls, ssl_handshake_timeout=HANDSHAKE_S)
        finally:
            self._handshakes.pop(task, None)
            if self._pause is None:
                self._go_on()

    def _cut_oldest_handshake(self) -> bool:
        oldest = next(iter(self._handshakes), None)
        if oldest is not None:
            del self._handshakes[oldest]
            oldest.cancel()
        return oldest is not None


def _begin(connection: socket.socket) -> bytes | None:
    """The first bytes that it sent; None if there are none yet, empty if there never will be."""
    try:
        return connection.recv(_LOOK_BYTES, socket.MSG_PEEK)
    except (BlockingIOError, InterruptedError):
        return None
    except OSError:
        return b""
