"""GManager: where requests go, who may lend."""

from __future__ import annotations

import pytest

from distkv.config import MembershipSettings
from distkv.control.cluster.gmanager import MOST_JUDGED, GManager
from distkv.control.commands import GManagerRequested, Tick
from distkv.wire.messages import to_gmanager as tg
from distkv.wire.messages.common import DataEndpoint
from distkv.wire.messages.envelope import ToGManager
from tests.control.cluster.managed import Managed
from tests.control.parts import calls, make_member

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
    managed.beat("b", free_blocks=4, running=1, arrived=("r",))
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
        managed.beat(name, free_blocks=free, waiting=waiting, waiting_blocks=8 * waiting)
    assert managed.locate(num_tokens=16).instance_id == "b"
    assert managed.locate(num_tokens=16, exclude=("b",)).instance_id == "a"


def test_who_fits_is_sent_where_those_that_wait_do_not(managed: Managed) -> None:
    for name, free, waiting in (("a", 8, 1), ("b", 1, 0)):
        managed.join(name)
        managed.beat(name, free_blocks=free, waiting=waiting, waiting_blocks=12 * waiting)
    assert managed.locate(num_tokens=16).instance_id == "a"


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


def test_who_never_said_what_it_serves_is_not_ready(managed: Managed) -> None:
    """Whatever its heartbeats say, until it joins with that."""
    managed.join("a")
    managed.beat("a")
    managed.join("b", compat="", state="starting")
    managed.beat("b", lendable_blocks=10**6)
    assert managed.states() == {"a": "ready", "b": "starting"} and managed.candidates("a") == []
    managed.join("b")
    managed.beat("b", lendable_blocks=5)
    assert managed.states()["b"] == "ready" and managed.candidates("a") == [("b", 5)]


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
    assert managed.candidates("stranger") == [("d", 9), ("f", 8), ("a", 9)], "a is to lend to d"


def test_what_is_recommended_is_held_back_until_the_next_heartbeat(managed: Managed) -> None:
    """Debtors that ask at once are sent to different creditors; nobody can hide one."""
    for name in "abcde":
        managed.join(name)
        managed.beat(name, lendable_blocks=0 if name == "a" else 8)
    assert managed.candidates("a", num_blocks=3) == [("b", 8), ("c", 8), ("d", 8)]
    assert managed.candidates("a", num_blocks=3) == [("c", 8), ("d", 8), ("e", 8)]
    for _ in range(9):
        managed.candidates("a", num_blocks=10**9)
    assert len(managed.candidates("a", num_blocks=1)) == 3, "half is never held back"
    managed.join("z")
    managed.beat("z", lendable_blocks=0)
    assert managed.candidates("z", num_blocks=1)[0] == ("b", 8)
    managed.beat("e", lendable_blocks=8)
    assert managed.candidates("z", num_blocks=1)[0] == ("e", 8)
    assert managed.candidates("a", num_blocks=1)[0] == ("e", 8)


def test_a_strangers_queries_hold_nothing_back(managed: Managed) -> None:
    for name in "ab":
        managed.join(name)
        managed.beat(name, lendable_blocks=7 + (name == "a"))
    for _ in range(3):
        managed.hear("stranger", tg.BorrowQuery(instance_id="b", borrow_id="x", num_blocks=8))
    assert managed.gm.ledger.entries["a"].held == 0


def test_suspects_hide_nobody(managed: Managed) -> None:
    for name in "abcde":
        managed.join(name)
        managed.beat(name, lendable_blocks=4 + (name in "bcd"))
    assert managed.candidates("a", suspects=("b", "c", "d"))[0] == ("e", 4)


def test_nobody_counts_with_more_memory_than_it_joined_with(managed: Managed) -> None:
    for name in "ab":
        managed.join(name)
        managed.beat(name, free_blocks=10, running=1)
    managed.beat("a", free_blocks=10**9, lendable_blocks=10**9, running=2)
    view = managed.gm.ledger.available.get("a")
    assert view is not None and (view.free_blocks, view.lendable_blocks) == (16, 16)
    assert managed.locate(num_tokens=40).instance_id == "b"
    assert managed.candidates("b") == [("a", 16)]


def test_many_instances_that_are_not_ready_are_counted(managed: Managed) -> None:
    for index in range(9):
        managed.join(f"i{index}", state="starting" if index else "draining")
    assert managed.locate().reason == "no instance is ready (1 draining, 8 starting)"


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


def test_a_heartbeat_and_queries_cost_the_same_however_many_instances_there_are() -> None:
    """Calls are counted, not time."""
    counted: dict[int, tuple[int, ...]] = {}
    for size in (100, 1_000, 5_000):
        gm = GManager(MembershipSettings())
        for number in range(size):
            member = make_member(f"i{number}", free_blocks=1000)
            gm.handle(GManagerRequested("", b"r", tg.Join(member=member, compat="model")), 1.0)
        for now in (1000.0, 1000.1, 2000.0, 2000.1):  # until all have been sent the list
            gm.handle(Tick(), now)

        def event(body: ToGManager, gm: GManager = gm) -> int:
            return calls(lambda: gm.handle(GManagerRequested("", b"r", body), 2000.1))

        def beat(number: int, seq: int, size: int = size) -> ToGManager:
            free = (number * 7919 + seq * 104_729) % 1000
            return tg.Heartbeat(
                instance_id=f"i{number}", incarnation=1, seq=seq, base=seq - 1, full=seq == 1, free_blocks=free
            )

        for number in range(size):
            event(beat(number, 1))
        beats = sorted(event(beat(number, 2)) for number in range(100))
        locates = sorted(event(tg.Locate(request_id="r", num_tokens=900)) for _ in range(20))
        for tick in range(1, 11):
            gm.handle(Tick(), 2000.1 + 0.25 * tick)
        for number in range(size):
            gm.handle(GManagerRequested("", b"r", beat(number, 3)), 2002.6)

        def look(now: float, gm: GManager = gm) -> int:
            return calls(lambda: gm.handle(Tick(), now))

        # The time has come to look at each, and all have been heard.
        counted[size] = beats[50], locates[10], max(look(2002.6 + 0.25 * tick) for tick in range(1, 4))
    assert counted[5_000][0] <= counted[100][0] + 8, counted
    assert counted[5_000][1] <= 2 * counted[100][1], counted
    assert MOST_JUDGED < counted[5_000][2] <= 1.5 * counted[100][2], counted
