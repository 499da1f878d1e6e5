"""A worker that decodes all the time, and what its rManager would send it, on a core of their own."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self

import msgspec

from distkv.actors.instance.worker_rank import WorkerRank
from distkv.bench.workloads.computing.decode_steps import BLOCK_TOKENS, GREEDY
from distkv.checksums import pack as pack_checksums
from distkv.checksums import unpack as unpack_checksums
from distkv.client.background import BackgroundLoop
from distkv.config import InstanceConfig, build
from distkv.token_ids import pack
from distkv.wire.envelope_factory import EnvelopeFactory
from distkv.wire.messages.common import DataEndpoint, Epoch, Member, Run, SpanRef
from distkv.wire.messages.counters import Counters
from distkv.wire.messages.envelope import ToWorker
from distkv.wire.messages.from_worker import Checksummed, Pulled, StepResult, WorkerStats
from distkv.wire.messages.to_worker import Checksum, Grant, Peers, Pull, SeqStep, StatsQuery, Step

SPAN = SpanRef(span_id="s", epoch=Epoch(1, 1))
AHEAD = 2
"""Steps that the worker has: one that it computes, and the next."""
START_S, ANSWER_S = 120.0, 60.0
CHUNK_TOKENS = 512
_INCARNATION = 1


class Load(msgspec.Struct, frozen=True):
    """What an instance decodes. vocab: of its model. batch: sequences, each behind `context` tokens."""

    model: Path
    vocab: int
    batch: int
    context: int


class Instance:
    """A worker process that decodes from `begin` on: a token of each sequence in every step, behind the same keys.

    num_blocks: full rBlocks of its first sequence, in the slots from 0 on. lent: as many slots of a span that others'
    come to. loop: on which coroutines of it run. on_step: called there after every decode step. Other methods block.
    It ends with its context.
    """

    def __init__(self, name: str, load: Load, core: int | None) -> None:
        """core: of the worker and of this driver."""
        self.name = name
        self._load, self._core = load, core
        self.num_blocks = load.context // BLOCK_TOKENS
        self._each = self.num_blocks + 1
        self.lent = range(load.batch * self._each, load.batch * self._each + self.num_blocks)
        settings = {
            "model": str(load.model),
            "device": "cpu",
            "threads": 1,
            "kv_tokens": self.lent.stop * BLOCK_TOKENS,
            "block_size": BLOCK_TOKENS,
            "instance_id": name,
            "log_level": "warning",
        }
        self._config = build(InstanceConfig, settings)
        self._pending: dict[tuple[type, int], asyncio.Future[Any]] = {}
        self._numbers = self._steps_sent = 0
        self._ends_s: list[float] = []
        self._failure: BaseException | None = None
        self._decodes: tuple[SeqStep, ...] = ()
        self.on_step: Callable[[], None] | None = None
        self.loop = BackgroundLoop(f"driver of {name}")
        try:
            self.loop.call(self._start())
        except BaseException:
            self.loop.stop()
            raise

    @property
    def pid(self) -> int:
        """Of the worker."""
        return self._rank.pid

    @property
    def block_bytes(self) -> int:
        """Of an rBlock."""
        return self._data.slot_bytes

    @property
    def driver(self) -> int:
        """The thread of this process that drives it, by its number."""
        return self._driver

    @property
    def member(self) -> Member:
        """As others know it."""
        return Member(self.name, _INCARNATION, "", state="ready", data=self._data)

    def begin(self, members: Sequence[Member]) -> Future[None]:
        """Know these, lend the span, compute the KV of all sequences, and decode from then on."""
        return self.loop.start(self._begin(tuple(members)))

    def watch(self) -> None:
        """Count steps from now on."""
        self._ends_s = []

    def steps_per_s(self) -> float:
        """Since `watch`. Raises what has failed."""
        ends_s = self._ends_s
        self.check()
        if len(ends_s) < 2:
            raise RuntimeError(f"{self.name} computed {len(ends_s)} steps while it was watched")
        return (len(ends_s) - 1) / (ends_s[-1] - ends_s[0])

    def check(self) -> None:
        """Raise what has failed, if anything has."""
        if self._failure is not None:
            raise self._failure

    def fail(self, error: BaseException) -> None:
        """Have `check` raise this."""
        self._failure = self._failure or error

    def counters(self) -> Counters:
        """Of the worker so far."""
        return self.loop.call(self._counters())

    async def checksums(self, slots: Sequence[int]) -> Sequence[int]:
        """Of the worker's slots. On the loop."""
        number = self._number()
        answer: Checksummed = await self._ask(Checksum(checksum_id=number, slots=tuple(slots)), Checksummed, number)
        return unpack_checksums(answer.checksums)

    async def pull(self, source: str, source_slots: Sequence[int], slots: Sequence[int], sums: Sequence[int]) -> str:
        """Bring another's rBlocks into the span; returns what is wrong with them, or "". On the loop."""
        number = self._number()
        pull = Pull(
            pull_id=number,
            source_id=source,
            source_incarnation=_INCARNATION,
            source_slots=tuple(source_slots),
            slots=tuple(slots),
            checksums=pack_checksums(sums),
            span=SPAN,
        )
        answer: Pulled = await self._ask(pull, Pulled, number)
        return answer.problem

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.loop.call(self._stop())
        finally:
            self.loop.stop()

    async def _start(self) -> None:
        if self._core is not None:
            os.sched_setaffinity(0, [self._core])  # of the loop's thread; the worker begins with it
        self._driver = threading.get_native_id()
        self._rank = await WorkerRank.start(self._config, _INCARNATION, EnvelopeFactory(self.name))
        try:
            async with asyncio.timeout(START_S):
                self._data: DataEndpoint = (await self._rank.wait_ready()).data
        except BaseException:
            await self._rank.stop()
            raise
        self._reading = asyncio.create_task(self._read())
        self._watching = asyncio.create_task(self._watch())

    async def _begin(self, members: tuple[Member, ...]) -> None:
        self._rank.send(Peers(members=members), "")
        self._rank.send(Grant(span=SPAN, slots=tuple(self.lent)), "")
        draw = random.Random(self.name)
        for index in range(self._load.batch):
            for start in range(0, self._load.context, CHUNK_TOKENS):
                end = min(start + CHUNK_TOKENS, self._load.context)
                ids = array("i", [draw.randrange(self._load.vocab) for _ in range(start, end)])
                await self._computed((self._seq(index, start, end, pack(ids)),))
        tokens = pack(array("i", [1]))
        context = self._load.context
        self._decodes = tuple(
            msgspec.structs.replace(self._seq(index, context, context + 1, tokens), sample=GREEDY)
            for index in range(self._load.batch)
        )
        for _ in range(AHEAD):
            self._send_step(self._decodes)

    async def _computed(self, seqs: tuple[SeqStep, ...]) -> None:
        number = self._send_step(seqs)
        self._pending[StepResult, number] = future = asyncio.get_running_loop().create_future()
        async with asyncio.timeout(ANSWER_S):
            await future

    def _seq(self, index: int, start: int, end: int, tokens: bytes) -> SeqStep:
        run = Run(0, index * self._each, -(-end // BLOCK_TOKENS))
        return SeqStep(str(index), version=0, attempt=0, start=start, end=end, tokens=tokens, local=(run,))

    def _send_step(self, seqs: tuple[SeqStep, ...]) -> int:
        self._steps_sent += 1
        self._rank.send(Step(step_id=self._steps_sent, seqs=seqs), "")
        return self._steps_sent

    async def _counters(self) -> Counters:
        number = self._number()
        answer: WorkerStats = await self._ask(StatsQuery(query_id=number), WorkerStats, number)
        return answer.counters

    async def _ask(self, command: ToWorker, kind: type, number: int) -> Any:
        self._rank.send(command, "")
        self._pending[kind, number] = future = asyncio.get_running_loop().create_future()
        async with asyncio.timeout(ANSWER_S):
            return await future

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    async def _read(self) -> None:
        """Until the end: hand on what the worker says, and keep it decoding."""
        try:
            while True:
                body = (await self._rank.recv()).body
                match body:
                    case StepResult(step_id=number, results=results):
                        self._ends_s.append(time.monotonic())
                        if any(one.status != "ok" for one in results):
                            raise RuntimeError(f"{self.name}: a step failed")
                        if (StepResult, number) not in self._pending:
                            self._send_step(self._decodes)
                            if self.on_step is not None:
                                self.on_step()
                    case Checksummed(checksum_id=number) | Pulled(pull_id=number) | WorkerStats(query_id=number):
                        pass
                    case _:
                        raise RuntimeError(f"{self.name} said {body}")
                if (waiting := self._pending.pop((type(body), number), None)) is not None:
                    waiting.set_result(body)
        except Exception as error:
            self.fail(error)

    async def _watch(self) -> None:
        try:
            await self._rank.watch()
        except Exception as error:
            self.fail(error)

    async def _stop(self) -> None:
        self._reading.cancel()
        self._watching.cancel()
        await self._rank.stop()
