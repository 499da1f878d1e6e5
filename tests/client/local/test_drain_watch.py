"""What a stop waits for, as the instances say it."""

from __future__ import annotations

import queue

import pytest

from distkv.client.local.drain_watch import DrainWatch, requests_of
from distkv.types import InstanceState
from distkv.wire.messages.common import Member
from distkv.wire.messages.to_client import InstanceStatus, Status
from tests.client.fakes import BackgroundFakes, FakeInstance, nothing


def status(instance_id: str, state: InstanceState, running: int = 0, waiting: int = 0) -> Status:
    member = Member(instance_id=instance_id, incarnation=1, address="")
    return Status(instance=InstanceStatus.of(member, state=state, running=running, waiting=waiting))


def test_requests_of_those_that_are_there_and_have_any() -> None:
    statuses = (
        status("i0", "draining", running=1, waiting=2),
        status("i1", "draining"),
        status("i2", "left", running=5),
        status("i3", "unreachable", running=5),
        status("i10", "ready", waiting=1),
    )
    assert requests_of(statuses) == {"i0": 3, "i10": 1}


def test_it_tells_what_has_changed_until_the_block_ends(
    background: BackgroundFakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distkv.client.local.drain_watch.PERIOD_S", 0.01)
    cluster = background.start(nothing, nothing)
    said: queue.SimpleQueue[dict[str, int]] = queue.SimpleQueue()
    with DrainWatch(cluster.address, said.put):
        assert said.get(timeout=10) == {"i0": 1, "i1": 1}
        background.loop.call(_leave(cluster.instances[0]))
        assert said.get(timeout=10) == {"i1": 1}
    assert said.empty()


async def _leave(instance: FakeInstance) -> None:
    instance.die()


def test_a_cluster_that_answers_nobody_is_not_waited_for() -> None:
    said: list[dict[str, int]] = []
    with DrainWatch("tcp://127.0.0.1:9", said.append):
        pass
    assert not said
