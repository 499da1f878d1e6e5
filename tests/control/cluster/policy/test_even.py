"""EvenPolicy: what leaves the fullest instance of a host, where to, and when things are left alone."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from distkv.config import AdviceSettings
from distkv.control.cluster.planning.balance import BalanceIndex, place_of
from distkv.control.cluster.policy.even import BELOW, MOST_HOSTS, EvenPolicy
from distkv.control.cluster.policy.interface import InstanceView, Move
from distkv.control.performance.model import PerformanceModel
from distkv.wire.messages.profile import Point
from distkv.wire.messages.to_gmanager import LongRequest
from tests.control.cluster.policy.exhaustive import Anything
from tests.control.parts import calls
from tests.control.performance.profiles import make_profile

MODEL = PerformanceModel(make_profile())
SLOW = PerformanceModel(make_profile(serving=(Point(1000, 10.0),)))
"""Attention for others takes a thousand times as long."""
AHEAD = 0.25


def view(name: str, used: int = 0, **fields: Any) -> InstanceView:
    """An instance of 100 rBlocks, of which one request has `used`."""
    usual: dict[str, Any] = {
        "state": "ready",
        "host_key": "h",
        "block_tokens": 16,
        "free_blocks": 100 - used,
        "lendable_blocks": max(0, 99 - used),
        "waiting": 0,
        "load": 0,
        "model": MODEL,
        "total_blocks": 100,
        "max_num_seqs": 64,
        "running": int(used > 0),
        "context_tokens": 16 * used,
        "longest": (LongRequest(f"r-{name}", used - 1, 0),) if used > 1 else (),
    }
    return InstanceView(instance_id=name, **usual | fields)


def plan(*views: InstanceView, recent: Anything | None = None, ahead: float = AHEAD) -> list[Move]:
    by_name = {one.instance_id: one for one in views}
    index = BalanceIndex(by_name.get, lambda name: {})
    for one in views:  # all were something else before
        index.put(one.instance_id, place_of(replace(one, free_blocks=1, host_key="other")))
    for one in views:
        index.put(one.instance_id, place_of(one))
    index.validate(iter(views))
    return list(EvenPolicy(AdviceSettings(policy="even", even_ahead=ahead)).plan(index, recent or Anything()))


def test_the_fullest_comes_just_below_what_it_may_be_ahead() -> None:
    """The mean is 20, so that 45 is allowed."""
    (move,) = plan(view("a", 80), view("b"), view("c"), view("d"))
    assert (move.debtor_id, move.request_id, move.creditor_id) == ("a", "r-a", "b")
    assert move.num_blocks == 20, "more than the mean the other one does not get"
    (less,) = plan(view("a", 44), view("b"), view("c"), view("d"))
    assert less.num_blocks == int(100 * (0.44 - 0.11 - BELOW * AHEAD)) == 9


@pytest.mark.parametrize(
    ("full", "other"),
    [
        ({"used": 30}, {}),
        ({"model": None}, {}),
        ({"waiting": 1}, {}),
        ({"longest": ()}, {}),
        ({}, {"model": None}),
        ({}, {"waiting": 1}),
        ({}, {"lendable_blocks": 0}),
        ({}, {"block_tokens": 32}),
        ({}, {"host_key": "elsewhere"}),
        ({}, {"state": "draining"}),
        ({}, {"model": SLOW}),
    ],
    ids=["even", "unmeasured", "short", "none-can-leave", "unmeasured-creditor", "waiting", "lends-nothing",
         "other-rblocks", "other-host", "drains", "would-cost"],
)  # fmt: skip
def test_it_is_left_alone(full: dict[str, Any], other: dict[str, Any]) -> None:
    assert plan(view("a", 80), view("b")), "as it would be"
    assert plan(view("a", **{"used": 80} | full), view("b", **other)) == []


def test_what_was_moved_just_now_or_did_not_pay_stays() -> None:
    class Moved(Anything):
        def may_leave(self, request_id: str) -> bool:
            return request_id != "r-a"

    class Paused(Anything):
        def may_plan_for(self, debtor_id: str) -> bool:
            return debtor_id != "a"

    assert plan(view("a", 80), view("b"), recent=Moved()) == []
    assert plan(view("a", 80), view("b"), recent=Paused()) == []


def test_who_cannot_have_any_is_passed_over() -> None:
    (move,) = plan(view("a", 90), view("b", waiting=1), view("c", 5, running=0), view("d", 9))
    assert move.creditor_id == "c"


@pytest.mark.parametrize("why", [{"lendable_blocks": 0}, {"model": None}, {"wanted_back": True}], ids=str)
def test_however_many_cannot_have_any(why: dict[str, Any]) -> None:
    (move,) = plan(view("a", 90), *(view(f"b{number}", **why) for number in range(10)), view("c", 5, running=0))
    assert move.creditor_id == "c"


def moved(views: dict[str, InstanceView], move: Move) -> dict[str, InstanceView]:
    """The cluster once a move is done."""
    debtor, creditor = views[move.debtor_id], views[move.creditor_id]
    longest = tuple(
        LongRequest(one.request_id, one.movable_blocks - move.num_blocks, one.remote_blocks + move.num_blocks)
        if one.request_id == move.request_id
        else one
        for one in debtor.longest
    )
    after = sorted((one for one in longest if one.movable_blocks > 0), key=lambda one: -one.movable_blocks)
    return views | {
        debtor.instance_id: replace(debtor, free_blocks=debtor.free_blocks + move.num_blocks, longest=tuple(after)),
        creditor.instance_id: replace(
            creditor,
            free_blocks=creditor.free_blocks - move.num_blocks,
            lendable_blocks=creditor.lendable_blocks - move.num_blocks,
        ),
    }


def some(seed: int) -> dict[str, InstanceView]:
    """2 to 4 instances of one host, each with up to four requests; some can lend less than is free."""
    random = Random(f"even {seed}")
    views = {}
    for name in "abcd"[: random.randint(2, 4)]:
        sizes = [random.randint(1, 30) for _ in range(random.randint(0, 4))]
        total = max(sum(sizes), random.choice([60, 100]))
        free = total - sum(sizes)
        sizes.sort(reverse=True)
        longest = tuple(LongRequest(f"{name}{n}", size - 1, 0) for n, size in enumerate(sizes) if size > 1)
        views[name] = view(
            name,
            total_blocks=total,
            free_blocks=free,
            lendable_blocks=random.choice([free, free // 3]),
            running=len(sizes),
            context_tokens=16 * sum(sizes),
            longest=longest,
        )
    return views


def uses(views: dict[str, InstanceView]) -> list[float]:
    return [1 - one.free_blocks / one.total_blocks for one in views.values()]


def test_the_maximum_never_grows_and_plans_come_to_an_end() -> None:
    """On small clusters, move after move: no request is moved back, and where the fullest is ahead for good, no other
    single move to one that may be as full as the mean would help it any more."""
    num_moves = 0
    for seed in range(300):
        views, ahead = some(seed), 0.1
        for _ in range(50):
            moves = plan(*views.values(), ahead=ahead)
            if not moves:
                break
            (move,) = moves
            before, mean = max(uses(views)), sum(uses(views)) / len(views)
            views, num_moves = moved(views, move), num_moves + 1
            assert max(uses(views)) <= before + 1e-9
            assert uses({"": views[move.creditor_id]})[0] <= mean + 1e-9
            assert move.debtor_id != move.creditor_id
        else:
            pytest.fail(f"{seed}: it goes on and on")
    assert num_moves > 100


def test_nothing_ping_pongs_when_requests_end() -> None:
    """What was lent before, and who lent it, does not matter: an instance that is even lets nothing leave."""
    for seed in range(100):
        views = some(seed)
        for one in views.values():
            level = replace(one, total_blocks=100, free_blocks=60, lent_blocks=20, borrowed_blocks=5)
            views[one.instance_id] = level
        assert plan(*views.values()) == []


def test_a_plan_costs_the_same_however_many_instances_there_are() -> None:
    """And every host has its turn."""
    costs = []
    for count in (10, 100, 1000):
        views = [
            view(f"{host}-{index}", 80 if index == 0 else 0, host_key=str(host))
            for host in range(count)
            for index in range(8)
        ]
        by_name = {one.instance_id: one for one in views}
        index = BalanceIndex(by_name.get, lambda name: {})
        for one in views:
            index.put(one.instance_id, place_of(one))
        policy, recent = EvenPolicy(), Anything()
        costs.append(calls(lambda: policy.plan(index, recent)))  # noqa: B023
        recent, named = Anything(), set()
        for _ in range(-(-count // MOST_HOSTS)):
            named |= {move.debtor_id for move in policy.plan(index, recent)}
        assert len(named) == count and (count > MOST_HOSTS or recent.evened is None)
    assert costs[2] <= 1.1 * costs[1]
