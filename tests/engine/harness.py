"""An engine without processes: a model, a poisoned pool, and peers that are other pools of the same test."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from distkv.engine.attention.answer_times import AnswerTimes
from distkv.engine.attention.creditor_link import CreditorLink
from distkv.engine.attention.fetch.costs import Costs
from distkv.engine.attention.fetch.fetching import FETCH_BYTES
from distkv.engine.attention.fetch.link import FetchLink
from distkv.engine.attention.serving import AttendServer, ServedPlan, SpanRegistry
from distkv.engine.device.device import Device
from distkv.engine.device.pool import KvPool, slot_bytes
from distkv.engine.model.decoder import Model
from distkv.engine.step.batch import PlannedSeq
from distkv.engine.step.forward import Forward
from distkv.engine.step.prepare import prepare
from distkv.engine.step.runner import StepRunner
from distkv.engine.step.tables import BlockTables
from distkv.errors import LinkClosed
from distkv.token_ids import unpack
from distkv.types import PrefillKv
from distkv.wire.messages.common import Epoch, Run, SpanRef
from distkv.wire.messages.counters import Counters
from distkv.wire.messages.data import Attend, AttendPlan, DataMessage, SlotsQuery
from distkv.wire.messages.from_worker import SeqResult
from distkv.wire.messages.to_worker import RemoteSpan, Sampling, SeqStep, Step
from tests.token_ids import packed

GREEDY = Sampling(temperature=0.0, top_k=0, top_p=1.0, seed=0)


class Creditor:
    """A peer in the same process, with faults on demand: `fail_at` names the call that raises LinkError, in
    `fail_microbatch` or in any. calls: of all microbatches, as they came."""

    def __init__(self, name: str, engine: Engine) -> None:
        self.name, self.engine = name, engine
        self.registry = SpanRegistry()
        self.server = AttendServer(
            engine.pool, self.registry, engine.model.config, engine.model.dtype, engine.model.device
        )
        self.fail_at: tuple[str, int] | None = None
        self.fail_microbatch: int | None = None
        self.calls: list[tuple[str, int]] = []
        self.microbatches: list[int] = []
        self.plans: list[AttendPlan] = []

    def call(self, microbatch: int, kind: str, layer: int) -> None:
        self.calls.append((kind, layer))
        self.microbatches.append(microbatch)
        if self.fail_at == (kind, layer) and self.fail_microbatch in (None, microbatch):
            raise LinkClosed(self.name, "the test says so")


class Frames:
    """Frames to and from a creditor, of one microbatch of steps; its partials are computed when they are received."""

    stream = None

    def __init__(self, creditor: Creditor, microbatch: int) -> None:
        self._creditor, self._microbatch = creditor, microbatch
        self._served: ServedPlan | None = None
        self._queries: tuple[Attend, bytes] | None = None

    def send(self, header: DataMessage, *buffers: memoryview, timeout_s: float) -> None:
        body = b"".join(buffers)
        if isinstance(header, AttendPlan):
            self._creditor.call(self._microbatch, "plan", 0)
            self._creditor.plans.append(header)
            self._served = self._creditor.server.accept(header, body)
        else:
            assert isinstance(header, Attend) and self._queries is None
            self._creditor.call(self._microbatch, "send", header.layer)
            self._queries = header, body

    def recv(self, timeout_s: float) -> tuple[DataMessage, bytes | bytearray | memoryview]:
        assert self._served is not None and self._queries is not None
        (header, body), self._queries = self._queries, None
        self._creditor.call(self._microbatch, "collect", header.layer)
        partials, out, lse = self._creditor.server.serve(self._served, header, body)
        return partials, b"".join((out, lse))


class Blocks:
    """Reads from a creditor's pool, of one microbatch of steps. Its calls are "slots", "check" and "read"."""

    def __init__(self, creditor: Creditor, microbatch: int, is_mapped: bool) -> None:
        self._creditor, self._microbatch, self._is_mapped = creditor, microbatch, is_mapped
        self._query: SlotsQuery | None = None
        self.aborted = False

    @property
    def mapped(self) -> memoryview | None:
        return self._memory.toreadonly() if self._is_mapped else None

    @property
    def _memory(self) -> memoryview:
        view: memoryview = self._creditor.engine.pool._slots.view(-1).numpy().data
        return view

    def send(self, header: DataMessage, *buffers: memoryview, timeout_s: float) -> None:
        assert isinstance(header, SlotsQuery) and self._query is None
        self._creditor.call(self._microbatch, "slots" if header.with_slots else "check", 0)
        self._query = header

    def recv(self, timeout_s: float) -> tuple[DataMessage, bytes | bytearray | memoryview]:
        assert self._query is not None
        query, self._query = self._query, None
        return self._creditor.server.slots(query)

    def read(self, slots: Sequence[int], into: Sequence[memoryview], timeout_s: float, part: Any = None) -> None:
        self._creditor.call(self._microbatch, "read", 0)
        first, size = part
        (target,) = into
        for place, slot in enumerate(slots):
            start = slot * self._creditor.engine.pool.slot_bytes + first
            target[place * size : (place + 1) * size] = self._memory[start : start + size]

    def abort(self) -> None:
        self.aborted = True


class FakePeers:
    """maps: whether creditors' pools are memory of this process. costs: of each creditor, as it becomes known."""

    def __init__(self) -> None:
        self.creditors: dict[str, Creditor] = {}
        self.maps = True
        self.costs: dict[str, Costs] = {}
        self._links: dict[tuple[str, int], CreditorLink] = {}
        self.fetch_links: dict[tuple[str, int], FetchLink] = {}

    def creditor(self, instance_id: str, microbatch: int = 0) -> CreditorLink:
        if instance_id not in self.creditors:
            raise LinkClosed(instance_id, "never reached")
        link = self._links.get((instance_id, microbatch))
        if link is None or link.broken:
            frames = Frames(self.creditors[instance_id], microbatch)
            costs = self.costs.setdefault(instance_id, Costs())
            link = CreditorLink(frames, instance_id, AnswerTimes(1.0), Counters(), costs=costs)
            self._links[instance_id, microbatch] = link
        return link

    def fetch_link(self, instance_id: str, microbatch: int = 0) -> FetchLink | None:
        link = self.fetch_links.get((instance_id, microbatch))
        if link is None or link.broken:
            blocks = Blocks(self.creditors[instance_id], microbatch, self.maps)
            link = FetchLink(blocks, instance_id, AnswerTimes(1.0), self.costs.setdefault(instance_id, Costs()))
            self.fetch_links[instance_id, microbatch] = link
        return link


class Engine:
    """One worker's model and pool. The pool starts full of NaN."""

    def __init__(
        self,
        path: Path,
        dtype: str = "float32",
        *,
        num_slots: int = 64,
        block_tokens: int = 4,
        model: Model | None = None,
        device: Device | None = None,
        kv_dtype: torch.dtype | None = None,
        microbatches: int | None = None,
        prefill_kv: PrefillKv = "ship",
        fetch_bytes: int = FETCH_BYTES,
    ) -> None:
        self.model = model or Model.load(path, dtype, device)
        config, device, layout = self.model.config, self.model.device, self.model.device.backend.layout
        kv_dtype = kv_dtype or self.model.dtype
        size = num_slots * slot_bytes(config, block_tokens, kv_dtype)
        memory = torch.full((size,), 0xFF, dtype=torch.uint8, device=device.place)
        self.pool = KvPool(config, num_slots, block_tokens, kv_dtype, memory, layout)
        self.peers = FakePeers()
        self.runner = StepRunner(self.model, self.pool, self.peers, microbatches, prefill_kv, fetch_bytes)
        self.fetching = self.runner.fetching
        self._forward = Forward(self.model, self.pool)
        self._stream = device.stream()
        _settle()
        self._step_ids = itertools.count(1)
        self._next_slot = 0
        self.results: tuple[SeqResult, ...] = ()

    def table(self, num_tokens: int, *, scattered: bool = False) -> tuple[Run, ...]:
        """Fresh slots for the first `num_tokens` tokens of a sequence; scattered ones lie backwards."""
        blocks = -(-num_tokens // self.pool.block_tokens)
        first = self._next_slot
        self._next_slot += blocks
        if not scattered:
            return (Run(0, first, blocks),)
        return tuple(Run(block, first + blocks - 1 - block, 1) for block in range(blocks))

    def run(self, *seqs: SeqStep) -> tuple[SeqResult, ...]:
        return self.runner.run(Step(step_id=next(self._step_ids), seqs=seqs))

    @torch.inference_mode()
    def logits(self, *seqs: SeqStep) -> Tensor:
        """float32 [N, vocab], of every row."""
        device = self.model.device
        with self._stream:
            planned = [PlannedSeq(seq, unpack(seq.tokens)) for seq in seqs]
            if self.fetching is not None:
                self.fetching.begin_step()
            batch = prepare(
                next(self._step_ids),
                planned,
                self.pool,
                BlockTables(self.pool),
                self.model.config,
                self.peers,
                device,
                fetching=self.fetching,
            )
            (batch.wanted,) = device.to_device(torch.arange(len(batch.tokens)))
            (hidden,) = self._forward([batch], self.runner.counters)
            assert not any(seq.lost for seq in planned)
            return self.model.logits(hidden).cpu()

    def chunked_logits(self, ids: Sequence[int], chunks: Sequence[int], table: tuple[Run, ...]) -> Tensor:
        """Logits of all of `ids`, computed in pieces of these sizes."""
        ends = list(itertools.accumulate(chunks))
        assert ends[-1] == len(ids)
        pieces = [
            self.logits(seq_step(ids, start, end, table)) for start, end in zip([0, *ends[:-1]], ends, strict=True)
        ]
        return torch.cat(pieces)

    def add_creditor(self, name: str, *, num_slots: int = 64) -> Creditor:
        engine = Engine(
            Path(),
            num_slots=num_slots,
            block_tokens=self.pool.block_tokens,
            model=self.model,
            kv_dtype=self.pool.dtype,
        )
        creditor = Creditor(name, engine)
        self.peers.creditors[name] = creditor
        return creditor

    def lend(
        self, name: str, table: tuple[Run, ...], first_block: int, num_blocks: int, *, index: int = 0
    ) -> RemoteSpan:
        """Copy rBlocks of a sequence to a creditor and poison them here. The span has `index` more blocks in front."""
        creditor = self.peers.creditors[name]
        ref = SpanRef(span_id=f"{name}-{creditor.engine._next_slot}", epoch=Epoch(1, creditor.engine._next_slot))
        own = {run.first_block + i: run.first_slot + i for run in table for i in range(run.num_blocks)}
        slots = [
            run.first_slot
            for run in creditor.engine.table((index + num_blocks) * self.pool.block_tokens, scattered=True)
        ]
        for place in range(num_blocks):
            source = self.pool.slot(own[first_block + place])
            creditor.engine.pool.slot(slots[index + place]).copy_(source)
            source.fill_(0xFF)
        _settle()
        creditor.registry.grant(ref, tuple(slots))
        return RemoteSpan(instance_id=name, span=ref, index=index, first_block=first_block, num_blocks=num_blocks)


def _settle() -> None:
    """What the test itself did on a GPU was in no stream."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def without(table: tuple[Run, ...], first_block: int, num_blocks: int) -> tuple[Run, ...]:
    """A table of single blocks, less a range of them."""
    return tuple(
        Run(run.first_block + i, run.first_slot + i, 1)
        for run in table
        for i in range(run.num_blocks)
        if not first_block <= run.first_block + i < first_block + num_blocks
    )


def seq_step(
    ids: Sequence[int],
    start: int,
    end: int,
    table: tuple[Run, ...],
    *,
    name: str = "r",
    attempt: int = 0,
    version: int = 0,
    remote: tuple[RemoteSpan, ...] = (),
    sample: Sampling | None = None,
    **fields: Any,
) -> SeqStep:
    """Tokens [start, end) of `ids`; without the last one if it is not there yet."""
    return SeqStep(
        request_id=name,
        version=version,
        attempt=attempt,
        start=start,
        end=end,
        tokens=packed(*ids[start:end]),
        local=table,
        remote=remote,
        sample=sample,
        **fields,
    )
