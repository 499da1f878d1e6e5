"""A TCP connection that ZeroMQ owns, by the number of its descriptor.

ZeroMQ may close the descriptor at any time, and another connection may have its number by now. So what is done here is
done to a copy of the descriptor, and only if it is what it is taken for.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
import sys
import termios
from collections.abc import Iterator

_BYTES_RECEIVED = struct.Struct("=128xQ")


def received_bytes(descriptor: int) -> int:
    """How much has come by it; 0 if it is none. It is asked for often, and a copy would take three times as long."""
    try:
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=descriptor)
    except OSError:
        return 0
    try:
        return _received_bytes(connection)
    finally:
        connection.detach()


def waiting_bytes(descriptor: int) -> int:
    """How much has come by it that its owner has not read yet; 0 if it is none."""
    with _copy(descriptor) as connection:
        if connection is None:
            return 0
        return int.from_bytes(fcntl.ioctl(connection, termios.FIONREAD, bytes(4)), sys.byteorder)


def shut_down(descriptor: int, *, received: int = 0, port: int | None = None) -> bool:
    """Shut it down if at least `received` bytes came by it, and it is one to the local `port`; False if it is not."""
    with _copy(descriptor) as connection:
        if connection is None or _received_bytes(connection) < received:
            return False
        try:
            if port is not None and connection.getsockname()[1] != port:
                return False
            connection.getpeername()  # raises where there is no connection
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            return False
        return True


@contextlib.contextmanager
def _copy(descriptor: int) -> Iterator[socket.socket | None]:
    try:
        copy = socket.socket(fileno=os.dup(descriptor))
    except OSError:
        yield None
        return
    with copy:
        yield copy if copy.family in (socket.AF_INET, socket.AF_INET6) else None


def _received_bytes(connection: socket.socket) -> int:
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_RECEIVED.size)
    except OSError:
        return 0
    return int(_BYTES_RECEIVED.unpack(info)[0]) if len(info) == _BYTES_RECEIVED.size else 0
