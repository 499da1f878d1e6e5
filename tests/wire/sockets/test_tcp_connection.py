"""Another's connection, asked and shut by the number of its descriptor."""

from __future__ import annotations

import os
import socket

from distkv.wire.sockets.tcp_connection import received_bytes, shut_down, waiting_bytes


def test_only_the_connection_that_received_so_much_is_shut() -> None:
    """The number of a descriptor may be another connection's by now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with socket.create_connection(listener.getsockname()) as near, listener.accept()[0] as far:
            near.sendall(b"x" * 100)
            far.recv(1, socket.MSG_PEEK)
            assert waiting_bytes(far.fileno()) == 100
            assert len(far.recv(100, socket.MSG_WAITALL)) == 100
            assert not shut_down(far.fileno(), received=101)
            assert waiting_bytes(far.fileno()) == 0
            assert received_bytes(far.fileno()) == 100
            assert not shut_down(far.fileno(), port=1)
            near.sendall(b"y")
            assert far.recv(1) == b"y"
            assert shut_down(far.fileno(), received=101)
            assert near.recv(1) == b"", "it was shut"
        assert not shut_down(listener.fileno()), "it is no connection"
    reading, writing = os.pipe()
    assert not shut_down(reading) and received_bytes(writing) == 0
    os.close(reading)
    os.close(writing)
    assert not shut_down(2**20) and received_bytes(2**20) == waiting_bytes(2**20) == 0
