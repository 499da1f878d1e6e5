"""Transfers: checksum, pull, verify; whatever is wrong with a source, nothing unverified is taken over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest
import xxhash

from distkv.actors.worker.links.peer_links import PeerLinks
from distkv.actors.worker.pulls import source_threads
from distkv.actors.worker.transfers import Transfers
from distkv.checksums import pack
from distkv.engine.model.config import ModelConfig
from distkv.errors import LinkClosed
from distkv.wire.envelope_factory import EnvelopeFactory
from distkv.wire.links.memory.mapped_copy import can_check
from distkv.wire.messages.common import MAX_REASON, SpanRef
from distkv.wire.messages.envelope import FromWorker
from distkv.wire.messages.from_worker import Checksummed, Linked, Pulled, Revoked
from distkv.wire.messages.to_worker import Checksum, Link, Pull, Shutdown
from distkv.wire.worker_pipe import WorkerEnd, WorkerPipe
from tests.actors.links import DEADLINE_S, Worker, close_links, model_config, peer_links, span
from tests.threads import NO_THREAD, no_threads
from tests.waiting import until

ENVELOPES = EnvelopeFactory("a")


@pytest.fixture(autouse=True)
def threads_end_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_threads, "IDLE_S", 0.01)


@pytest.fixture
def config(tmp_path: Path) -> ModelConfig:
    return model_config(tmp_path)


@pytest.fixture
def source(config: ModelConfig) -> Iterator[Worker]:
    worker = Worker("source", config, incarnation=3)
    worker.fill()
    yield worker
    worker.close()


class Puller:
    """A worker whose transfer thread runs."""

    def __init__(self, config: ModelConfig, pipe: WorkerPipe, source: Worker, patience_s: float) -> None:
        self.worker = Worker("puller", config)
        self.links: PeerLinks = peer_links("puller", source.memory.slot_bytes)
        self.links.update((source.member,))
        self.transfers = Transfers(
            WorkerEnd(pipe.worker_end), self.links, self.worker.registry, self.worker.memory, patience_s
        )
        self._pipe, self._source = pipe, source

    async def ask(self, command: Checksum | Pull | Link) -> FromWorker:
        self.transfers.put(ENVELOPES.wrap(command))
        return await self.answer()

    async def answer(self) -> FromWorker:
        async with asyncio.timeout(DEADLINE_S):
            return (await self._pipe.recv()).body  # type: ignore[return-value]

    async def pull(self, into: tuple[int, ...], spoil: int = 0, ref: SpanRef | None = None) -> Pulled:
        slots = tuple(range(1, 1 + len(into)))
        checksums = [xxhash.xxh3_64_intdigest(self._source.slot(slot)) for slot in slots]
        checksums[0] += spoil
        answer = await self.ask(
            Pull(
                pull_id=5,
                source_id="source",
                source_incarnation=self._source.incarnation,
                source_slots=slots,
                slots=into,
                checksums=pack(checksums),
                span=ref,
            )
        )
        assert isinstance(answer, Pulled) and answer.pull_id == 5
        return answer


@pytest.fixture
async def puller(config: ModelConfig, source: Worker, request: pytest.FixtureRequest) -> AsyncIterator[Puller]:
    """Its parameter: for how long a source may be silent, in seconds."""
    async with WorkerPipe() as pipe:
        puller = Puller(config, pipe, source, getattr(request, "param", 0.2))
        thread = asyncio.create_task(asyncio.to_thread(puller.transfers.run))
        yield puller
        puller.transfers.put(ENVELOPES.wrap(Shutdown()))
        with pytest.raises(AssertionError, match="Shutdown is no transfer"):
            await thread
        close_links(puller.links)
        puller.worker.close()


async def test_seals_are_checksums_of_the_slots(puller: Puller) -> None:
    puller.worker.fill()
    answer = await puller.ask(Checksum(checksum_id=9, slots=(3, 0)))
    expected = pack(xxhash.xxh3_64_intdigest(puller.worker.slot(slot)) for slot in (3, 0))
    assert answer == Checksummed(checksum_id=9, checksums=expected)


@pytest.mark.parametrize("into", [(0, 1, 2), (5, 2, 3), (7, 6, 0)])
async def test_blocks_arrive_where_they_belong(puller: Puller, source: Worker, into: tuple[int, ...]) -> None:
    answer = await puller.pull(into)
    assert answer.problem == ""
    assert [puller.worker.slot(slot) for slot in into] == [source.slot(1 + i) for i in range(3)]
    assert puller.transfers.counters.kv_bytes == 3 * source.memory.slot_bytes
    assert puller.transfers.counters.checksum_refusals == 0


async def test_into_a_span_it_is_pinned_meanwhile(puller: Puller) -> None:
    puller.worker.registry.grant(span("s"), (4, 5))
    assert (await puller.pull((4, 5), ref=span("s"))).problem == ""
    await until(lambda: puller.worker.registry.pins(span("s")) == 0)  # just after the answer


async def test_a_revoked_span_takes_nothing(puller: Puller) -> None:
    before = puller.worker.slot(4)
    puller.worker.registry.grant(span("s"), (4, 5))
    puller.worker.registry.revoke(span("s"), puller.transfers.reporter(Revoked(span=span("s")), "why"))
    assert await puller.answer() == Revoked(span=span("s"))
    for gone in (span("s"), span("s", counter=2)):
        answer = await puller.pull((4, 5), ref=gone)
        assert answer.problem == "the span is gone"
    assert puller.worker.slot(4) == before


async def test_a_span_revoked_while_it_is_filled_ends_after_the_answer(puller: Puller, source: Worker) -> None:
    puller.worker.registry.grant(span("s"), (4, 5))
    faults = source.listener.faults
    faults.hold("read")
    pulling = asyncio.create_task(puller.pull((4, 5), ref=span("s")))
    assert await asyncio.to_thread(faults.wait_calls, "read", 1, DEADLINE_S)
    puller.worker.registry.revoke(span("s"), puller.transfers.reporter(Revoked(span=span("s")), "why"))
    faults.release("read")
    assert isinstance(await pulling, Pulled)
    assert await puller.answer() == Revoked(span=span("s"))


@pytest.mark.parametrize("how", ["on the way", "at the debtor"])
async def test_a_wrong_checksum_is_refused_and_counted(puller: Puller, source: Worker, how: str) -> None:
    if how == "on the way":
        source.listener.faults.corrupt("read")
    answer = await puller.pull((4, 5), spoil=how == "at the debtor")
    assert answer.problem == "1 of 2 checksums do not match"
    assert puller.transfers.counters.checksum_refusals == 1
    assert (await puller.pull((4, 5))).problem == ""
    assert puller.transfers.counters.checksum_refusals == 1


async def test_a_pull_for_which_there_is_no_thread_fails_alone(puller: Puller, source: Worker) -> None:
    with no_threads():
        assert (await puller.pull((0, 1, 2))).problem == NO_THREAD
    assert (await puller.pull((0, 1, 2))).problem == ""
    assert puller.worker.slot(1) == source.slot(2)


async def test_a_source_that_does_not_answer_in_time(puller: Puller, source: Worker) -> None:
    source.listener.faults.hold("read")
    answer = await puller.pull((4,))
    assert "no answer within" in answer.problem
    source.listener.faults.release("read")
    assert (await puller.pull((4,))).problem == "", "over a new link"


@pytest.mark.parametrize("puller", [2 * DEADLINE_S], indirect=True)
async def test_a_silent_source_keeps_nobody_elses_blocks_waiting(
    puller: Puller, source: Worker, config: ModelConfig
) -> None:
    """With one thread for all transfers, who is behind a silent source would wait for its timeout."""
    other = Worker("other", config)
    other.fill()
    puller.links.update((source.member, other.member))
    source.listener.faults.hold("read")
    sums = pack(xxhash.xxh3_64_intdigest(other.slot(slot)) for slot in (2, 3))
    silent = Pull(
        pull_id=1, source_id="source", source_incarnation=3, source_slots=(1,), slots=(1,), checksums=bytes(8)
    )
    good = Pull(pull_id=2, source_id="other", source_incarnation=1, source_slots=(2, 3), slots=(5, 6), checksums=sums)
    for pull in (silent, silent, good):
        puller.transfers.put(ENVELOPES.wrap(pull))
    puller.transfers.put(ENVELOPES.wrap(Checksum(checksum_id=3, slots=(0,))))
    answers = [await puller.answer() for _ in range(2)]
    assert Pulled(pull_id=2) in answers and any(isinstance(answer, Checksummed) for answer in answers), answers
    assert [puller.worker.slot(slot) for slot in (5, 6)] == [other.slot(slot) for slot in (2, 3)]
    source.listener.faults.release("read")
    late = [await puller.answer() for _ in range(2)]
    assert all(isinstance(answer, Pulled) and answer.pull_id == 1 and answer.problem for answer in late), late
    other.close()


@pytest.mark.skipif(not can_check(4096), reason="the native library is not built, or this CPU is too old")
async def test_few_blocks_of_mapped_memory_come_without_another_thread(puller: Puller, config: ModelConfig) -> None:
    """But for the first, which links, and what must be said to be wrong."""
    mapped = Worker("mapped", config, address="127.0.0.1:0")
    mapped.fill()
    right = xxhash.xxh3_64_intdigest(mapped.slot(2))

    async def pulled(checksum: int) -> str:
        pull = Pull(
            pull_id=1,
            source_id="mapped",
            source_incarnation=1,
            source_slots=(2,),
            slots=(5,),
            checksums=pack([checksum]),
        )
        answer = await puller.ask(pull)
        assert isinstance(answer, Pulled)
        return answer.problem

    pulls = puller.transfers._pulls
    with mapped.serves():
        puller.links.update((mapped.member,))
        for checksum, problem in ((right, ""), (right + 1, "1 of 1 checksums do not match")):
            assert await pulled(checksum) == problem
        await until(lambda: not pulls.sources)
        for _ in range(3):
            assert await pulled(right) == "" and not pulls.sources
        close_links(puller.links)
    assert puller.worker.slot(5) == mapped.slot(2)
    counters = puller.transfers.counters
    assert (counters.kv_bytes, counters.checksum_refusals) == (5 * mapped.memory.slot_bytes, 1)
    mapped.close()


async def test_a_link_for_queries_is_opened_beside_the_transfers(puller: Puller, source: Worker) -> None:
    with source.serves():
        assert await puller.ask(Link(instance_id="source", incarnation=3)) == Linked(
            instance_id="source", incarnation=3
        )
        answer = await puller.ask(Link(instance_id="source", incarnation=4))
        assert isinstance(answer, Linked) and answer.problem == "it has a new incarnation"
        answer = await puller.ask(Link(instance_id="stranger", incarnation=1))
        assert isinstance(answer, Linked) and answer.problem == "it is no live member of the cluster"
        close_links(puller.links)


async def test_what_a_source_says_is_cut_to_what_a_message_may_carry(puller: Puller, source: Worker) -> None:
    source.listener.faults.fail("read", LinkClosed("source", "no! " * 5000))
    answer = await puller.pull((4,))
    assert len(answer.problem) == MAX_REASON and answer.problem.endswith("…")


async def test_a_source_that_is_listed_again_is_pulled_from_at_once(puller: Puller, source: Worker) -> None:
    """Else the link that ended with its entry is found, and its failure counts against the path."""
    assert (await puller.pull((4,))).problem == ""
    puller.links.update((), ("source",))
    puller.links.update((source.member,))
    assert (await puller.pull((4,))).problem == ""


async def test_a_source_that_died(puller: Puller, source: Worker) -> None:
    assert (await puller.pull((4,))).problem == ""
    link = source.listener.accept(DEADLINE_S)
    assert link is not None
    link.abort()
    source.listener.close()
    for _ in range(2):
        answer = await puller.pull((4,))
        assert answer.problem
    assert puller.transfers.counters.kv_bytes == source.memory.slot_bytes


async def test_a_source_in_another_life(puller: Puller, source: Worker) -> None:
    source.incarnation = 4
    answer = await puller.pull((4,))
    assert "new incarnation" in answer.problem


@pytest.mark.parametrize("size", [0, 16])
async def test_a_source_whose_blocks_have_another_size(puller: Puller, source: Worker, size: int) -> None:
    data = msgspec.structs.replace(source.listener.endpoint, slot_bytes=size)
    puller.links.update((msgspec.structs.replace(source.member, data=data),))
    for _ in range(2):
        assert (
            f"slot_bytes should be {source.memory.slot_bytes}, the peer has {size}" in (await puller.pull((4,))).problem
        )
    puller.links.update((source.member,))
    assert (await puller.pull((4,))).problem == ""


@pytest.mark.parametrize("address", ["x" * 70 + ".example:1", "a\0b:1", "nowhere"])
async def test_a_source_whose_address_is_none(puller: Puller, source: Worker, address: str) -> None:
    data = msgspec.structs.replace(source.listener.endpoint, address=address, host_key="another")
    puller.links.update((msgspec.structs.replace(source.member, data=data),))
    assert (await puller.pull((4,))).problem
    puller.links.update((source.member,))
    assert (await puller.pull((4,))).problem == ""


async def test_slots_that_do_not_exist_are_no_reason_to_fail(puller: Puller) -> None:
    pull = Pull(pull_id=5, source_id="source", source_incarnation=3, source_slots=(99,), slots=(1,), checksums=bytes(8))
    answer = await puller.ask(pull)
    assert isinstance(answer, Pulled)
    assert "slot 99 is outside the pool" in answer.problem
    assert (await puller.pull((4,))).problem == ""
