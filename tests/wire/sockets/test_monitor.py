"""A monitor that nobody reads stops nothing."""

from __future__ import annotations

import socket
import time

import zmq

from distkv.wire.sockets.monitor import Monitor
from distkv.wire.sockets.options import open_socket
from tests.wire.abort_recipes import handshaken

# Two events each, and ZeroMQ's own bound is 2,000 of them.
CONNECTIONS = 1_500


async def test_events_that_wait_do_not_stop_the_thread_that_tells_of_them() -> None:
    """The loop does nothing else here."""
    told: list[int] = []
    router = open_socket(zmq.ROUTER, ipv6=False)
    monitor = Monitor(router, zmq.Event.ACCEPTED | zmq.Event.DISCONNECTED, lambda event, _value: told.append(event))
    try:
        port = router.bind_to_random_port("tcp://127.0.0.1")
        for _ in range(CONNECTIONS):
            socket.create_connection(("127.0.0.1", port)).close()
        with handshaken(port):
            pass
        deadline = time.monotonic() + 20
        while len(told) < 2 * CONNECTIONS and time.monotonic() < deadline:
            monitor._drain()
        assert len(told) >= 2 * CONNECTIONS
    finally:
        monitor.close()
        router.close(0)
