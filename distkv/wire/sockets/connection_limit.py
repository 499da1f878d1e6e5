"""A bound on the connections to a listening socket, so that a process keeps descriptors for its own work.

ZeroMQ has no such bound. A connection accepted beyond the limit costs the oldest one by which nothing was said yet, or
else the one by which nothing was said for longest, if that is UNHEARD_S; where all speak it is shut itself, so that
none is shut for one that comes back. Cost per connection: constant, since none that has spoken is looked at twice.
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
UNHEARD_S = 10.0
"""Clients that wait for something, and instances, speak every second or two."""
REPORT_S = 10.0

_log = structlog.get_logger()
_EVENTS = zmq.Event.ACCEPTED | zmq.Event.DISCONNECTED


def descriptors_for_connections() -> int:
    """Half of those that this process may have; the rest is for its own files, links and connections."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2


class ConnectionLimit:
    """Keeps the connections to `socket`, which listens at `port`, at `most`. Create it before `bind`, under the loop.

    descriptors: of the connections that are open, as far as they are known, the one longest unheard first, with the
    time when it was heard and the bytes that had come by then.
    """

    def __init__(self, socket: zmq.Socket[bytes], most: int) -> None:
        self.port: int | None = None
        self._most = most
        self._reported_s = -REPORT_S
        self.descriptors: dict[int, tuple[float, int]] = {}
        self._maybe_silent: dict[int, None] = {}
        self._monitor = Monitor(socket, _EVENTS, self._follow)
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(REPORT_S, self._look)

    def heard(self, descriptor: int, received: int) -> None:
        """Something has come by this connection of late, `received` bytes in all."""
        if self.descriptors.pop(descriptor, None) is not None:
            self.descriptors[descriptor] = time.monotonic(), received

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
        self.descriptors.pop(descriptor, None)
        if event == zmq.Event.DISCONNECTED:
            return
        self._maybe_silent[descriptor] = None
        self.descriptors[descriptor] = time.monotonic(), 0
        if len(self.descriptors) > self._most:
            if self._may_report():
                _log.warning("too many connections", port=self.port, limit=self._most)
            self._shut_one(newest=descriptor)

    def _shut_one(self, newest: int) -> None:
        while (oldest := next(iter(self._maybe_silent))) != newest:
            del self._maybe_silent[oldest]
            if received_bytes(oldest) < GREETING_BYTES and self._shut(oldest):
                return
        while True:
            unheard, (heard_s, before) = next(iter(self.descriptors.items()))
            if time.monotonic() - heard_s < UNHEARD_S:
                break
            if (received := received_bytes(unheard)) > before:  # while this process stood still
                self.heard(unheard, received)
            elif self._shut(unheard) or len(self.descriptors) <= self._most:
                return
        del self._maybe_silent[newest]
        self._shut(newest)

    def _shut(self, descriptor: int) -> bool:
        self.descriptors.pop(descriptor, None)
        return shut_down(descriptor, port=self.port)

    def _may_report(self) -> bool:
        now_s = time.monotonic()
        is_due = now_s - self._reported_s >= REPORT_S
        if is_due:
            self._reported_s = now_s
        return is_due
