"""Decode steps whose keys all lie here, captured whole: from the tokens to the logits and the likeliest next tokens.

Attention is in the graph: its launches depend on the captured number of rows alone, and where keys lie stands in tables
on the device (`kernels.static_decode`). A step copies the numbers of its rows to the device, and what has changed of
the block tables with them, and replays one graph. How keys are divided is planned for contexts somewhat longer than
they are, so that most steps plan nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import structlog
import torch
from numpy.typing import NDArray
from torch import Tensor

from distkv.engine.device.device import Captured
from distkv.engine.device.pool import KvPool
from distkv.engine.model.decoder import Model
from distkv.engine.sampling.distribution import argmax
from distkv.engine.step.batch import PlannedSeq
from distkv.engine.step.graphs.device_tables import DeviceTables, TakenTables
from distkv.engine.step.graphs.division import Division
from distkv.engine.step.graphs.piecewise import NO_SLOT, SIZES
from distkv.kernels.static_decode import StaticInputs

NUM_TABLES = 256
_TABLE_BYTES = 64 << 20
"""Of all tables: longer contexts than they hold are computed without these graphs."""


@dataclass(slots=True)
class Decodes:
    """A step that a graph computes. tokens: int64 [N], on the device; `run` reads them."""

    tokens: Tensor
    _captured: Captured

    def run(self) -> tuple[Tensor, Tensor]:
        """float32 logits [N, vocab] and int64 [N], the token of the largest of each row; both hold until the next
        step."""
        self._captured.replay()
        logits, likeliest = self._captured.results
        return logits[: len(self.tokens)], likeliest[: len(self.tokens)]


class DecodeGraphs:
    """Makes graphs of a model over a pool, on a device whose backend has a `static_decode`. For one thread and one
    stream. When a capture fails, the reason is logged and nothing is captured any more. problem: that reason.
    max_blocks: of a table."""

    problem: str | None = None

    def __init__(
        self, model: Model, pool: KvPool, sizes: tuple[int, ...] = SIZES, max_blocks: int | None = None
    ) -> None:
        """max_blocks: of the longest context; by default as many as the pool has, up to 64 MiB of tables."""
        self._model, self._pool, self._sizes = model, pool, sizes
        self.max_blocks = min(max_blocks or pool.num_slots, pool.num_slots, _TABLE_BYTES // (4 * NUM_TABLES))
        self._tables: DeviceTables | None = None
        self._graphs: dict[tuple[int, int], _DecodeGraph] = {}

    def decodes(self, planned: Sequence[PlannedSeq]) -> Decodes | None:
        """The step, with its numbers on their way to the device; None if no graph computes such a step: it has chunks,
        keys elsewhere, sequences without a sample, too many of them or too long ones, or a capture failed."""
        count = len(planned)
        size = next((size for size in self._sizes if size >= count), None)
        if size is None or not count:
            return None
        for one in planned:
            step = one.step
            # One row over own keys, whose next token is wanted.
            if step.sample is None or step.remote or len(one.tokens) != 1 or step.prompt_logprobs is not None:
                return None
        steps, device_tables = [one.step for one in planned], self.tables
        taken = device_tables.take([step.request_id for step in steps], [step.local for step in steps])
        if taken is None:
            return None
        rows = np.empty((4, count), np.int64)
        rows[0] = [one.tokens[0] for one in planned]
        rows[1] = [step.start for step in steps]
        blocks, rows[3] = np.divmod(rows[1], self._pool.block_tokens)
        slots = device_tables.slots(taken, blocks)
        if slots is None:
            return None
        rows[2] = slots
        keys = rows[1] + 1 - taken.first_blocks * self._pool.block_tokens
        graph = self._graph(size, self._most_keys(int(keys.max())))
        return None if graph is None else graph.decodes(rows, taken, keys)

    def capture_all(self) -> None:
        """All that steps can need, before the first of them."""
        longest = self.max_blocks * self._pool.block_tokens
        for most_keys in self._model.device.backend.static_keys:
            for size in self._sizes:
                self._graph(size, most_keys)
            if most_keys >= longest:
                break

    def forget(self, request_ids: Iterable[str]) -> None:
        """Drop what is kept of these requests."""
        if self._tables is not None:
            self._tables.forget(request_ids)

    @property
    def tables(self) -> DeviceTables:
        """Of all captured decodes. Made when they are first needed."""
        if self._tables is None:
            self._tables = DeviceTables(self._pool, self._model.device.place, NUM_TABLES, self.max_blocks)
        return self._tables

    def _most_keys(self, longest: int) -> int:
        return next(most for most in self._model.device.backend.static_keys if most >= longest)

    def _graph(self, size: int, most_keys: int) -> _DecodeGraph | None:
        graph = self._graphs.get((size, most_keys))
        if graph is None and self.problem is None:
            try:  # a kernel that does not compile or fit is no reason to stop either
                graph = _DecodeGraph(self._model, self._pool, self.tables, self.max_blocks, size, most_keys)
            except Exception as error:
                self.problem = str(error)
                self._sizes = ()
                self._graphs.clear()
                structlog.get_logger().warning("no CUDA graphs", size=size, of="whole steps", reason=str(error))
            else:
                self._graphs[size, most_keys] = graph
        return graph


class _DecodeGraph:
    """For up to `size` rows of contexts of up to most_keys keys. Raises RuntimeError when it cannot be captured.

    numbers: int64 [6, size]: tokens, positions, slots and offsets, and changes of the tables: where, and slots.
    """

    def __init__(
        self, model: Model, pool: KvPool, tables: DeviceTables, max_blocks: int, size: int, most_keys: int
    ) -> None:
        self._model, self._pool, self._tables = model, pool, tables
        heads, place = model.heads, model.device.place
        self._nothing = np.zeros((6, size), np.int64)
        self._nothing[2] = NO_SLOT
        self._nothing[4] = len(tables.tensor) - 1
        self._numbers = torch.from_numpy(self._nothing).to(place, copy=True)
        self._attended = torch.zeros(size, heads.queries, heads.dim, dtype=model.dtype, device=place)
        inputs = StaticInputs(tables.tensor, max_blocks, self._numbers[1], self._attended, model.config.windows)
        self._attention = model.device.backend.static_decode(inputs, pool.layer(0), most_keys)
        self._division = Division(self._attention, max_blocks, pool.block_tokens, most_keys)
        with torch.inference_mode():
            self._run()
            self._captured = model.device.capture(self._run, _GROUP)

    def decodes(self, rows: NDArray[np.int64], taken: TakenTables, keys: NDArray[np.int64]) -> Decodes:
        """rows: [4, N], of `numbers`. taken: the table of each. keys: [N], how many each sees."""
        count, device = rows.shape[1], self._model.device
        self._division.fit(taken, keys)
        numbers = self._nothing.copy()
        numbers[:4, :count] = rows
        self._tables.put_changes(numbers[4], numbers[5], device)
        device.write(self._numbers, torch.from_numpy(numbers))
        return Decodes(self._numbers[0, :count], self._captured)

    def _run(self) -> tuple[Tensor, ...]:
        model, attended = self._model, self._attended
        tokens, positions, slots, offsets, at, changes = self._numbers
        self._tables.tensor.index_copy_(0, at, changes.int())
        x, qkv = model.begin(tokens, positions)
        last = model.config.num_layers - 1
        for layer, window in enumerate(model.config.windows):
            kv = self._pool.layer(layer)
            q = model.device.backend.store(qkv, kv, slots, offsets)
            self._attention.attend(q, kv, model.config.scale, window)
            if layer < last:
                x, qkv = model.advance(layer, x, attended, qkv)
        logits = model.logits(model.end(x, attended))
        return logits, argmax(logits)


_GROUP = 2
"""Of graphs that share memory: those of pieces have one for each microbatch."""
