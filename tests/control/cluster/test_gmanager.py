"""GManager: where requests go, who may lend."""

from __future__ import annotations

import pytest

from distkv.wire.messages import to_gmanager as tg
from distkv.wire.messages.common import DataEndpoint
from tests.control.cluster.managed import Managed

# --- where requests go


def test_nobody_is_ready(managed: Managed) -> None:
    assert managed.locate().reason == "no instance is ready (none has joined)"
    managed.join("a", state="starting")
    assert managed.locate().reason == "no instance is ready (a starting)"


def test_it_goes_where_it_fits_and_fewest_requests_are(managed: Managed) -> None:
    for name, free, running in (("a", 8, 2), ("b", 4, 1), ("c", 1, 0)):
        managed.join(name)
        managed.beat(name, free_blocks=free, running=running)
    assert managed.locate(num_tokens=16).instance_id == "b"
    assert managed.locate(num_tokens=16).instance_id == "a", "b's memory is promised already"
    managed.beat("b", free_blocks=4, running=1)
    located = managed.locate(num_tokens=16)
    assert (located.instance_id, located.address) == ("b", "sim://b")


def test_what_fits_nowhere_goes_where_most_is_free(managed: Managed) -> None:
    for name, free in (("a", 3), ("b", 6), ("c", 5)):
        managed.join(name)
        managed.beat(name, free_blocks=free)
    assert managed.locate(num_tokens=400).instance_id == "b"


def test_where_requests_wait_no_more_are_sent_while_another_has_none_waiting(managed: Managed) -> None:
    for name, free, waiting in (("a", 8, 1), ("b", 1, 0)):
        managed.join(name)
        managed.beat(name, free_blocks=free, waiting=waiting)
    assert managed.locate(num_tokens=16).instance_id == "b"
    assert managed.locate(num_tokens=16, exclude=("b",)).instance_id == "a"


@pytest.mark.parametrize("state", ["draining", "starting", "silent"])
def test_only_ready_instances_serve_and_lend(managed: Managed, state: str) -> None:
    for name in "ab":
        managed.join(name)
        managed.beat(name)
    if state == "silent":
        managed.tick(1.6)
        managed.beat("a")
    elif state == "starting":
        managed.join("b", incarnation=2, compat="", state=state)
        assert managed.states()["b"] == "starting"
    else:
        managed.beat("b", state=state)
    assert managed.locate(num_tokens=4).instance_id == "a"
    assert managed.candidates("a") == []


# --- who may lend


def test_candidates_near_first_then_those_that_lend_most(managed: Managed) -> None:
    lendable = {"a": 9, "b": 2, "c": 7, "d": 9, "e": 0}
    for name, blocks in lendable.items():
        host = "far" if name == "d" else "near"
        managed.join(name, data=DataEndpoint(address="x", host_key=host))
        managed.beat(name, lendable_blocks=blocks)
    managed.join("f", data=None)
    managed.beat("f", lendable_blocks=8)
    assert managed.candidates("a") == [("c", 7), ("b", 2), ("d", 9)]
    assert managed.candidates("a", exclude=("c",)) == [("b", 2), ("d", 9), ("f", 8)]
    assert managed.candidates("d") == [("a", 9), ("f", 8), ("c", 7)]
    assert managed.candidates("stranger") == [("a", 9), ("d", 9), ("f", 8)]


def test_refusals_are_newer_than_heartbeats(managed: Managed) -> None:
    for name in "abc":
        managed.join(name)
        managed.beat(name, lendable_blocks=5)
    assert managed.candidates("a", refusals=(tg.Refusal("b", 0), tg.Refusal("c", 2))) == [("c", 2)]
    managed.beat("b", lendable_blocks=4)
    assert managed.candidates("a") == [("b", 4), ("c", 2)]


def test_before_its_first_heartbeat_it_lends_what_it_joined_with(managed: Managed) -> None:
    managed.join("a")
    managed.join("b", lendable_blocks=6)
    assert managed.candidates("a") == [("b", 6)]
