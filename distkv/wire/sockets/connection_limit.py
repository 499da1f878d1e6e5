"""A bound on the connections to a listening socket, so that a process keeps descriptors for its own work.

ZeroMQ has no such bound. A connection accepted beyond the limit costs the oldest one by which nothing was said yet, or
is shut itself. Cost per connection: constant, since none that has spoken is looked at twice.
"""

from __future__ import annotations

import asyncio
import os
import resource
import time

import structlog
import zmq

from distkv.wire.sockets.monitor import Monitor
from distkv.wire.sockets.tcp_connection import received_bytes, shut_down

GREETING_BYTES = 512
"""More than a greeting, a handshake and an identity take, and less than any message and these."""
REPORT_S = 10.0

_log = structlog.get_logger()
_EVENTS = zmq.Event.ACCEPTED | zmq.Event.DISCONNECTED


def descriptors_for_connections() -> int:
    """Half of those that this process may have; the rest is for its own files, links and connections."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2


class ConnectionLimit:
    """Keeps the connections to `socket`, which listens at `port`, at `most`. Create it before `bind`, under the loop.

    descriptors: of the connections that are open, as far as they are known.
    """

    def __init__(self, socket: zmq.Socket[bytes], most: int) -> None:
        self.port: int | None = None
        self._most = most
        self._reported_s = -REPORT_S
        self.descriptors: set[int] = set()
        self._maybe_silent: dict[int, None] = {}
        self._monitor = Monitor(socket, _EVENTS, self._follow)
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(REPORT_S, self._look)

    def close(self) -> None:
        """Limit no more."""
        self._timer.cancel()
        self._monitor.close()

    def _look(self) -> None:
        """Say so where no descriptor is left. ZeroMQ tells of each connection that it fails to accept, and tries again
        at once: nobody could read as fast."""
        self._timer = self._loop.call_later(REPORT_S, self._look)
        try:
            os.close(os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            if self._may_report():
                _log.warning("no connection can be accepted", port=self.port, problem=error.strerror)

    def _follow(self, event: int, descriptor: int) -> None:
        self._maybe_silent.pop(descriptor, None)
        if event == zmq.Event.DISCONNECTED:
            self.descriptors.discard(descriptor)
            return
        self._maybe_silent[descriptor] = None
        self.descriptors.add(descriptor)
        if len(self.descriptors) > self._most:
            if self._may_report():
                _log.warning("too many connections", port=self.port, limit=self._most)
            self._shut_one(newest=descriptor)

    def _shut_one(self, newest: int) -> None:
        while self._maybe_silent:
            oldest = next(iter(self._maybe_silent))
            del self._maybe_silent[oldest]
            if received_bytes(oldest) < GREETING_BYTES:
                self.descriptors.discard(oldest)
                if shut_down(oldest, port=self.port):
                    return
        self.descriptors.discard(newest)
        shut_down(newest, port=self.port)

    def _may_report(self) -> bool:
        now_s = time.monotonic()
        is_due = now_s - self._reported_s >= REPORT_S
        if is_due:
            self._reported_s = now_s
        return is_due
