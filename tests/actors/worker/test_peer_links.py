"""PeerLinks: one link per creditor and per source, to the life that the member list names."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch

from distkv.actors.worker.peer_links import PeerLinks
from distkv.engine.model.config import ModelConfig
from distkv.errors import LinkClosed, LinkError
from distkv.wire.messages.data import AttendEntry, AttendPlan
from tests.actors.links import DEADLINE_S, Worker, close_links, model_config, peer_links, span
from tests.wire.links.peers import in_thread


@pytest.fixture
def config(tmp_path: Path) -> ModelConfig:
    return model_config(tmp_path)


@pytest.fixture
def worker(config: ModelConfig) -> Iterator[Worker]:
    worker = Worker("lender", config)
    worker.registry.grant(span("s"), (5, 2))
    with worker.serves():
        yield worker
    worker.close()


@pytest.fixture
def links(config: ModelConfig, worker: Worker) -> Iterator[PeerLinks]:
    links = peer_links("asker", config)
    links.update((worker.member,))
    yield links
    close_links(links)


def ask(links: PeerLinks, config: ModelConfig) -> torch.Tensor:
    """lse of one query over both blocks."""
    creditor = links.creditor("lender")
    entry = AttendEntry(request_id="r", span=span("s"), index=0, num_blocks=2, first_position=0, row=0, num_rows=1)
    creditor.plan(AttendPlan(step_id=1, num_rows=1, entries=(entry,)), torch.tensor([20]))
    creditor.send(0, torch.ones(1, config.num_heads, config.head_dim))
    return creditor.collect(0)[1]


def test_one_link_serves_all_steps_and_its_bytes_are_counted(links: PeerLinks, config: ModelConfig) -> None:
    first = links.creditor("lender")
    assert torch.isfinite(ask(links, config)).all()
    assert links.creditor("lender") is first
    heads, dim = config.num_heads, config.head_dim
    assert links.counters.query_bytes == 8 + 4 * heads * dim + 4 * heads * (dim + 1)


def test_each_half_has_a_link_of_its_own(links: PeerLinks, config: ModelConfig) -> None:
    """Questions of two halves of a step overlap."""
    first, second = links.creditor("lender"), links.creditor("lender", 1)
    assert first is not second
    assert links.creditor("lender", 1) is second and links.creditor("lender", 0) is first
    entry = AttendEntry(request_id="r", span=span("s"), index=0, num_blocks=2, first_position=0, row=0, num_rows=1)
    for creditor in (first, second):
        creditor.plan(AttendPlan(step_id=1, num_rows=1, entries=(entry,)), torch.tensor([20]))
    for layer in range(config.num_layers):
        for creditor in (first, second):
            creditor.send(layer, torch.ones(1, config.num_heads, config.head_dim))
        answers = [creditor.collect(layer) for creditor in (first, second)]
        assert torch.equal(answers[0][1], answers[1][1])


def test_creditors_and_sources_have_links_of_their_own(links: PeerLinks, worker: Worker) -> None:
    source = links.source("lender", 1)
    assert links.source("lender", 1) is source
    creditor = links.creditor("lender")
    links.drop_source("lender")
    assert links.creditor("lender") is creditor
    assert links.source("lender", 1) is not source
    links.drop_source("stranger")


def test_strangers_and_other_lives_are_not_reached(links: PeerLinks, worker: Worker) -> None:
    with pytest.raises(LinkClosed, match="no live member"):
        links.creditor("stranger")
    with pytest.raises(LinkClosed, match="new life"):
        links.source("lender", 2)
    links.update((msgspec.structs.replace(worker.member, incarnation=9),))
    with pytest.raises(LinkClosed, match="incarnation should be"):
        links.creditor("lender")
    links.update((msgspec.structs.replace(worker.member, data=None),))
    with pytest.raises(LinkClosed, match="no live member"):
        links.source("lender", 1)


def test_a_broken_link_is_replaced(links: PeerLinks, worker: Worker, config: ModelConfig) -> None:
    worker.listener.faults.fail("recv", LinkClosed("lender", "the cable is cut"))
    with pytest.raises(LinkClosed, match="cable"):
        ask(links, config)
    assert torch.isfinite(ask(links, config)).all()


def test_who_is_no_member_any_more_is_not_waited_for(links: PeerLinks, worker: Worker, config: ModelConfig) -> None:
    worker.listener.faults.hold("recv")
    failures: list[LinkError] = []

    def wait() -> None:
        with pytest.raises(LinkError) as failure:
            ask(links, config)
        failures.append(failure.value)

    with in_thread(wait):
        assert worker.listener.faults.wait_calls("recv", 1, DEADLINE_S)
        links.update(())
    assert len(failures) == 1
    worker.listener.faults.release("recv")
    links.update((worker.member,))
    assert torch.isfinite(ask(links, config)).all()


def test_member_lists_that_come_while_links_open_and_break(
    links: PeerLinks, worker: Worker, config: ModelConfig
) -> None:
    done = threading.Event()

    def update() -> None:
        while not done.is_set():
            links.update((worker.member,))

    with in_thread(update):
        try:
            for _ in range(100):
                worker.listener.faults.fail("recv", LinkClosed("lender", "again"))
                with pytest.raises(LinkClosed):
                    ask(links, config)
        finally:
            done.set()
