"""A ROUTER that listens, and the bound on its connections."""

from __future__ import annotations

import errno
from contextlib import ExitStack

import zmq

from distkv.config import check_bind
from distkv.errors import ConfigError
from distkv.wire.address import join_host_port, needs_ipv6, port_hint, split_host_port
from distkv.wire.sockets.connection_limit import ConnectionLimit, descriptors_for_connections
from distkv.wire.sockets.options import open_socket


def listen_at(
    address: str, max_message_bytes: int, max_connections: int | None, *, insecure: bool
) -> tuple[zmq.Socket[bytes], str, ConnectionLimit]:
    """The socket, where clients really connect to, and the limit; the caller closes both. Call it under the running
    loop. Raises ConfigError as `ServerChannel.bind`, LinkClosed when the process has no descriptors left."""
    if not address.startswith("tcp://"):
        raise ConfigError("address", f"expected tcp://HOST:PORT, got {address!r}")
    host, port = split_host_port(address)
    check_bind(host, insecure)
    socket = open_socket(zmq.ROUTER, ipv6=needs_ipv6(host))
    try:
        with ExitStack() as undo:
            undo.callback(socket.close, linger=0)
            limit = ConnectionLimit(socket, max_connections or descriptors_for_connections())
            undo.callback(limit.close)
            socket.set(zmq.ROUTER_MANDATORY, 1)
            # A client that has reconnected takes its route over from its dead connection.
            socket.set(zmq.ROUTER_HANDOVER, 1)
            socket.set(zmq.MAXMSGSIZE, max_message_bytes)
            socket.bind(f"tcp://{join_host_port(host, port or '*')}")
            real = socket.get_string(zmq.LAST_ENDPOINT).rstrip("\0")
            _, limit.port = split_host_port(real)
            undo.pop_all()
    except zmq.ZMQError as e:
        is_unknown = e.errno == errno.ENODEV  # what ZeroMQ says of a name that is not found
        problem = f"no address of this machine is called {host}" if is_unknown else zmq.strerror(e.errno or 0)
        raise ConfigError("address", f"cannot listen at {address}: {problem}", port_hint(e.errno)) from None
    return socket, real, limit
