"""PeerLinks: one link per creditor and per source, to the incarnation that the member list names."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from structlog.testing import capture_logs

from distkv.actors.worker.links import creditor_links
from distkv.actors.worker.links import peer_links as peer_links_module
from distkv.actors.worker.links.peer_links import PeerLinks
from distkv.engine.attention.fetch.costs import Work
from distkv.engine.attention.fetch.link import FetchLink
from distkv.engine.model.config import ModelConfig
from distkv.errors import LinkClosed
from distkv.wire.links import TensorLink, connect
from distkv.wire.messages.data import AttendEntry, AttendPlan, SpanPart
from tests.actors.links import DEADLINE_S, Worker, close_links, model_config, peer_links, span
from tests.waiting import wait_until
from tests.wire.links.peers import in_thread


@pytest.fixture
def config(tmp_path: Path) -> ModelConfig:
    return model_config(tmp_path)


@pytest.fixture
def worker(config: ModelConfig) -> Iterator[Worker]:
    worker = Worker("creditor", config)
    worker.registry.grant(span("s"), (5, 2))
    with worker.serves():
        yield worker
    worker.close()


@pytest.fixture
def links(config: ModelConfig, worker: Worker) -> Iterator[PeerLinks]:
    links = peer_links("asker", worker.memory.slot_bytes)
    links.update((worker.member,))
    yield links
    close_links(links)


def plan(num_rows: int = 1) -> AttendPlan:
    """Queries over both blocks."""
    entry = AttendEntry(
        request_id="r", span=span("s"), index=0, num_blocks=2, first_position=0, row=0, num_rows=num_rows
    )
    return AttendPlan(step_id=1, num_rows=num_rows, entries=(entry,))


def attend(links: PeerLinks, config: ModelConfig) -> torch.Tensor | None:
    """The lse of one query; None, and the creditor is lost to it, when there is none."""
    lost: set[str] = set()
    creditor = links.creditor("creditor")
    creditor.begin(plan(), torch.tensor([20]), slice(0, 1), [lost])
    creditor.send(0, torch.ones(1, config.num_heads, config.head_dim))
    partial = creditor.collect(0, time.monotonic())
    assert lost == (set() if partial else {"creditor"})
    return partial and partial[1]


def attended(links: PeerLinks, config: ModelConfig) -> bool:
    lse = attend(links, config)
    return lse is not None and bool(torch.isfinite(lse).all())


def test_one_link_serves_all_steps_and_its_bytes_are_counted(links: PeerLinks, config: ModelConfig) -> None:
    first = links.creditor("creditor")
    assert attended(links, config)
    assert links.creditor("creditor") is first
    heads, dim = config.num_heads, config.head_dim
    assert links.counters.query_bytes == 8 + 4 * heads * dim + 4 * heads * (dim + 1)


def test_each_microbatch_has_a_link_of_its_own(links: PeerLinks, config: ModelConfig) -> None:
    """Queries of two microbatches of a step overlap."""
    first, second = links.creditor("creditor"), links.creditor("creditor", 1)
    assert first is not second
    assert links.creditor("creditor", 1) is second and links.creditor("creditor", 0) is first
    for creditor in (first, second):
        creditor.begin(plan(), torch.tensor([20]), slice(0, 1), [set()])
    for layer in range(config.num_layers):
        for creditor in (first, second):
            creditor.send(layer, torch.ones(1, config.num_heads, config.head_dim))
        one, other = (creditor.collect(layer, time.monotonic()) for creditor in (first, second))
        assert one is not None and other is not None and torch.equal(one[1], other[1])


def fetch_link(links: PeerLinks, microbatch: int = 0) -> FetchLink:
    """It is opened beside the steps."""
    link = wait_until(lambda: links.fetch_link("creditor", microbatch))
    assert link is not None
    return link


def test_blocks_are_read_by_links_of_their_own(links: PeerLinks, worker: Worker) -> None:
    assert links.fetch_link("creditor") is None and links.fetch_link("stranger") is None
    link = fetch_link(links)
    assert fetch_link(links) is link and fetch_link(links, 1) is not link
    parts = [SpanPart(span=span("s"), index=1, num_blocks=1)]
    slots = link.slots(parts)
    assert slots is not None and slots.tolist() == [2]
    memory = link.memory()
    assert memory is not None and bytes(memory.numpy()) == bytes(worker.memory.view)
    into = bytearray(64)
    link.read(slots.tolist(), memoryview(into), (128, 64))
    assert into == worker.slot(2)[128:192]
    assert link.stale(parts) == set()
    worker.registry.revoke(span("s"), lambda: None)
    assert link.stale(parts) == {0} and link.slots(parts) is None and not link.broken


def test_both_kinds_of_links_learn_the_same_costs(links: PeerLinks, config: ModelConfig) -> None:
    links.creditor("creditor")
    fetching = fetch_link(links)
    asking = links.creditor("creditor")
    asking.begin(plan(num_rows=2), torch.tensor([20, 21]), slice(0, 2), [set()])
    asking.send(0, torch.ones(2, config.num_heads, config.head_dim))
    assert asking.collect(0, time.monotonic()) is not None
    asking.finish()
    assert (fetching.costs.estimate_s("ship", Work(2, 1)) or 0) > 0
    links.update((), ("creditor",))
    assert fetching.slots([]) is None and fetching.broken


def test_creditors_and_sources_have_links_of_their_own(links: PeerLinks, worker: Worker) -> None:
    source = links.source("creditor", 1)
    assert links.source("creditor", 1) is source
    creditor = links.creditor("creditor")
    links.drop_source("creditor", source)
    assert links.creditor("creditor") is creditor
    assert links.source("creditor", 1) is not source
    links.drop_source("stranger", source)


def test_a_source_that_leaves_while_its_link_opens_has_none(
    links: PeerLinks, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[TensorLink] = []

    def leaves_meanwhile(*args: Any, **options: Any) -> TensorLink:
        opened.append(connect(*args, **options))
        links.update((), gone=("creditor",))
        return opened[0]

    monkeypatch.setattr(peer_links_module, "connect", leaves_meanwhile)
    with pytest.raises(LinkClosed, match="new incarnation"):
        links.source("creditor", 1)
    assert links.open_source("creditor", 1) is None
    with pytest.raises(LinkClosed):
        opened[0].recv(0.0)


def test_strangers_and_other_incarnations_are_not_reached(links: PeerLinks, worker: Worker) -> None:
    with pytest.raises(LinkClosed, match="no live member"):
        links.creditor("stranger")
    with pytest.raises(LinkClosed, match="new incarnation"):
        links.source("creditor", 2)
    links.update((msgspec.structs.replace(worker.member, incarnation=9),))
    with pytest.raises(LinkClosed, match="incarnation should be"):
        links.creditor("creditor")
    links.update((msgspec.structs.replace(worker.member, data=None),))
    with pytest.raises(LinkClosed, match="no live member"):
        links.source("creditor", 1)


@pytest.mark.parametrize("size", [0, 16])
def test_a_peer_whose_blocks_have_another_size_is_not_reached(links: PeerLinks, worker: Worker, size: int) -> None:
    data = msgspec.structs.replace(worker.listener.endpoint, slot_bytes=size)
    links.update((msgspec.structs.replace(worker.member, data=data),))
    for reach in (lambda: links.source("creditor", 1), lambda: links.creditor("creditor")):
        with pytest.raises(LinkClosed, match="slot_bytes should be"):
            reach()
    links.update((worker.member,))
    assert links.source("creditor", 1).transport == "inproc"


def test_a_broken_link_is_replaced(links: PeerLinks, worker: Worker, config: ModelConfig) -> None:
    worker.listener.faults.fail("recv", LinkClosed("creditor", "the cable is cut"))
    broken = links.creditor("creditor")
    with capture_logs() as logs:
        assert attend(links, config) is None
    assert "cable" in next(log["why"] for log in logs if log["event"] == "a creditor failed")
    assert broken.broken and links.creditor("creditor") is not broken
    assert attended(links, config)


def test_who_is_no_member_any_more_is_not_waited_for(links: PeerLinks, worker: Worker, config: ModelConfig) -> None:
    worker.listener.faults.hold("recv")
    found: list[torch.Tensor | None] = []

    def wait() -> None:
        found.append(attend(links, config))

    with in_thread(wait):
        assert worker.listener.faults.wait_calls("recv", 1, DEADLINE_S)
        links.update((), ("creditor",))
    assert found == [None]
    worker.listener.faults.release("recv")
    links.update((worker.member,))
    assert attended(links, config)


def test_member_lists_that_come_while_links_open_and_break(
    links: PeerLinks, worker: Worker, config: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(creditor_links, "LINK_WAIT_S", DEADLINE_S)
    done = threading.Event()

    def update() -> None:
        while not done.is_set():
            links.update((worker.member,))

    with in_thread(update):
        try:
            for _ in range(100):
                worker.listener.faults.fail("recv", LinkClosed("creditor", "again"))
                assert attend(links, config) is None
        finally:
            done.set()
