"""Decode steps with keys at creditors as captured graphs: one for a step whose creditors share mailboxes, else two for
each layer. Nothing that they launch depends on how many keys there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import structlog

from distkv.engine.device.pool import KvPool
from distkv.engine.model.decoder import Model
from distkv.engine.step.batch import Batch
from distkv.engine.step.graphs.by_frames import CapturedByFrames, FramePieces
from distkv.engine.step.graphs.by_mail import CapturedByMail
from distkv.engine.step.graphs.decode import DecodeGraphs
from distkv.engine.step.graphs.exchange_tensors import MOST_PARTIALS, ExchangeTensors

Kind = TypeVar("Kind")

EXCHANGE_SIZES = (1, 4, 16, 64)

_GROUP = 1
"""Of graphs that share memory: those of whole steps have the one before."""


class ExchangeGraphs:
    """Of a model over a pool; captures those of a size when they are first needed. For one thread and one stream. When
    a capture fails, the reason is logged and nothing is captured any more. problem: that reason."""

    problem: str | None = None

    def __init__(self, model: Model, pool: KvPool, decodes: DecodeGraphs) -> None:
        """decodes: whose block tables these share."""
        self._model, self._pool, self._decodes = model, pool, decodes
        self._sizes: tuple[int, ...] = EXCHANGE_SIZES
        self._tensors: dict[int, ExchangeTensors] = {}
        self._by_frames: dict[int, CapturedByFrames] = {}
        self._by_mail: dict[int, CapturedByMail] = {}

    def by_mail(self, num_rows: int) -> CapturedByMail | None:
        """For steps of so many rows whose creditors all share mailboxes; None if they are too many, or a capture
        failed."""
        size = self._size(num_rows)
        return None if size is None else self._captured(self._by_mail, CapturedByMail, size)

    def pieces(self, batch: Batch) -> FramePieces | None:
        """For the only microbatch of a step; None if there are none for it: it asks no creditor, or has chunks, fetched
        keys, gaps between own blocks, too many rows, too long ones or ones of too many partials, or a capture
        failed."""
        size = self._size(len(batch.tokens))
        if size is None or not batch.links or batch.fetched:
            return None
        if any(len(seq.tokens) > 1 or len(seq.remote) > MOST_PARTIALS for seq in batch.seqs):
            return None
        steps = [seq.step for seq in batch.seqs]
        taken = self._decodes.tables.take([step.request_id for step in steps], [step.local for step in steps])
        captured = None if taken is None else self._captured(self._by_frames, CapturedByFrames, size)
        if taken is None or captured is None:
            return None
        keys = np.array([step.end for step in steps]) - taken.first_blocks * self._pool.block_tokens
        return FramePieces(captured, batch, taken, keys)

    def capture_all(self) -> None:
        """All that steps can need, before the first of them."""
        for size in self._sizes:
            self._captured(self._by_frames, CapturedByFrames, size)
            self._captured(self._by_mail, CapturedByMail, size)

    def _size(self, num_rows: int) -> int | None:
        return next((size for size in self._sizes if size >= num_rows), None)

    def _captured(
        self, made: dict[int, Kind], kind: Callable[[Model, ExchangeTensors, int], Kind], size: int
    ) -> Kind | None:
        captured = made.get(size)
        if captured is None and self.problem is None:
            try:  # a kernel that does not compile or fit is no reason to stop either
                if size not in self._tensors:
                    self._tensors[size] = ExchangeTensors(self._model, self._pool, self._decodes, size)
                captured = made[size] = kind(self._model, self._tensors[size], _GROUP)
            except Exception as error:
                self.problem = str(error)
                self._sizes = ()
                self._tensors.clear()
                self._by_frames.clear()
                self._by_mail.clear()
                structlog.get_logger().warning("no CUDA graphs", size=size, of="exchanges", reason=str(error))
                return None
        return captured
