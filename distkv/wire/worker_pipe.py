"""The private channel between an rManager and its engine worker.

The rManager side lives in asyncio; the worker side blocks, because the worker has plain threads. The endpoint is an
abstract Unix socket: nothing on disk, gone with its owner. Its random name is a secret of this process and the worker,
and connections of other users are refused.

Delivery: commands arrive in order; none is lost if the worker connects after they were sent. The results of one
`ResultWriter` arrive in order; several writers are not ordered among each other. When one end dies the other learns it:
the worker by LinkClosed from `recv`, the rManager by the end of its child.
"""

from __future__ import annotations

import os
import secrets
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import zmq

from distkv.errors import LinkClosed, MalformedMessage
from distkv.wire.codec import Bytes, EnvelopeDecoder, encode_envelope
from distkv.wire.envelope_factory import EnvelopeFactory
from distkv.wire.inboxes import WORKER_COMMANDS, WORKER_RESULTS
from distkv.wire.messages.envelope import Body, Envelope, FromWorker, ToWorker
from distkv.wire.sockets.loop_socket import LoopSocket
from distkv.wire.sockets.options import shared_context

MAX_PIPE_MESSAGE_BYTES = 64 * 2**20

_LINGER_S = 1.0


class WorkerPipe:
    """The rManager's end. address: to be handed to the worker, secretly (an environment variable, not a flag)."""

    def __init__(self) -> None:
        """Bind; needs a running loop."""
        self.address = f"ipc://@distkv-{secrets.token_hex(16)}"
        self._waiting: deque[bytes] = deque()
        commands = _private(zmq.PUSH)
        results = _private(zmq.PULL)
        commands.set(zmq.SNDHWM, 0)
        results.set(zmq.MAXMSGSIZE, MAX_PIPE_MESSAGE_BYTES)
        commands.bind(_commands(self.address))
        results.bind(_results(self.address))
        self._commands = LoopSocket(commands, "worker", on_writable=self._flush)
        self._results = LoopSocket(results, "worker")

    def send(self, envelope: Envelope[ToWorker]) -> None:
        """Send a command; it waits here until the worker has connected. Never blocks."""
        self._waiting.append(encode_envelope(envelope))
        self._flush()

    async def recv(self) -> Envelope[FromWorker]:
        """The next message of the worker. Raises MalformedMessage, or LinkClosed once closed here."""
        return _only(await self._results.recv(), WORKER_RESULTS)

    def close(self) -> None:
        """Close; commands sent before get a moment to leave."""
        self._commands.close(_LINGER_S)
        self._results.close(0)

    def abort(self) -> None:
        """Close at once."""
        self._commands.close(0)
        self._results.close(0)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close() if kind is None else self.abort()

    def _flush(self) -> None:
        while self._waiting and self._commands.send((self._waiting[0],)):
            self._waiting.popleft()


class CommandReader:
    """The worker's reading end, for one thread."""

    def __init__(self, address: str) -> None:
        self._socket = _private(zmq.PULL)
        self._monitor: zmq.Socket[bytes] = self._socket.get_monitor_socket(
            zmq.Event.DISCONNECTED | zmq.Event.CONNECT_RETRIED | zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
        )
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)
        self._socket.set(zmq.RCVHWM, 0)
        self._socket.connect(_commands(address))

    def recv(self, timeout_s: float) -> Envelope[ToWorker] | None:
        """The next command, or None after `timeout_s`.

        Raises MalformedMessage, and LinkClosed when the rManager is gone (every command it sent is read before).
        """
        ready = dict(self._poller.poll(max(0, round(timeout_s * 1000))))
        if self._socket in ready:
            return _only(self._socket.recv_multipart(), WORKER_COMMANDS)
        if self._monitor in ready:
            # The last commands may have come between the poll and the end of the connection.
            if self._socket.poll(0):
                return _only(self._socket.recv_multipart(), WORKER_COMMANDS)
            raise LinkClosed("rManager", "it ended or never listened")
        return None

    def close(self) -> None:
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class ResultWriter:
    """One writing end of the worker. Use and close it in the thread that made it; every thread has its own."""

    def __init__(self, address: str) -> None:
        self._envelopes = EnvelopeFactory("worker")
        # Only the end of a context waits until what was sent has left.
        self._context = zmq.Context()
        self._socket = _private(zmq.PUSH, self._context)
        self._socket.set(zmq.SNDHWM, 0)
        self._socket.connect(_results(address))

    def send(self, message: FromWorker, cause: str = "") -> None:
        """Send a result; `cause` is the id of the command's envelope. Does not block."""
        self._socket.send(encode_envelope(self._envelopes.wrap(message, cause)))

    def close(self) -> None:
        """Close; waits a moment for what was sent before to leave."""
        self._socket.close(linger=round(_LINGER_S * 1000))
        self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _commands(address: str) -> str:
    return address + "-commands"


def _results(address: str) -> str:
    return address + "-results"


def _private(kind: int, context: zmq.Context[zmq.Socket[bytes]] | None = None) -> zmq.Socket[bytes]:
    socket: zmq.Socket[bytes] = (context or shared_context()).socket(kind)
    socket.set(zmq.IPC_FILTER_UID, os.getuid())
    return socket


def _only(frames: Sequence[Bytes], inbox: EnvelopeDecoder[Body]) -> Envelope[Body]:
    if len(frames) != 1:
        raise MalformedMessage(f"a message has 1 frame, this one has {len(frames)}")
    return inbox.decode(frames[0], MAX_PIPE_MESSAGE_BYTES)
