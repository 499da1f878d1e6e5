"""Reads a creditor's blocks piece by piece in a thread, the next piece while the step attends to this one."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from distkv.engine.attention.bodies import body_of
from distkv.engine.attention.fetch.link import FetchLink, Part
from distkv.errors import LinkClosed


@dataclass(frozen=True, slots=True)
class Piece:
    """What is read at once: a part of each of these slots."""

    slots: Sequence[int]
    part: Part

    @property
    def num_bytes(self) -> int:
        """All of it."""
        return len(self.slots) * self.part[1]


class PieceReader:
    """The pieces of a step, in order, each in one of the buffers in turn. Used by the step thread.

    read_bytes, read_s: of all pieces that `next` returned; what reading took in its own thread, and cpu_s, of a core.
    """

    def __init__(self, link: FetchLink, pieces: Sequence[Piece], buffers: Sequence[Tensor]) -> None:
        """buffers: uint8 on the host, each as large as any piece."""
        self.read_bytes, self.read_s, self.cpu_s = 0, 0.0, 0.0
        self._link, self._pieces = link, pieces
        self._filled: queue.SimpleQueue[tuple[Tensor, float, float] | Exception] = queue.SimpleQueue()
        self._empty: queue.SimpleQueue[Tensor | None] = queue.SimpleQueue()
        for buffer in buffers:
            self._empty.put(buffer)
        self._next = 0
        name = f"fetch from {link.creditor_id}"
        self._thread: threading.Thread | None = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # the system gives no more of them
            self._thread = None
            self._filled.put(LinkClosed(link.creditor_id, str(error)))

    def next(self) -> Tensor:
        """The next piece, uint8 on the host; waits for it. Raises LinkError and WireError. It holds until `release`."""
        filled = self._filled.get()
        if isinstance(filled, Exception):
            raise filled
        self.read_bytes += self._pieces[self._next].num_bytes
        buffer, read_s, cpu_s = filled
        self.read_s += read_s
        self.cpu_s += cpu_s
        self._next += 1
        return buffer

    def release(self, buffer: Tensor) -> None:
        """A piece is not needed any more: its memory is read into again."""
        self._empty.put(buffer)

    def end(self) -> None:
        """Nothing is read any more, and nothing written to the buffers. Where pieces are left the link ends."""
        if self._next < len(self._pieces):
            self._link.end()
        self._empty.put(None)
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        for piece in self._pieces:
            buffer = self._empty.get()
            if buffer is None:
                return
            started_s, cpu_s = time.monotonic(), time.thread_time()
            try:
                self._link.read(piece.slots, body_of(buffer[: piece.num_bytes]), piece.part)
            except Exception as error:  # the step raises it: what is no failure of the link ends the worker
                self._filled.put(error)
                return
            self._filled.put((buffer, time.monotonic() - started_s, time.thread_time() - cpu_s))
