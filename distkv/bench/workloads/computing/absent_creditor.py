"""A creditor that is not there, with a mailbox: its debtor does all that it would do for one."""

from __future__ import annotations

import socket
from typing import NoReturn

import torch

from distkv.engine.attention.answer_times import AnswerTimes
from distkv.engine.attention.creditor_link import CreditorLink
from distkv.engine.attention.mailbox.posting import Posting, mailbox_bytes
from distkv.engine.model.decoder import Model
from distkv.wire.links.memory.mailbox_memory import make_mailbox
from distkv.wire.links.streams.frames import FrameSocket
from distkv.wire.messages.common import Epoch, SpanRef
from distkv.wire.messages.counters import Counters
from distkv.wire.messages.data import AttendPlan, DataMessage, PlanServed
from distkv.wire.messages.to_worker import RemoteSpan

NAME = "absent"
_WAIT_S = 10.0


class AbsentCreditor:
    """Peers of a debtor that has one creditor: plans go over a socket of this host, and its word on each lies there
    before it is read. Queries and partials are the device's affair. To be closed."""

    def __init__(self, model: Model) -> None:
        ours, theirs = socket.socketpair()
        self._theirs = FrameSocket(theirs, "debtor")
        config, device = model.config, model.device
        memory = make_mailbox(*mailbox_bytes(config.num_heads, config.head_dim, model.dtype))
        memory.forget()
        shared = torch.frombuffer(memory.view, dtype=torch.uint8)
        dims = config.num_layers, config.num_heads, config.head_dim, model.dtype
        posting = Posting(memory, shared, device, *dims)
        self._sockets = ours, theirs
        self._link = CreditorLink(_Link(ours), NAME, AnswerTimes(_WAIT_S), Counters(), posting=posting)

    def span(self, sequence: int, num_blocks: int) -> RemoteSpan:
        """The first blocks of a sequence."""
        ref = SpanRef(span_id=str(sequence), epoch=Epoch(1, sequence))
        return RemoteSpan(instance_id=NAME, span=ref, index=0, first_block=0, num_blocks=num_blocks)

    def answer(self, step_id: int) -> None:
        """Take the plan of the step before, if there was one, and say that the next one was served."""
        if step_id > 1:
            header, _positions = self._theirs.recv(_WAIT_S)
            assert isinstance(header, AttendPlan) and header.first_post
        self._theirs.send(PlanServed(step_id=step_id), ())

    def close(self) -> None:
        """Both ends of the socket."""
        for sock in self._sockets:
            sock.close()

    def creditor(self, instance_id: str, microbatch: int = 0) -> CreditorLink:
        """See Peers."""
        return self._link

    def fetch_link(self, instance_id: str, microbatch: int = 0) -> NoReturn:
        """Decodes fetch nothing."""
        raise AssertionError(f"keys of {instance_id} are fetched")


class _Link:
    stream = None

    def __init__(self, sock: socket.socket) -> None:
        self._frames = FrameSocket(sock, NAME, asks=True)

    def send(self, header: DataMessage, *buffers: memoryview, timeout_s: float) -> None:
        self._frames.send(header, buffers, timeout_s)

    def recv(self, timeout_s: float) -> tuple[DataMessage, memoryview]:
        return self._frames.recv(timeout_s)
