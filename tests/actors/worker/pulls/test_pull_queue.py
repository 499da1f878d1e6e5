"""PullQueue step by step: who gets how much of a source, what is read together, and whose failure is whose."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from itertools import count

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from distkv.actors.worker.links.peer_links import PeerLinks
from distkv.actors.worker.pulls import batch, pull_queue
from distkv.actors.worker.pulls.pull_job import PullJob
from distkv.actors.worker.pulls.pull_queue import READS_AHEAD, PullQueue
from distkv.checksums import pack
from distkv.engine.attention.spans import SpanRegistry
from distkv.wire.links import LinkIdentity, PoolMemory, listen
from distkv.wire.links.base import BlockRead
from distkv.wire.links.memory.runs import Destination, runs_of
from distkv.wire.links.transports.inproc import InprocLink, InprocListener
from distkv.wire.messages.common import Member, SpanRef
from distkv.wire.messages.from_worker import Pulled
from distkv.wire.messages.to_worker import Pull
from tests.actors.links import close_links, identity, peer_links, span
from tests.examples import examples

SLOT_BYTES, NUM_SLOTS = 64, 400
BATCH_BLOCKS = 8
TIMEOUT_S = 0.05
_names = count()


class Source:
    """A pool that can be pulled from, and the trouble that its links can meet."""

    def __init__(self) -> None:
        self.incarnation = 1
        self.pool = PoolMemory(SLOT_BYTES, NUM_SLOTS)
        self.pool.view[:] = secrets.token_bytes(len(self.pool.view))
        self._listen()

    def restart(self) -> None:
        self.listener.close()
        self.incarnation += 1
        self._listen()

    @property
    def member(self) -> Member:
        endpoint = self.listener.endpoint
        return Member(instance_id="source", incarnation=self.incarnation, address="", state="ready", data=endpoint)

    def slot(self, number: int) -> bytes:
        return bytes(self.pool.view[number * SLOT_BYTES : (number + 1) * SLOT_BYTES])

    def close(self) -> None:
        self.listener.close()
        self.pool.close()

    def _listen(self) -> None:
        own: LinkIdentity = identity("source", self.incarnation)
        listener = listen(f"inproc://pulls-{next(_names)}", own, self.pool)
        assert isinstance(listener, InprocListener)
        self.listener, self.faults = listener, listener.faults


class Puller:
    """The queue of one source, stepped by hand. ended: the ends of pulls, in order; counted: bytes, refusals."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.pool = PoolMemory(SLOT_BYTES, NUM_SLOTS)
        self.registry = SpanRegistry()
        self.links: PeerLinks = peer_links("puller", SLOT_BYTES)
        self.links.update((source.member,))
        self.ended: list[Pulled] = []
        self.counted: list[tuple[int, int]] = []
        self.failures: list[BaseException] = []
        self.queue = PullQueue(self.links, self.registry, self.pool, TIMEOUT_S, self, self._count, self.failures.append)

    def pulled(self, pulled: Pulled, cause: str) -> None:
        assert cause == f"because of {pulled.pull_id}"
        self.ended.append(pulled)

    def put(self, pull_id: int, slots: list[int], into: list[int], ref: SpanRef | None = None, spoil: int = 0) -> None:
        sums = [xxhash.xxh3_64_intdigest(self.source.slot(min(slot, NUM_SLOTS - 1))) for slot in slots]
        if spoil:
            sums[-1] += spoil
        pull = Pull(
            pull_id=pull_id,
            source_id="source",
            source_incarnation=self.source.incarnation,
            source_slots=tuple(slots),
            slots=tuple(into),
            checksums=pack(sums),
            span=ref,
        )
        self.queue.put(PullJob(pull, f"because of {pull_id}"))

    def finish(self) -> dict[int, str]:
        """The problems of all pulls by then."""
        while self.queue.step():
            pass
        assert not self.failures
        return {one.pull_id: one.problem for one in self.ended}

    def slot(self, number: int) -> bytes:
        return bytes(self.pool.view[number * SLOT_BYTES : (number + 1) * SLOT_BYTES])

    def close(self) -> None:
        close_links(self.links)
        self.pool.close()

    def _count(self, num_bytes: int, refused: int) -> None:
        self.counted.append((num_bytes, refused))


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_queue, "BATCH_BYTES", BATCH_BLOCKS * SLOT_BYTES)


@pytest.fixture
def source() -> Iterator[Source]:
    source = Source()
    yield source
    source.close()


@pytest.fixture
def puller(source: Source) -> Iterator[Puller]:
    puller = Puller(source)
    yield puller
    puller.close()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The copies that each read makes."""
    copies: list[int] = []
    real = InprocLink.read_blocks

    def noted(self: InprocLink, slots: list[int], into: Destination) -> BlockRead:
        copies.append(len(runs_of(slots, SLOT_BYTES, into)))
        return real(self, slots, into)

    monkeypatch.setattr(InprocLink, "read_blocks", noted)
    return copies


@pytest.fixture
def at_first_read(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """What happens while the first read is under way."""
    happens: list[Callable[[], None]] = []
    real = InprocLink.read_blocks

    def noted(self: InprocLink, slots: list[int], into: Destination) -> BlockRead:
        read = real(self, slots, into)
        while happens:
            happens.pop()()
        return read

    monkeypatch.setattr(InprocLink, "read_blocks", noted)
    return happens


def test_small_pulls_wait_for_no_large_one(puller: Puller, reads: list[int]) -> None:
    puller.put(1, list(range(200)), list(range(200)))
    puller.queue.step()
    for pull_id in (2, 3, 4):
        puller.put(pull_id, [200 + pull_id], [200 + pull_id])
    while len(puller.ended) < 3:
        assert puller.queue.step()
    assert [one.pull_id for one in puller.ended] == [2, 3, 4]
    assert len(reads) <= 2 * READS_AHEAD + 1, "of some twenty-five"
    assert puller.finish() == dict.fromkeys((1, 2, 3, 4), "")
    assert [puller.slot(number) for number in range(205)][203:] == [puller.source.slot(n) for n in (203, 204)]


def test_large_pulls_share_the_source(puller: Puller, reads: list[int]) -> None:
    for number in range(4):
        puller.put(number, list(range(100 * number, 100 * number + 40)), list(range(100 * number, 100 * number + 40)))
    assert puller.finish() == dict.fromkeys(range(4), "")
    assert len(reads) == 160 // BATCH_BLOCKS, "no read is smaller than it may be"
    assert [one.pull_id for one in puller.ended] == [0, 1, 2, 3]


def test_neighbours_of_different_pulls_are_one_copy(puller: Puller, reads: list[int]) -> None:
    """Both ends are neighbours: 10-15 go to 50-55, whoever asked for which, and in whatever order."""
    puller.put(1, [12, 13], [52, 53])
    puller.put(2, [10, 11], [50, 51])
    puller.put(3, [14, 15], [54, 55])
    assert puller.finish() == {1: "", 2: "", 3: ""}
    assert reads == [1]
    assert [puller.slot(50 + i) for i in range(6)] == [puller.source.slot(10 + i) for i in range(6)]


def test_what_is_read_ahead_is_bounded(puller: Puller) -> None:
    puller.source.faults.hold("read")
    puller.put(1, list(range(300)), list(range(300)))
    puller.queue.step()
    assert puller.source.faults.calls["read"] <= READS_AHEAD


def test_blocks_are_verified_once_each_while_the_next_are_on_their_way(
    puller: Puller, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []
    digest = xxhash.xxh3_64_intdigest

    class Noted:
        @staticmethod
        def xxh3_64_intdigest(data: memoryview) -> int:
            begun.append(puller.source.faults.calls["read"])
            return digest(data)

    blocks = 5 * BATCH_BLOCKS
    puller.put(1, list(range(blocks)), list(range(blocks)))
    monkeypatch.setattr(batch, "xxhash", Noted)
    assert puller.finish() == {1: ""}
    assert len(begun) == blocks
    # While those of a read are verified, another one has begun, as long as there is one.
    assert begun == [min(5, READS_AHEAD + i // BATCH_BLOCKS) for i in range(blocks)]


def test_a_wrong_block_is_its_own_pulls_fault(puller: Puller) -> None:
    puller.put(1, [1, 2], [1, 2])
    puller.put(2, [3, 4], [3, 4], spoil=1)
    puller.put(3, [5, 6], [5, 6])
    with capture_logs() as logs:
        assert puller.finish() == {1: "", 2: "1 of 2 checksums do not match", 3: ""}
    # A read that came too late looks like this, too.
    assert [line["log_level"] for line in logs if line["event"] == "checksums do not match"] == ["warning"]
    assert sorted(puller.counted) == [(2 * SLOT_BYTES, 0), (2 * SLOT_BYTES, 0), (2 * SLOT_BYTES, 1)]


@pytest.mark.parametrize("bad", [[NUM_SLOTS], [*range(100, 130), NUM_SLOTS]], ids=["at once", "after some"])
def test_a_slot_that_does_not_exist_is_its_own_pulls_fault(puller: Puller, bad: list[int]) -> None:
    puller.registry.grant(span("s"), tuple(range(100, 200)))
    puller.put(1, list(range(20)), list(range(20)))
    puller.put(2, bad, list(range(100, 100 + len(bad))), ref=span("s"))
    puller.put(3, list(range(30, 50)), list(range(30, 50)))
    problems = puller.finish()
    assert (problems[1], problems[3]) == ("", "") and f"slot {NUM_SLOTS} is outside the pool" in problems[2]
    assert puller.registry.pins(span("s")) == 0
    assert sorted(problems) == sorted(one.pull_id for one in puller.ended), "each ends once"


def test_a_pull_that_has_ended_for_a_bad_slot_is_read_no_further(puller: Puller) -> None:
    """It has two shares of the read, since the other one is small."""
    puller.put(1, [NUM_SLOTS, *range(1, 20)], list(range(20)))
    puller.put(2, [30], [100])
    problems = puller.finish()
    assert problems[2] == "" and f"slot {NUM_SLOTS} is outside the pool" in problems[1]
    assert bytes(puller.pool.view[: 20 * SLOT_BYTES]) == bytes(20 * SLOT_BYTES)


def test_a_pull_that_is_revoked_while_its_shares_are_looked_at_is_read_no_further(
    puller: Puller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its revocation is said once nothing of it is read any more, and both shares count as wanted or none."""
    into = tuple(range(20))
    puller.registry.grant(span("s"), into)
    said: list[bytes] = []
    looked_at = puller.registry.is_gone

    def revoked_after(ref: SpanRef) -> bool:
        found = looked_at(ref)
        if not found:
            puller.registry.revoke(ref, lambda: said.append(bytes(puller.pool.view)))
        return found

    monkeypatch.setattr(puller.registry, "is_gone", revoked_after)
    puller.put(1, list(range(20)), list(into), ref=span("s"))
    puller.put(2, [30], [100])
    assert puller.finish() == {1: "the span is gone", 2: ""}
    own = 20 * SLOT_BYTES
    assert [memory[:own] for memory in said] == [bytes(puller.pool.view[:own])], "nothing was written after that"


def test_a_silent_source_fails_all_that_was_begun_and_writes_nothing_afterwards(puller: Puller) -> None:
    puller.source.faults.hold("read")
    puller.put(1, list(range(40)), list(range(40)))
    puller.put(2, [50], [50])
    problems = puller.finish()
    assert all("no answer within" in problems[pull_id] for pull_id in (1, 2))
    puller.source.faults.release("read")
    assert bytes(puller.pool.view) == bytes(len(puller.pool.view))
    puller.put(3, [1, 2], [1, 2])
    assert puller.finish()[3] == "", "over a new link"


def test_a_source_in_a_new_life_is_pulled_from_while_pulls_of_the_old_one_end(
    puller: Puller, at_first_read: list[Callable[[], None]]
) -> None:
    """What fails with the old link takes no new one with it."""

    def restart() -> None:
        puller.put(2, [50], [50])
        puller.source.restart()
        puller.links.update((puller.source.member,))
        puller.put(3, [51], [51])

    at_first_read.append(restart)
    puller.put(1, list(range(40)), list(range(40)))
    problems = puller.finish()
    assert "closed on this side" in problems[1] and "new incarnation" in problems[2] and problems[3] == ""
    link = puller.links.source("source", 2)
    puller.put(4, [52], [52])
    assert puller.finish()[4] == "" and puller.links.source("source", 2) is link


def test_a_revocation_waits_for_the_pulls_that_write_there(
    puller: Puller, at_first_read: list[Callable[[], None]]
) -> None:
    puller.registry.grant(span("s"), (4, 5))
    ended_before: list[int] = []

    def revoke() -> None:
        puller.registry.revoke(span("s"), lambda: ended_before.extend(one.pull_id for one in puller.ended))
        puller.put(2, [1, 2], [4, 5], ref=span("s"))

    at_first_read.append(revoke)
    puller.put(1, [1, 2], [4, 5], ref=span("s"))
    assert puller.finish() == {1: "", 2: "the span is gone"}
    assert 1 in ended_before


def test_a_revocation_ends_a_large_pull_early(
    puller: Puller, at_first_read: list[Callable[[], None]], reads: list[int]
) -> None:
    puller.registry.grant(span("s"), tuple(range(300)))
    revoked: list[int] = []
    at_first_read.append(lambda: puller.registry.revoke(span("s"), lambda: revoked.append(len(puller.ended))))
    puller.put(1, list(range(300)), list(range(300)), ref=span("s"))
    puller.put(2, [301], [301])
    assert puller.finish() == {1: "the span is gone", 2: ""}
    assert len(reads) <= READS_AHEAD and revoked == [1 + [one.pull_id for one in puller.ended].index(1)]


def test_a_pull_of_nothing_ends(puller: Puller) -> None:
    puller.put(1, [], [])
    assert puller.finish() == {1: ""}


@st.composite
def many_pulls(draw: st.DrawFn) -> list[tuple[list[int], list[int]]]:
    """Disjoint destinations, any sources, in runs and scattered."""
    into = draw(st.permutations(range(60))) if draw(st.booleans()) else list(range(60))
    sizes = draw(st.lists(st.integers(0, 25), min_size=1, max_size=8))
    pulls, at = [], 0
    for size in sizes:
        places = list(into[at : at + size])
        at += size
        first = draw(st.integers(0, NUM_SLOTS - 26))
        slots = [first + i for i in range(len(places))]
        pulls.append((draw(st.permutations(slots)) if draw(st.booleans()) else slots, places))
    return pulls


@given(many_pulls(), st.lists(st.integers(0, 3), min_size=8, max_size=8))
@settings(max_examples=examples(60), deadline=None)
def test_whatever_is_pulled_arrives(pulls: list[tuple[list[int], list[int]]], steps_between: list[int]) -> None:
    source = Source()
    puller = Puller(source)
    try:
        for number, (slots, into) in enumerate(pulls):
            puller.put(number, slots, into)
            for _ in range(steps_between[number]):
                puller.queue.step()
        assert puller.finish() == dict.fromkeys(range(len(pulls)), "")
        for slots, into in pulls:
            assert [puller.slot(place) for place in into] == [source.slot(slot) for slot in slots]
        assert sum(num_bytes for num_bytes, _ in puller.counted) == sum(len(into) for _, into in pulls) * SLOT_BYTES
    finally:
        puller.close()
        source.close()


@pytest.mark.parametrize("number", [-1, 2**64 - 1])
def test_numbers_that_no_block_has_fail_their_pull_only(puller: Puller, number: int) -> None:
    pull = Pull(
        pull_id=1, source_id="source", source_incarnation=1, source_slots=(number,), slots=(9,), checksums=pack([1])
    )
    puller.queue.put(PullJob(pull, "because of 1"))
    puller.put(2, [5], [5])
    problems = puller.finish()
    assert "outside the pool" in problems[1] and problems[2] == ""
