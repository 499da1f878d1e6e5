"""Sockets of those who do not keep to the protocol."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import zmq


@contextlib.contextmanager
def stranger_at(address: str) -> Iterator[zmq.Socket[bytes]]:
    """A plain socket that connects to a server."""
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
    socket.connect(address)
    try:
        yield socket
    finally:
        socket.close(0)
