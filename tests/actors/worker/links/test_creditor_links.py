"""CreditorLinks: a step never connects, and waits for nobody twice."""

from __future__ import annotations

import errno
import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import cast

import msgspec
import pytest
import torch

from distkv.actors.worker.links import creditor_links
from distkv.actors.worker.links.creditor_links import LINK_WAIT_S, Attempt, CreditorLinks
from distkv.engine.attention.answer_times import AnswerTimes
from distkv.engine.attention.creditor_link import CreditorLink
from distkv.errors import LinkClosed, LinkTimeout
from distkv.wire.links import TensorLink
from distkv.wire.messages.common import DataEndpoint, Member
from distkv.wire.messages.counters import Counters
from distkv.wire.messages.data import AttendPlan, DataMessage
from tests.threads import NO_THREAD, no_threads

DEADLINE_S = 30.0


class FakeLink:
    """Takes everything and answers nothing."""

    def __init__(self) -> None:
        self.aborted = threading.Event()

    def send(self, header: DataMessage, *buffers: memoryview, timeout_s: float) -> None:
        if self.aborted.is_set():
            raise LinkClosed("p", "it was closed on this side")

    def recv(self, timeout_s: float) -> tuple[DataMessage, memoryview]:
        if self.aborted.is_set():
            raise LinkClosed("p", "it was closed on this side")
        raise LinkTimeout("p", timeout_s)

    def abort(self) -> None:
        self.aborted.set()


class Network:
    """Where links are opened: answers at once, refuses, or is a black hole until `released`."""

    def __init__(self) -> None:
        self.is_black_hole = False
        self.refusal = ""
        self.fault: OSError | None = None
        self.released = threading.Event()
        self.attempts: queue.SimpleQueue[Member] = queue.SimpleQueue()
        self.links: list[FakeLink] = []

    def open(self, member: Member) -> TensorLink:
        is_black_hole = self.is_black_hole
        self.attempts.put(member)
        if is_black_hole:
            assert self.released.wait(DEADLINE_S)
            raise LinkTimeout(member.instance_id, 1.0)
        if self.fault is not None:
            raise self.fault
        if self.refusal:
            raise LinkClosed(member.instance_id, self.refusal)
        self.links.append(FakeLink())
        return cast(TensorLink, self.links[-1])


def member(name: str = "p", incarnation: int = 1) -> Member:
    data = DataEndpoint(address=f"{name}:1")
    return Member(instance_id=name, incarnation=incarnation, address="", state="ready", data=data)


@pytest.fixture
def network() -> Iterator[Network]:
    network = Network()
    yield network
    network.released.set()


class Waited(threading.Event):
    """The end of an attempt: whoever waits for it is noted, and waits until it has come, but for a black hole."""

    def __init__(self, network: Network, waits: list[float]) -> None:
        super().__init__()
        self._network, self._waits = network, waits

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self._waits.append(timeout)
        return False if self._network.is_black_hole else super().wait(DEADLINE_S)


@pytest.fixture
def waits() -> list[float]:
    """How long steps would have waited for links, each time one did."""
    return []


@pytest.fixture
def links(network: Network, waits: list[float], monkeypatch: pytest.MonkeyPatch) -> CreditorLinks[CreditorLink]:
    def attempt(to: Member) -> Attempt:
        return Attempt(to, done=Waited(network, waits))

    monkeypatch.setattr(creditor_links, "Attempt", attempt)

    def make(link: TensorLink, instance_id: str, on_silent: Callable[[], None]) -> CreditorLink:
        return CreditorLink(link, instance_id, AnswerTimes(0.0), Counters(), on_silent)

    return CreditorLinks(network.open, make)


def refused(links: CreditorLinks[CreditorLink], microbatch: int = 0, name: str = "p") -> str:
    """Why there is no link."""
    with pytest.raises(LinkClosed) as error:
        links.get(member(name), microbatch)
    return error.value.why


def prepared(links: CreditorLinks[CreditorLink], name: str = "p") -> str:
    reports: queue.SimpleQueue[str] = queue.SimpleQueue()
    links.prepare(member(name), reports.put)
    return reports.get(timeout=DEADLINE_S)


def test_a_black_hole_is_waited_for_once_and_briefly(
    network: Network, links: CreditorLinks[CreditorLink], waits: list[float]
) -> None:
    """Else each step waits for the whole timeout of a connection, and everybody in its batch with it."""
    network.is_black_hole = True
    assert "not linked yet" in refused(links) and waits == [LINK_WAIT_S]
    for microbatch in (0, 1, 0, 1):
        refused(links, microbatch)
    assert len(waits) == 1
    for _ in range(2):
        network.attempts.get(timeout=DEADLINE_S)
    assert network.attempts.empty(), "one attempt for each microbatch"


def test_others_are_linked_to_while_one_is_a_black_hole(
    network: Network, links: CreditorLinks[CreditorLink], waits: list[float]
) -> None:
    network.is_black_hole = True
    refused(links)
    assert network.attempts.get(timeout=DEADLINE_S).instance_id == "p"
    network.is_black_hole = False
    assert not links.get(member("q"), 0).broken
    before = len(waits)
    assert "not linked yet" in refused(links) and len(waits) == before


def test_what_failed_is_tried_again_after_pauses_that_double(
    network: Network, links: CreditorLinks[CreditorLink], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(creditor_links.time, "monotonic", lambda: now[0])
    network.refusal = "no route"
    tried_at: list[float] = []
    while len(tried_at) < 7:
        with pytest.raises(LinkClosed):
            links.get(member(), 0)
        if not network.attempts.empty():
            network.attempts.get()
            tried_at.append(now[0])
            attempt = links._attempts[("p", 0)]
            assert attempt.done.wait(DEADLINE_S) and attempt.why == "no route"
        now[0] += 0.25
    pauses = [later - earlier for earlier, later in itertools.pairwise(tried_at)]
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0]
    network.refusal = ""
    now[0] += 30.0
    assert prepared(links) == "" and not links.get(member(), 0).broken


def test_a_peer_that_is_listed_otherwise_is_tried_at_once(network: Network, links: CreditorLinks[CreditorLink]) -> None:
    network.refusal = "no route"
    assert refused(links) == "no route"
    network.refusal = ""
    moved = msgspec.structs.replace(member(), data=DataEndpoint(address="p:2"))
    links.prepare(moved, lambda _: None)
    assert network.attempts.get().data != network.attempts.get().data


def test_a_link_is_there_before_a_step_needs_it(network: Network, links: CreditorLinks[CreditorLink]) -> None:
    assert prepared(links) == "" and prepared(links) == ""
    link = links.get(member(), 0)
    assert links.get(member(), 0) is link and network.attempts.qsize() == 1
    network.refusal = "no route"
    assert prepared(links, "q") == "no route" and prepared(links, "q") == "no route"
    assert network.attempts.qsize() == 3, "who prepares has its own pauses"


def test_a_link_for_which_there_is_no_thread_is_one_that_failed(
    network: Network, links: CreditorLinks[CreditorLink]
) -> None:
    with no_threads():
        assert prepared(links) == NO_THREAD and refused(links) == NO_THREAD
        assert links.find(member(), 0) is None and network.attempts.empty()
    assert prepared(links) == "" and not links.get(member(), 0).broken


def test_a_link_for_which_there_is_no_descriptor_is_one_that_failed(
    network: Network, links: CreditorLinks[CreditorLink]
) -> None:
    """And it is tried again: an attempt that ended without a word would be under way for good."""
    network.fault = OSError(errno.EMFILE, "Too many open files")
    assert "Too many open files" in prepared(links) and "Too many open files" in refused(links)
    network.fault = None
    assert prepared(links) == "" and not links.get(member(), 0).broken


def test_a_silent_creditor_is_waited_for_by_one_microbatch_only(
    network: Network, links: CreditorLinks[CreditorLink], waits: list[float]
) -> None:
    first, second = links.get(member(), 0), links.get(member(), 1)
    for link in (first, second):
        link.begin(
            AttendPlan(step_id=1, num_rows=0, entries=()), torch.zeros(0, dtype=torch.int64), slice(0, 0), [set()]
        )
        link.send(0, torch.zeros(0, 2, 4))
    assert first.collect(0, time.monotonic()) is None and first.broken
    assert all(link.aborted.is_set() for link in network.links)
    assert second.collect(0, time.monotonic()) is None and second.broken
    network.is_black_hole = True
    before = len(waits)
    assert "not linked yet" in refused(links) and len(waits) == before, "nor by the next step"


def test_who_is_not_listed_any_more_is_forgotten(network: Network, links: CreditorLinks[CreditorLink]) -> None:
    links.get(member(), 0)
    network.refusal = "no route"
    refused(links, name="q")
    links.keep_only({"p": member(incarnation=2)})
    assert network.links[0].aborted.is_set()
    network.refusal = ""
    assert not links.get(member("q"), 0).broken, "its pause is forgotten, too"
    assert not links.get(member(incarnation=2), 0).broken


def test_who_is_listed_again_is_linked_anew(network: Network, links: CreditorLinks[CreditorLink]) -> None:
    """A gManager that is late with the news calls peers dead and live again; the link that ended is of no use."""
    before = links.get(member(), 0)
    links.keep_only({})
    links.keep_only({"p": member()})
    assert prepared(links) == "" and links.get(member(), 0) is not before
    assert [link.aborted.is_set() for link in network.links] == [True, False]


def test_a_link_that_opens_too_late_ends(network: Network, links: CreditorLinks[CreditorLink]) -> None:
    gate, opened = threading.Event(), FakeLink()

    def open_late(_member: Member) -> TensorLink:
        assert gate.wait(DEADLINE_S)
        return cast(TensorLink, opened)

    links._open_link = open_late
    reports: queue.SimpleQueue[str] = queue.SimpleQueue()
    links.prepare(member(), reports.put)
    links.keep_only({})
    gate.set()
    assert reports.get(timeout=DEADLINE_S) == "the member list changed"
    assert opened.aborted.is_set()
