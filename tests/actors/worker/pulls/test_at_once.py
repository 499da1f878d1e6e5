"""PullsAtOnce: what goes well is done by the caller; anything else is left to who can wait, with nothing said."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import xxhash

from distkv.actors.worker.device_pool import DevicePool
from distkv.actors.worker.links.peer_links import PeerLinks
from distkv.actors.worker.pulls import at_once
from distkv.actors.worker.pulls.at_once import PullsAtOnce, most_blocks
from distkv.checksums import pack
from distkv.engine.device.cpu import CpuDevice
from distkv.types import Transport
from distkv.wire.links.memory.mapped_copy import can_check
from distkv.wire.messages.common import SpanRef
from distkv.wire.messages.from_worker import Pulled
from distkv.wire.messages.to_worker import Pull
from tests.actors.links import DEADLINE_S, NUM_SLOTS, Worker, close_links, identity, model_config, span

pytestmark = pytest.mark.skipif(not can_check(4096), reason="the native library is not built, or this CPU is too old")


class Puller:
    """ended: the ends of pulls, and how many readers held their span then; counted: bytes, refusals."""

    def __init__(self, own: Worker, source: Worker, transport: Transport) -> None:
        self.own, self.source = own, source
        self.links = PeerLinks(identity("puller"), own.memory.slot_bytes, DEADLINE_S, transport)
        self.links.update((source.member,))
        self.ended: list[tuple[Pulled, str, int]] = []
        self.counted: list[tuple[int, int]] = []
        self.pulls = self.begin()

    def begin(self) -> PullsAtOnce:
        return PullsAtOnce(self.links, self.own.registry, self.own.memory, self, self._count)

    def pulled(self, pulled: Pulled, cause: str) -> None:
        self.ended.append((pulled, cause, self.own.registry.pins(span("s"))))

    def _count(self, num_bytes: int, refused: int) -> None:
        self.counted.append((num_bytes, refused))

    def link(self) -> None:
        self.links.source("source", self.source.incarnation)

    def pull(self, *, spoil: int = 0, ref: SpanRef | None = None, source_slots: tuple[int, ...] = (1, 6)) -> bool:
        sums = [xxhash.xxh3_64_intdigest(self.source.slot(slot % NUM_SLOTS)) + spoil for slot in source_slots]
        pull = Pull(
            pull_id=5,
            source_id="source",
            source_incarnation=self.source.incarnation,
            source_slots=source_slots,
            slots=(4, 2),
            checksums=pack(sums),
            span=ref,
        )
        return self.pulls.pull(pull, "why")


@pytest.fixture
def transport() -> Transport:
    return "shm"


@pytest.fixture
def puller(tmp_path: Path, transport: Transport) -> Iterator[Puller]:
    config = model_config(tmp_path)
    own, source = Worker("puller", config), Worker("source", config, address="127.0.0.1:0")
    source.fill()
    with source.serves():
        puller = Puller(own, source, transport)
        yield puller
        close_links(puller.links)
    source.close()
    own.close()


def is_left(puller: Puller) -> bool:
    """Nothing was said or counted."""
    return not puller.ended and not puller.counted


def test_blocks_are_there_and_verified_when_it_returns(puller: Puller) -> None:
    puller.link()
    puller.own.registry.grant(span("s"), (4, 2))
    assert puller.pull(ref=span("s"))
    assert [puller.own.slot(slot) for slot in (4, 2)] == [puller.source.slot(slot) for slot in (1, 6)]
    assert puller.ended == [(Pulled(pull_id=5), "why", 1)], "while its span is pinned"
    assert puller.counted == [(2 * puller.own.memory.slot_bytes, 0)]
    assert puller.own.registry.pins(span("s")) == 0
    assert puller.pull() and len(puller.ended) == 2, "no span stands for the own sequence"


def test_a_link_is_not_waited_for(puller: Puller) -> None:
    assert not puller.pull() and is_left(puller)
    puller.link()
    puller.source.incarnation += 1
    assert not puller.pull() and is_left(puller)


@pytest.mark.parametrize("transport", ["tcp"])
def test_a_peer_that_has_to_send_is_not_waited_for(puller: Puller) -> None:
    puller.link()
    assert not puller.pull() and is_left(puller)


def test_who_is_gone_or_has_other_bytes_is_left_to_others(puller: Puller) -> None:
    puller.link()
    puller.own.registry.grant(span("s"), (4, 2))
    assert not puller.pull(spoil=1, ref=span("s")) and is_left(puller)
    assert not puller.pull(source_slots=(1, NUM_SLOTS)) and is_left(puller)
    assert puller.own.registry.pins(span("s")) == 0
    puller.own.registry.revoke(span("s"), lambda: None)
    before = puller.own.slot(4)
    assert not puller.pull(ref=span("s")) and is_left(puller)
    assert puller.own.slot(4) == before
    link = puller.links.open_source("source", puller.source.incarnation)
    assert link is not None
    link.abort()
    assert not puller.pull() and is_left(puller)


def test_what_is_large_is_left_to_others(puller: Puller, monkeypatch: pytest.MonkeyPatch) -> None:
    puller.link()
    size = puller.own.memory.slot_bytes
    monkeypatch.setattr(at_once, "MOST_BYTES", 2 * size - 1)
    puller.pulls = puller.begin()
    assert not puller.pull() and is_left(puller)
    monkeypatch.setattr(at_once, "MOST_BYTES", 2 * size)
    puller.pulls = puller.begin()
    assert puller.pull() and len(puller.ended) == 1


def test_no_block_of_a_device_is_worked_on_at_once(puller: Puller) -> None:
    assert most_blocks(DevicePool(4096, 4, CpuDevice())) == 0
    assert most_blocks(puller.own.memory) == at_once.MOST_BYTES // puller.own.memory.slot_bytes > 0
