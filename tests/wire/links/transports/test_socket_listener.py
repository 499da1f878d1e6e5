"""What strangers may cost a listener."""

from __future__ import annotations

import contextlib
import socket

from structlog.testing import capture_logs

from distkv.log.line_limit import BURST_LINES
from distkv.wire.links.transports.socket_listener import SocketListener
from tests.wire.links.peers import PEER, accepting, random_pool


def test_strangers_do_not_fill_the_log() -> None:
    with random_pool() as pool, contextlib.closing(SocketListener("127.0.0.1:0", PEER, pool)) as listener:
        host, port = listener.address.rsplit(":", 1)
        with capture_logs() as logs, accepting(listener, []):
            for _ in range(10 * BURST_LINES):
                with socket.create_connection((host, int(port))) as stranger:
                    stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" * 20)
                    with contextlib.suppress(ConnectionError):
                        assert not stranger.recv(1)
    lines = [line for line in logs if line["event"] == "a connection that is no tensor link was dropped"]
    assert listener.malformed == 10 * BURST_LINES
    assert BURST_LINES <= len(lines) <= 2 * BURST_LINES
    assert sum(line["left_out"] for line in lines) <= listener.malformed - len(lines)
