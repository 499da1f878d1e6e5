"""A creditor's side of DistAttention: queries of peers over the spans lent to them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from distkv.engine.attention.bodies import OUT_DTYPES, body_of, tensor_of
from distkv.engine.attention.layer_times import ServedTimes
from distkv.engine.attention.spans import SpanRegistry, Standing
from distkv.engine.device.device import Device, ThreadStreams
from distkv.engine.device.pool import KvPool
from distkv.engine.model.config import ModelConfig
from distkv.errors import MalformedMessage
from distkv.kernels import AttentionMetadata, BlockTable
from distkv.kernels.exchange import ServeClock, Serving
from distkv.wire.messages.counters import Counters, total
from distkv.wire.messages.data import Attend, AttendEntry, AttendPlan, OutDtype, Partials, Slots, SlotsQuery, SpanPart

MAX_QUERY_BYTES = 1 << 30
MAX_PARTIALS_BYTES = 1 << 30
MAX_DIRECT_BYTES = 1 << 24
"""Of the partials of a layer that is served directly: they have memory of their own as long as their link has it."""
MAX_SLOTS = 1 << 20
"""That one query may ask for."""
MAX_POSITION = 1 << 48
"""Beyond any sequence, and far enough from the ends of int64 that kernels can count from it."""
MAX_ENTRIES = 1 << 16
"""Of a plan: each costs the registry, which others wait for, about a microsecond."""


@dataclass(slots=True)
class ServedPlan:
    """An accepted AttendPlan; it holds on its link until the next one. Made by `AttendServer.accept`.

    metadata: what its entries read, from the first queries on; stale: those that were gone then.
    """

    plan: AttendPlan
    positions: Tensor
    stale: tuple[int, ...] = ()
    metadata: AttentionMetadata | None = None


class ServeTime:
    """See ServeClock: for backends that have none of their own."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._num_serving, self._since_s, self._total_s = 0, 0.0, 0.0

    def begin(self) -> None:
        """See ServeClock."""
        with self._lock:
            if self._num_serving == 0:
                self._since_s = self._clock()
            self._num_serving += 1

    def end(self) -> None:
        """See ServeClock."""
        with self._lock:
            self._num_serving -= 1
            if self._num_serving == 0:
                self._total_s += self._clock() - self._since_s

    def total_s(self) -> float:
        """See ServeClock."""
        with self._lock:
            return self._total_s + (self._clock() - self._since_s if self._num_serving else 0.0)


@contextmanager
def _counted_by(clock: ServeClock) -> Iterator[None]:
    """Somebody is being served while this lasts."""
    clock.begin()
    try:
        yield
    finally:
        clock.end()


@dataclass(frozen=True, slots=True)
class Direct:
    """What serves the layers of plans with these entries without coming back to Python in between."""

    entries: tuple[AttendEntry, ...]
    num_rows: int
    out_dtype: OutDtype
    serving: Serving
    standing: Standing

    def fits(self, plan: AttendPlan) -> bool:
        """Whether it serves this plan, too."""
        return (self.entries, self.num_rows, self.out_dtype) == (plan.entries, plan.num_rows, plan.out_dtype)


class AttendServer:
    """Computes peers' micro-attention over local full rBlocks; waits for nothing remote.

    Any thread may call it; a ServedPlan belongs to one link. What a peer sends is checked before it is used:
    MalformedMessage means that its connection should be dropped. pool, registry, config, dtype (of queries), device: as
    they were given. On a GPU each thread has an urgent stream of its own
    beside the step. It need not wait for that: a block is lent after the step that wrote it was reported, and a step is
    reported when the device has done it. times: where those of each layer go; nowhere by default.
    """

    def __init__(
        self, pool: KvPool, registry: SpanRegistry, config: ModelConfig, dtype: torch.dtype, device: Device
    ) -> None:
        """dtype: of queries."""
        self.pool, self.registry, self.config, self.dtype, self.device = pool, registry, config, dtype, device
        self._heads = config.heads
        self._query_bytes = self._heads.queries * self._heads.dim * dtype.itemsize
        self._row_bytes = self._heads.queries * (self._heads.dim + 1) * 4
        self._streams = ThreadStreams(device, urgent=True)
        self._lock = threading.Lock()
        layers = [pool.layer(index) for index in range(config.num_layers)]
        self._exchanges = device.backend.exchanges(layers, config.windows, config.scale, self._heads.queries, dtype)
        self._clock: ServeClock = ServeTime() if self._exchanges is None else self._exchanges.clock()
        self._counters = Counters()
        self._posted_s = 0.0
        self.times: list[ServedTimes] | None = None

    @property
    def num_layers(self) -> int:
        """Of the model."""
        return self.config.num_layers

    @property
    def counters(self) -> Counters:
        """attend_queries and serve_s."""
        return total(self._counters, Counters(serve_s=self.served_s()))

    def served_s(self) -> float:
        """The time in which peers were served so far."""
        return self._clock.total_s() + self._posted_s

    def stream(self) -> AbstractContextManager[object]:
        """The calling thread's, in which it serves."""
        return self._streams.current()

    def keep_stream(self) -> bool:
        """See Device.keep_stream, of the calling thread's."""
        return self._streams.keep()

    def count_posted(self, rows: int, seconds: float) -> None:
        """Of plans whose layers the device served by itself. seconds: that it computed."""
        with self._lock:
            self._counters.attend_queries += rows
            self._posted_s += seconds

    def accept(self, plan: AttendPlan, body: bytes | bytearray | memoryview) -> ServedPlan:
        """Check a plan. body: int64 [num_rows], the position of each query row. Raises MalformedMessage."""
        positions = tensor_of(body, torch.int64, (plan.num_rows,)).clone()
        if plan.num_rows and (int(positions.min()) < 0 or int(positions.max()) > MAX_POSITION):
            raise MalformedMessage(f"positions from {int(positions.min())} to {int(positions.max())}")
        if plan.num_rows * self._query_bytes > MAX_QUERY_BYTES:
            raise MalformedMessage(f"the queries of a layer of this plan would be over {MAX_QUERY_BYTES} bytes")
        if sum(entry.num_rows for entry in plan.entries) * self._row_bytes > MAX_PARTIALS_BYTES:
            raise MalformedMessage(f"the partials of this plan would be over {MAX_PARTIALS_BYTES} bytes")
        if len(plan.entries) > MAX_ENTRIES:
            raise MalformedMessage(f"a plan of {len(plan.entries)} entries; expected {MAX_ENTRIES} at most")
        for entry in plan.entries:
            if not entry.num_rows:
                raise MalformedMessage("an entry of no rows")
            if entry.first_position > MAX_POSITION:
                raise MalformedMessage(f"a span that begins at position {entry.first_position}")
            if entry.row + entry.num_rows > plan.num_rows:
                raise MalformedMessage(
                    f"rows [{entry.row}, {entry.row + entry.num_rows}) of a plan with {plan.num_rows} rows"
                )
            with self.registry.pin(entry.span) as slots:
                if slots is not None:
                    _check_within(entry, slots)
        return ServedPlan(plan, positions)

    def stand(self, served: ServedPlan) -> Direct | None:
        """What serves a plan directly, until `leave`; None where it is to be served layer by layer, as where something
        of it is gone, or partials are large. Raises MalformedMessage."""
        rows = sum(entry.num_rows for entry in served.plan.entries)
        if self._exchanges is None or not rows or rows * self._row_bytes > MAX_DIRECT_BYTES:
            return None
        gate = self._exchanges.gate()
        parts = [(entry.span, entry.index, entry.num_blocks) for entry in served.plan.entries]
        found = self.registry.stand(parts, gate)
        if found is None:
            return None
        standing, spans = found
        plan = served.plan
        try:
            metadata = self.metadata(served, spans)
            serving = self._exchanges.serving(metadata, plan.num_rows, gate, self._clock, OUT_DTYPES[plan.out_dtype])
        except BaseException:
            self.registry.leave(standing)
            raise
        return Direct(plan.entries, plan.num_rows, plan.out_dtype, serving, standing)

    def leave(self, direct: Direct) -> None:
        """It serves nothing now, and will not again."""
        self.registry.leave(direct.standing)

    def count(self, served: ServedPlan, times: Sequence[tuple[int, float, float]]) -> None:
        """Of layers that were served directly."""
        with self._lock:
            self._counters.attend_queries += served.plan.num_rows * len(times)
        if self.times is not None:
            self.times += [ServedTimes(*one) for one in times]

    def serve(
        self, served: ServedPlan, header: Attend, body: bytes | bytearray | memoryview
    ) -> tuple[Partials, memoryview, memoryview]:
        """The partials of an Attend frame: header, out and lse. Raises MalformedMessage."""
        if header.step_id != served.plan.step_id:
            raise MalformedMessage(f"queries of step {header.step_id} under the plan of step {served.plan.step_id}")
        shape = (served.plan.num_rows, self._heads.queries, self._heads.dim)
        received_s = time.monotonic()
        stale, out, lse = self.attend(served, header.layer, tensor_of(body, self.dtype, shape))
        if self.times is not None:
            self.times.append(ServedTimes(header.layer, received_s, time.monotonic()))
        answer = Partials(step_id=header.step_id, layer=header.layer, stale=stale, out_dtype=served.plan.out_dtype)
        return answer, body_of(out), body_of(lse)

    def slots(self, query: SlotsQuery) -> tuple[Slots, memoryview]:
        """Where parts of spans lie, for a peer that reads them. Raises MalformedMessage."""
        if sum(part.num_blocks for part in query.parts) > MAX_SLOTS:
            raise MalformedMessage(f"a query for more than {MAX_SLOTS} slots")
        found: list[int] = []
        stale: list[int] = []
        for index, part in enumerate(query.parts):
            with self.registry.pin(part.span, part.index, part.num_blocks) as slots:
                if slots is None:
                    stale.append(index)
                    continue
                _check_within(part, slots)
                found.extend(slots[part.index : part.index + part.num_blocks] if query.with_slots else ())
        return Slots(stale=tuple(stale)), body_of(torch.tensor(found, dtype=torch.int64))

    @torch.inference_mode()
    def attend(self, served: ServedPlan, layer: int, q: Tensor) -> tuple[tuple[int, ...], Tensor, Tensor]:
        """Attend with q [R, Hq, D] to every entry's span, which is pinned only meanwhile.

        Returns the indices of stale entries, and entry by entry out [ΣR, Hq, D] in the plan's dtype and lse float32
        [ΣR, Hq]; all tensors on the host.
        """
        if layer >= self.config.num_layers:
            raise MalformedMessage(f"layer {layer} of a model with {self.config.num_layers} layers")
        device, backend = self.device, self.device.backend
        with _counted_by(self._clock), self._streams.current(), ExitStack() as pins:
            spans = [
                pins.enter_context(self.registry.pin(entry.span, entry.index, entry.num_blocks))
                for entry in served.plan.entries
            ]
            stale = tuple(index for index, slots in enumerate(spans) if slots is None)
            if served.metadata is None or served.stale != stale:
                served.metadata, served.stale = self.metadata(served, spans), stale
            window = self.config.windows[layer]
            (queries,) = device.to_device(q)
            out, lse = backend.attend(
                queries, self.pool.layer(layer), served.metadata, self.config.scale, window, serving=True
            )
            # Only what has arrived on the host was read while the spans were pinned.
            out, lse = device.to_host(out.to(OUT_DTYPES[served.plan.out_dtype]), lse).wait()
        with self._lock:
            self._counters.attend_queries += served.plan.num_rows
        return stale, out, lse

    def metadata(self, served: ServedPlan, spans: Sequence[tuple[int, ...] | None]) -> AttentionMetadata:
        """What the entries of a plan read. spans: the slots of each entry's span, None if it is gone. Raises
        MalformedMessage."""
        blocks = tuple(self._blocks(entry, slots) for entry, slots in zip(served.plan.entries, spans, strict=True))
        rows = tuple(range(entry.row, entry.row + entry.num_rows) for entry in served.plan.entries)
        (positions,) = self.device.to_device(served.positions)
        return AttentionMetadata(rows, blocks, positions, served.positions)

    def _blocks(self, entry: AttendEntry, slots: tuple[int, ...] | None) -> BlockTable:
        tokens = self.pool.block_tokens
        if slots is None:
            return BlockTable((), (), 0, tokens)
        _check_within(entry, slots)
        end = entry.first_position + entry.num_blocks * tokens
        lent = slots[entry.index : entry.index + entry.num_blocks]
        return BlockTable(lent, tuple(range(entry.first_position, end, tokens)), end, tokens)


def _check_within(entry: AttendEntry | SpanPart, slots: tuple[int, ...]) -> None:
    if entry.index + entry.num_blocks > len(slots):
        raise MalformedMessage(
            f"rBlocks [{entry.index}, {entry.index + entry.num_blocks}) of a span of {len(slots)} rBlocks"
        )
