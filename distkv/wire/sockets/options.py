"""How the sockets of the control plane are set up.

There is no receive high-water mark. A ZeroMQ connection whose reader's queue is full stops its input, and a `PING`
behind it, a heartbeat of its own or a reconnect then abort the process (libzmq 3937, 4364, 4767): a stranger's bytes
could end a daemon. So ZeroMQ's thread always reads, also while Python does not, and `FloodGuard` bounds what one
connection may send. There are no ZMTP heartbeats either: the kernel finds what is cut off.
"""

from __future__ import annotations

import zmq

SEND_QUEUE_MESSAGES = 10_000
CUT_OFF_S = 3
"""After so long without a sign of the other host a connection has dropped."""

_HANDSHAKE_S = 3


def open_socket(kind: int, ipv6: bool) -> zmq.Socket[bytes]:
    """A socket that is neither bound nor connected; the caller closes it."""
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(kind)
    socket.set(zmq.IPV6, int(ipv6))
    socket.set(zmq.SNDHWM, SEND_QUEUE_MESSAGES)
    socket.set(zmq.RCVHWM, 0)
    socket.set(zmq.HANDSHAKE_IVL, _HANDSHAKE_S * 1000)
    socket.set(zmq.CONNECT_TIMEOUT, _HANDSHAKE_S * 1000)
    # Probes where nothing is under way; the limit on unacknowledged data where something is.
    socket.set(zmq.TCP_KEEPALIVE, 1)
    socket.set(zmq.TCP_KEEPALIVE_IDLE, 1)
    socket.set(zmq.TCP_KEEPALIVE_INTVL, 1)
    socket.set(zmq.TCP_KEEPALIVE_CNT, CUT_OFF_S)
    socket.set(zmq.TCP_MAXRT, CUT_OFF_S * 1000)
    return socket
