"""Steps of few rows whose keys all lie here, captured whole: from the tokens to the logits and the likeliest next ones.

Attention is in the graph: its launches depend on the captured number of rows alone, and where keys lie stands in tables
on the device (`kernels.static_decode`). A step copies the numbers of its rows to the device, and what has changed of
the block tables with them, and replays one graph. How keys are divided is planned for contexts somewhat longer than
they are, so that most steps plan nothing. The rows of a small chunk are decodes that share a table: all of them are
stored before the first of them attends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import structlog
import torch
from numpy.typing import NDArray
from torch import Tensor

from distkv.engine.attention.creditor_link import CreditorLink
from distkv.engine.device.device import Captured
from distkv.engine.device.pool import KvPool
from distkv.engine.model.decoder import Model
from distkv.engine.step.batch import PlannedSeq
from distkv.engine.step.graphs.device_tables import DeviceTables, TakenTables
from distkv.engine.step.graphs.division import Division
from distkv.kernels.attention.static_decode import StaticInputs

SIZES = (1, 2, 4, 8, 16, 32, 64)
NO_SLOT = -1
"""Where rows that stand for none are stored: `Backend.store` of GPUs skips them."""
CHUNK_PAIRS = 2**16
"""Of a row of a chunk and a key: each row reads its keys for itself here, which beyond takes longer than the launches
of a step without a graph."""

NUM_TABLES = 256
_TABLE_BYTES = 64 << 20
"""Of all tables: longer contexts than they hold are computed without these graphs."""


@dataclass(slots=True)
class Decodes:
    """A step that a graph computes. tokens: int64 [N], on the device; `run` reads them. wanted: int64 [M], likewise,
    the rows whose next tokens are wanted; None if those of all are. links: to creditors that the device asks."""

    tokens: Tensor
    wanted: Tensor | None
    _captured: Captured
    links: Sequence[CreditorLink] = ()

    def run(self) -> tuple[Tensor, ...]:
        """What `Model.likeliest` finds of the M wanted rows; it holds until the next step."""
        self._captured.replay()
        if self.wanted is not None:
            return tuple(found.index_select(0, self.wanted) for found in self._captured.results)
        return tuple(found[: len(self.tokens)] for found in self._captured.results)


class DecodeGraphs:
    """Makes graphs of a model over a pool, on a device whose backend has a `static_decode`. For one thread and one
    stream. When a capture fails, the reason is logged and nothing is captured any more. problem: that reason.
    max_blocks: of a table."""

    problem: str | None = None

    def __init__(self, model: Model, pool: KvPool, max_blocks: int | None = None) -> None:
        """max_blocks: of the longest context; by default as many as the pool has, up to 64 MiB of tables."""
        self._model, self._pool = model, pool
        self._sizes: tuple[int, ...] = SIZES
        self.max_blocks = min(max_blocks or pool.num_slots, pool.num_slots, _TABLE_BYTES // (4 * NUM_TABLES))
        self._tables: DeviceTables | None = None
        self._graphs: dict[tuple[int, int], _DecodeGraph] = {}

    def decodes(self, planned: Sequence[PlannedSeq]) -> Decodes | None:
        """The step, with its numbers on their way to the device; None if no graph computes such a step: it has too
        many rows, keys elsewhere, logprobs of prompts, chunks behind too many keys, sequences that are too many or too
        long, or a capture failed."""
        counts = [len(one.tokens) for one in planned]
        num_rows, pairs = sum(counts), 0
        size = next((size for size in self._sizes if size >= num_rows), None)
        if size is None or not num_rows:
            return None
        for one, count in zip(planned, counts, strict=True):
            if one.step.remote or one.step.prompt_logprobs is not None:
                return None
            pairs += count * one.step.end if count > 1 else 0
        if pairs > CHUNK_PAIRS:
            return None
        steps, device_tables = [one.step for one in planned], self.tables
        taken = device_tables.take([step.request_id for step in steps], [step.local for step in steps])
        if taken is None:
            return None
        rows = np.empty((4, num_rows), np.int64)
        if num_rows == len(planned):
            rows[0] = [one.tokens[0] for one in planned]
            rows[1] = [step.start for step in steps]
        else:
            taken = taken.repeated(counts)
            rows[0] = np.concatenate([one.tokens for one in planned])
            rows[1] = np.concatenate([np.arange(step.start, step.end) for step in steps])
        blocks, rows[3] = np.divmod(rows[1], self._pool.block_tokens)
        slots = device_tables.slots(taken, blocks)
        if slots is None:
            return None
        rows[2] = slots
        keys = rows[1] + 1 - taken.first_blocks * self._pool.block_tokens
        graph = self._graph(size, self._most_keys(int(keys.max())))
        return None if graph is None else graph.decodes(rows, taken, keys, _wanted(planned, counts))

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

    numbers: int64 [7, size]: tokens, positions, slots and offsets; changes of the tables, where and slots; and what
    the host alone uses, the rows that are wanted.
    """

    def __init__(
        self, model: Model, pool: KvPool, tables: DeviceTables, max_blocks: int, size: int, most_keys: int
    ) -> None:
        self._model, self._pool, self._tables = model, pool, tables
        heads, place = model.heads, model.device.place
        self._nothing = np.zeros((7, size), np.int64)
        self._nothing[2] = NO_SLOT
        self._nothing[4] = len(tables.tensor) - 1
        self._numbers = torch.from_numpy(self._nothing).to(place, copy=True)
        self._attended = torch.zeros(size, heads.queries, heads.dim, dtype=model.dtype, device=place)
        inputs = StaticInputs(tables.tensor, max_blocks, self._numbers[1], self._attended, model.config.windows)
        self._attention = model.device.backend.static_decode(inputs, pool.layer(0), most_keys)
        self._division = Division(self._attention, max_blocks, pool.block_tokens, most_keys)
        with torch.inference_mode():
            self._run()
            self._captured = model.device.capture(self._run)

    def decodes(
        self, rows: NDArray[np.int64], taken: TakenTables, keys: NDArray[np.int64], wanted: list[int] | None
    ) -> Decodes:
        """rows: [4, N], of `numbers`. taken: the table of each. keys: [N], how many each sees. wanted: see Decodes."""
        count, device = rows.shape[1], self._model.device
        self._division.fit(taken, keys)
        numbers = self._nothing.copy()
        numbers[:4, :count] = rows
        self._tables.put_changes(numbers[4], numbers[5], device)
        if wanted is not None:
            numbers[6, : len(wanted)] = wanted
        device.write(self._numbers, torch.from_numpy(numbers))
        rows_wanted = None if wanted is None else self._numbers[6, : len(wanted)]
        return Decodes(self._numbers[0, :count], rows_wanted, self._captured)

    def _run(self) -> tuple[Tensor, ...]:
        model, attended = self._model, self._attended
        tokens, positions, slots, offsets, at, changes, _ = self._numbers
        self._tables.tensor.index_copy_(0, at, changes.int())
        x, qkv = model.begin(tokens, positions)
        last = model.config.num_layers - 1
        for layer, window in enumerate(model.config.windows):
            kv = self._pool.layer(layer)
            q = model.device.backend.store(qkv, kv, slots, offsets)
            self._attention.attend(q, kv, model.config.scale, window)
            if layer < last:
                x, qkv = model.advance(layer, x, attended, qkv)
        return model.likeliest(model.end(x, attended))


def _wanted(planned: Sequence[PlannedSeq], counts: Sequence[int]) -> list[int] | None:
    """The last rows of sequences whose next tokens are wanted; None if these are all rows."""
    found = [end - 1 for end, one in zip(accumulate(counts), planned, strict=True) if one.step.sample is not None]
    return found if len(found) < sum(counts) else None
