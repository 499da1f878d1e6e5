"""How the sockets of the control plane are set up.

There is no receive high-water mark. A ZeroMQ connection whose reader's queue is full stops its input, and a `PING`
behind it, a heartbeat of its own or a reconnect then abort the process (libzmq 3937, 4364, 4767): a stranger's bytes
could end a daemon. So ZeroMQ's thread always reads, also while Python does not, and who sends more than is read is
found and shut: `FloodGuard`, `WaitingMessages`, `UnfinishedMessages`. There are no ZMTP heartbeats either: the kernel
finds what is cut off.
"""

from __future__ import annotations

import os
from contextlib import suppress

import zmq

from distkv.errors import LinkClosed

MAX_SOCKETS = 65_535
SEND_QUEUE_MESSAGES = 10_000
CUT_OFF_S = 10
"""After so long without a sign of the other host a connection has dropped, or when it has no room for what was sent:
the kernel has one limit for both, and a process that stands still for some seconds must not lose what is sent to it
meanwhile. Who has to know earlier waits for answers."""
BACKLOG = 65_535
"""Connections to a port that wait to be accepted; the system takes it down to its own limit, net.core.somaxconn. One
beyond that is tried again by the client after a second."""

_HANDSHAKE_S = 3
_ZERO_COPY_RECV = 10
"""ZeroMQ's number of a context option that the library does not name yet."""


def shared_context() -> zmq.Context[zmq.Socket[bytes]]:
    """The context of this process. A connection takes three sockets, and ZeroMQ's own limit is 1,023."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    if context.get(zmq.MAX_SOCKETS) < MAX_SOCKETS:
        context.set(zmq.MAX_SOCKETS, MAX_SOCKETS)
        # Else each message keeps the whole 8 KiB that it was read with for as long as it waits.
        with suppress(zmq.ZMQError):
            context.set(_ZERO_COPY_RECV, 0)
    return context


def read_when_others_rest() -> None:
    """ZeroMQ's thread takes no core from a thread that works on it, but waits until that rests: more has come by then,
    and neither is interrupted for every message. Where each has a core nothing changes. To be called before this
    process opens a socket."""
    shared_context().set(zmq.THREAD_SCHED_POLICY, os.SCHED_BATCH)


def open_socket(kind: int, ipv6: bool) -> zmq.Socket[bytes]:
    """A socket that is neither bound nor connected; the caller closes it.

    Raises LinkClosed when the process has no descriptors left.
    """
    try:
        socket = shared_context().socket(kind)
    except zmq.ZMQError as error:
        raise LinkClosed("ZeroMQ", f"no socket can be opened: {error.strerror}") from None
    socket.set(zmq.IPV6, int(ipv6))
    socket.set(zmq.SNDHWM, SEND_QUEUE_MESSAGES)
    socket.set(zmq.RCVHWM, 0)
    socket.set(zmq.BACKLOG, BACKLOG)
    socket.set(zmq.HANDSHAKE_IVL, _HANDSHAKE_S * 1000)
    socket.set(zmq.CONNECT_TIMEOUT, _HANDSHAKE_S * 1000)
    # Probes where nothing is under way. The limit on data that is not taken holds for them too.
    socket.set(zmq.TCP_KEEPALIVE, 1)
    socket.set(zmq.TCP_KEEPALIVE_IDLE, 1)
    socket.set(zmq.TCP_KEEPALIVE_INTVL, 1)
    socket.set(zmq.TCP_KEEPALIVE_CNT, CUT_OFF_S)
    socket.set(zmq.TCP_MAXRT, CUT_OFF_S * 1000)
    return socket
