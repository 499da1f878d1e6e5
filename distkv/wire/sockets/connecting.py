"""A DEALER that connects, under an identity that nobody else knows."""

from __future__ import annotations

import errno
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import zmq

from distkv.errors import ConfigError, LinkClosed
from distkv.wire.sockets.options import open_socket

SHORTEST_RETRY_S = 0.05
"""The first pause between attempts to connect; they double."""

# Identities that begin with a zero byte are ZeroMQ's own.
_ROUTE_MARK, _ROUTE_BYTES = b"\x01", 16


@contextmanager
def new_dealer(address: str, max_message_bytes: int, longest_retry_s: float) -> Iterator[zmq.Socket[bytes]]:
    """For what connects it to `address`; it is closed where that raises. Raises LinkClosed when the process has no
    descriptors left, and ConfigError where ZeroMQ does not take the address."""
    socket = open_socket(zmq.DEALER, ipv6=False)
    try:
        socket.set(zmq.IDENTITY, _ROUTE_MARK + secrets.token_bytes(_ROUTE_BYTES))
        socket.set(zmq.MAXMSGSIZE, max_message_bytes)
        socket.set(zmq.RECONNECT_IVL, round(SHORTEST_RETRY_S * 1000))
        socket.set(zmq.RECONNECT_IVL_MAX, round(longest_retry_s * 1000))
        yield socket
    except BaseException as error:
        socket.close(linger=0)
        if isinstance(error, zmq.ZMQError) and error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise LinkClosed(address, f"no connection can be opened: {error.strerror}") from None
        if isinstance(error, zmq.ZMQError):
            raise ConfigError("address", f"cannot connect to {address}: {error.strerror}") from None
        raise
