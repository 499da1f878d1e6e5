"""A debtor's end of the link by which it reads one creditor's blocks. Actors hand it the link, no sockets."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import structlog
import torch
from numpy.typing import NDArray
from torch import Tensor

from distkv.engine.attention.answer_times import AnswerTimes
from distkv.engine.attention.fetch.costs import Costs
from distkv.engine.device.pool import KvPool
from distkv.errors import LinkClosed, LinkError, LinkTimeout, WireError
from distkv.wire.messages.common import clipped
from distkv.wire.messages.data import DataMessage, Slots, SlotsQuery, SpanPart

SLOT_BYTES = 8
"""Of a slot in the body of `Slots`."""

Part = tuple[int, int]
"""First byte and number of bytes, of every slot."""


class BlockLink(Protocol):
    """See distkv.wire.links.TensorLink. All but `abort` raise LinkError or WireError."""

    @property
    def mapped(self) -> memoryview | None: ...

    def send(self, header: DataMessage, *buffers: memoryview, timeout_s: float) -> None: ...

    def recv(self, timeout_s: float) -> tuple[DataMessage, bytes | bytearray | memoryview]: ...

    def read(self, slots: Sequence[int], into: Sequence[memoryview], timeout_s: float, part: Any = None) -> None: ...

    def abort(self) -> None: ...


class FetchLink:
    """Used by the step thread; `read` by the thread that reads for a step, while the step thread uses nothing else.

    Nothing but `read` raises LinkError: the first failure is logged and ends the link, and `broken` is true from then
    on. costs: of its creditor, those of shipping included. pool: the creditor's, over `memory`, as whoever fetches has
    made it.
    """

    def __init__(
        self,
        link: BlockLink,
        creditor_id: str,
        times: AnswerTimes,
        costs: Costs,
        on_silent: Callable[[], None] = lambda: None,
    ) -> None:
        """times: of its answers to queries, by which it is waited for. on_silent: called when it was waited for in
        vain."""
        self.creditor_id, self.costs = creditor_id, costs
        self.pool: KvPool | None = None
        self.broken = False
        self._link, self._times, self._on_silent = link, times, on_silent
        self._memory: Tensor | None = None

    def memory(self) -> Tensor | None:
        """The creditor's pool, uint8, only to be read; None if it is not mapped, or no longer."""
        if self._memory is None and not self.broken:
            try:
                view = self._link.mapped
                self._memory = None if view is None else _tensor_over(view)
            except ValueError:  # another thread has ended the link
                self.fail(LinkClosed(self.creditor_id, "it was closed on this side"))
        return self._memory

    def slots(self, parts: Sequence[SpanPart], num_slots: int | None = None) -> NDArray[np.int64] | None:
        """The slots of these parts of spans, int64, one part after the other. None when one of them does not exist, or
        the link fails. num_slots: of the creditor's pool, if it is known."""
        answered = self._ask(SlotsQuery(parts=tuple(parts)))
        if answered is None or answered[0].stale:
            return None
        body = memoryview(answered[1])
        if body.nbytes == SLOT_BYTES * sum(part.num_blocks for part in parts):
            found = np.frombuffer(body, dtype="<i8").astype(np.int64)
            if not len(found) or 0 <= found.min() <= found.max() < (num_slots or np.iinfo(np.int64).max):
                return found
        self.fail(LinkClosed(self.creditor_id, f"named slots in {body.nbytes} bytes that cannot be those of its spans"))
        return None

    def stale(self, parts: Sequence[SpanPart]) -> set[int]:
        """Which of these parts do not exist any more: what was read of them before counts for nothing. All, when the
        link fails."""
        answered = self._ask(SlotsQuery(parts=tuple(parts), with_slots=False))
        return set(range(len(parts))) if answered is None else set(answered[0].stale)

    def read(self, slots: Sequence[int], into: memoryview, part: Part) -> None:
        """Read a part of every slot. Raises LinkError and WireError; `fail` is to be called then."""
        patience_s = self._times.longest_s
        per_byte_s = self.costs.read_s_per_byte
        if per_byte_s is not None:
            patience_s = self._times.patience_for(into.nbytes * per_byte_s)
        self._link.read(slots, [into], patience_s, part)

    def probe(self, slots: Sequence[int], part: Part) -> None:
        """Read a part of these slots to learn how long that takes. Raises as `read` does."""
        into = memoryview(bytearray(len(slots) * part[1]))
        started_s = time.monotonic()
        self.read(slots, into, part)
        self.costs.read(into.nbytes, time.monotonic() - started_s)

    def fail(self, error: LinkError | WireError) -> None:
        """It failed: log that, and end the link, also under a reader."""
        if self.broken:
            return
        structlog.get_logger().warning("a creditor failed", peer=self.creditor_id, why=str(error))
        self.end()
        if isinstance(error, LinkTimeout):
            self._on_silent()

    def end(self) -> None:
        """It is not used any more, nor by a reader."""
        self.broken = True
        self._link.abort()

    def _ask(self, query: SlotsQuery) -> tuple[Slots, bytes | bytearray | memoryview] | None:
        if self.broken:
            return None
        patience_s = self._times.patience_s(1)
        asked_s = time.monotonic()
        try:
            self._link.send(query, timeout_s=patience_s)
            header, body = self._link.recv(patience_s)
            if not isinstance(header, Slots) or not all(index < len(query.parts) for index in header.stale):
                raise LinkClosed(self.creditor_id, f"sent {clipped(repr(header))} instead of slots")
        except (LinkError, WireError) as error:
            self.fail(error)
            return None
        self._times.took(1, time.monotonic() - asked_s)
        return header, body


def _tensor_over(view: memoryview) -> Tensor:
    """uint8, without a copy. It keeps the memory alive; torch knows no tensors that may only be read."""
    array = np.frombuffer(view, dtype=np.uint8)
    memory: Any = (ctypes.c_uint8 * array.nbytes).from_address(array.ctypes.data)
    memory.owner = array
    return torch.frombuffer(memory, dtype=torch.uint8)
