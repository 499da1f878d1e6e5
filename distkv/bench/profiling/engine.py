"""A real engine worker in its own process, driven without an rManager: the same Steps again and again, and their times.

Two of them are a debtor and its creditor. What lies in their pools does not matter to how long things take.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from array import array
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TypeVar

import msgspec

from distkv.actors.instance.worker_group import WorkerGroup
from distkv.actors.task_scope import task_scope
from distkv.config import InstanceConfig
from distkv.errors import ClusterError
from distkv.token_ids import pack
from distkv.wire.envelope_factory import EnvelopeFactory
from distkv.wire.messages.common import Epoch, Member, Run, SpanRef
from distkv.wire.messages.envelope import FromWorker, ToWorker
from distkv.wire.messages.from_worker import (
    Checksummed,
    Linked,
    Pulled,
    StepResult,
    WorkerFailed,
    WorkerReady,
    WorkerStats,
)
from distkv.wire.messages.to_worker import (
    Checksum,
    Grant,
    Link,
    Peers,
    Pull,
    RemoteSpan,
    Sampling,
    SeqStep,
    Step,
)

GREEDY = Sampling(temperature=0.0, top_k=0, top_p=1.0, seed=0)
INCARNATION = 1
SPAN = SpanRef(span_id="profile", epoch=Epoch(INCARNATION, 1))
WARM_UP = 1
"""Steps that are not counted."""
A = TypeVar("A", bound=FromWorker)
Enough = Callable[[int, float], bool]
"""Whether so many steps in so many seconds, and the one that is under way, are enough."""


class Took(msgspec.Struct, frozen=True):
    """A step: when it ended, how long after the one before it, and what of that it waited for partials; and what the
    worker computed for it, by its own clock."""

    ended_s: float
    step_s: float
    wait_s: float
    compute_s: float


class Timing(msgspec.Struct, frozen=True):
    """Of steps that follow each other: from one to the next, what of that they waited for partials, and what the
    worker computed for one."""

    step_s: float
    wait_s: float
    compute_s: float

    @property
    def own_s(self) -> float:
        """Without waiting."""
        return self.step_s - self.wait_s


class Engine:
    """One worker. Used by one task at a time."""

    def __init__(self, name: str, group: WorkerGroup, ready: WorkerReady) -> None:
        self.name, self.ready = name, ready
        self._group = group
        self._steps = 0
        self._answers: asyncio.Queue[FromWorker] = asyncio.Queue()

    async def receive(self) -> None:
        """Take in what the worker says but answers to probes, for ever; it is taken to hang when nobody does."""
        while True:
            message = (await self._group.recv()).body
            if not isinstance(message, WorkerStats):
                self._answers.put_nowait(message)

    @property
    def member(self) -> Member:
        """As a peer sees it."""
        return Member(
            instance_id=self.name, incarnation=INCARNATION, address="tcp://127.0.0.1:1", state="ready",
            block_tokens=self.ready.block_tokens, total_blocks=self.ready.num_slots, data=self.ready.data,
        )  # fmt: skip

    async def time(self, seqs: Sequence[SeqStep], enough: Enough) -> tuple[Took, ...]:
        """The same step again and again, the next one sent before the last is answered, until that is enough."""
        took: list[Took] = []
        before_s = before_wait_s = started_s = 0.0
        self._send_step(seqs)
        for number in itertools.count(1):
            is_last = number > WARM_UP and enough(len(took), before_s - started_s)
            if not is_last:
                self._send_step(seqs)
            result = await self._step_result()
            now_s, wait_s = time.perf_counter(), result.counters.attend_wait_s
            if number > WARM_UP:
                took.append(Took(now_s, now_s - before_s, wait_s - before_wait_s, result.compute_s))
            else:
                started_s = now_s
            if is_last:
                break
            before_s, before_wait_s = now_s, wait_s
        return tuple(took)

    def grant(self, num_blocks: int) -> None:
        """The first slots are a span that peers may attend over."""
        self._send(Grant(span=SPAN, slots=tuple(range(num_blocks))))

    async def link(self, creditor: Engine, *, by_network: bool) -> None:
        """Have a link to it. by_network: as if it were on another host. Raises ClusterError."""
        member = creditor.member
        assert member.data is not None
        if by_network:
            member = msgspec.structs.replace(member, data=msgspec.structs.replace(member.data, host_key=""))
        self._send(Peers(members=(), gone=(creditor.name,)))
        self._send(Peers(members=(member,)))
        self._send(Link(instance_id=creditor.name, incarnation=INCARNATION))
        linked = await self._answer(Linked)
        if linked.problem:
            raise ClusterError(f"no link to {creditor.name}: {linked.problem}")

    async def read(self, creditor: Engine, num_blocks: int, first_slot: int) -> float:
        """Bytes each second that rBlocks are read with from the creditor's first slots, verified and stored here."""
        slots = tuple(range(num_blocks))
        creditor._send(Checksum(checksum_id=1, slots=slots))
        checksums = (await creditor._answer(Checksummed)).checksums
        pull = Pull(
            pull_id=1, source_id=creditor.name, source_incarnation=INCARNATION, source_slots=slots,
            slots=tuple(first_slot + slot for slot in slots), checksums=checksums,
        )  # fmt: skip
        rates = []
        for _ in range(3):
            started_s = time.perf_counter()
            self._send(pull)
            pulled = await self._answer(Pulled)
            if pulled.problem:
                raise ClusterError(f"rBlocks could not be read: {pulled.problem}")
            rates.append(num_blocks * self.ready.data.slot_bytes / (time.perf_counter() - started_s))
        return max(rates)

    def _send_step(self, seqs: Sequence[SeqStep]) -> None:
        self._steps += 1
        self._send(Step(step_id=self._steps, seqs=tuple(seqs)))

    async def _step_result(self) -> StepResult:
        result = await self._answer(StepResult)
        if any(one.status != "ok" for one in result.results):
            raise ClusterError("a step lost a creditor; its log says why")
        return result

    def _send(self, command: ToWorker) -> None:
        self._group.send(command, "")

    async def _answer(self, kind: type[A]) -> A:
        """The next message, which is of this kind."""
        message = await self._answers.get()
        if isinstance(message, WorkerFailed):
            raise ClusterError(f"the engine worker {self.name} failed: {message.reason}")
        assert isinstance(message, kind), f"{message} came where {kind.__name__} was to"
        return message


def means_of(steps: Sequence[Took]) -> Timing:
    """Of a moment: none is left out, for what others do between them comes now and then. steps: at least one."""
    return Timing(*(statistics.fmean(each) for each in zip(*map(_timing, steps), strict=True)))


def medians_of(steps: Sequence[Took]) -> Timing:
    """Of a few long steps. steps: at least one."""
    return Timing(*(statistics.median(each) for each in zip(*map(_timing, steps), strict=True)))


def _timing(step: Took) -> tuple[float, float, float]:
    return step.step_s, step.wait_s, step.compute_s


@asynccontextmanager
async def engines(configs: Sequence[InstanceConfig]) -> AsyncIterator[tuple[Engine, ...]]:
    """Start workers, all at once; they end with the block. configs: resolved. Raises StartupFailed, WorkerGone."""
    async with AsyncExitStack() as stack:
        groups = [
            await stack.enter_async_context(
                await WorkerGroup.start(config, INCARNATION, EnvelopeFactory(config.instance_id))
            )
            for config in configs
        ]
        ready = [await group.wait_ready() for group in groups]
        async with task_scope() as tasks:
            made = tuple(
                Engine(config.instance_id, group, one)
                for config, group, one in zip(configs, groups, ready, strict=True)
            )
            for group, engine in zip(groups, made, strict=True):
                group.watch(tasks)
                tasks.create_task(engine.receive())
            yield made


def decodes(
    contexts: Sequence[int], block_tokens: int, *, first_slot: int, remote_blocks: int = 0, creditor: str = ""
) -> tuple[SeqStep, ...]:
    """A decode step of sequences behind so many tokens each; the first has its oldest rBlocks on the creditor."""
    seqs = []
    for index, context in enumerate(contexts):
        remote = remote_blocks if index == 0 else 0
        seq = _sequence(f"decode {index}", context, 1, block_tokens, first_slot, remote, creditor)
        seqs.append(msgspec.structs.replace(seq, sample=GREEDY))
        first_slot += seq.local[0].num_blocks
    return tuple(seqs)


def chunk(
    num_tokens: int, context: int, block_tokens: int, *, first_slot: int, remote_blocks: int = 0, creditor: str = ""
) -> tuple[SeqStep, ...]:
    """A prefill chunk of so many tokens behind so many others, the oldest rBlocks of which lie on the creditor."""
    return (_sequence("prefill", context, num_tokens, block_tokens, first_slot, remote_blocks, creditor),)


def _sequence(
    name: str, context: int, num_tokens: int, block_tokens: int, first_slot: int, remote_blocks: int, creditor: str
) -> SeqStep:
    end = context + num_tokens
    span = RemoteSpan(instance_id=creditor, span=SPAN, index=0, first_block=0, num_blocks=remote_blocks)
    return SeqStep(
        request_id=name, version=0, attempt=0, start=context, end=end, tokens=pack(array("i", [1] * num_tokens)),
        local=(Run(remote_blocks, first_slot, -(-end // block_tokens) - remote_blocks),),
        remote=(span,) if remote_blocks else (),
    )  # fmt: skip
