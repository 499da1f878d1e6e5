"""InstanceOrder: where requests go while no gManager chooses."""

from __future__ import annotations

from random import Random

import pytest

from distkv.client.instances.instance_order import InstanceOrder
from distkv.wire.messages.common import Member


def member(name: str, free: int, state: str = "ready") -> Member:
    return Member(instance_id=name, incarnation=1, address=f"tcp://{name}", state=state, free_blocks=free)


def first(order: InstanceOrder, exclude: tuple[str, ...] = (), suspects: tuple[str, ...] = ()) -> str | None:
    found = order.first(exclude, suspects.__contains__)
    return None if found is None else found.instance_id


def test_the_fewest_requests_then_the_most_memory_and_the_suspected_last() -> None:
    order = InstanceOrder()
    assert first(order) is None
    for name, free in (("a", 3), ("b", 9), ("c", 5)):
        order.put(member(name, free))
    assert first(order) == "b"
    order.has_live("tcp://b", 2)
    assert first(order) == "c" and first(order, exclude=("c",)) == "a" and first(order, ("a", "c")) == "b"
    assert first(order, suspects=("a", "c")) == "b" and first(order, suspects=("a", "b", "c")) == "c"
    order.put(member("c", 5, state="draining"))
    order.has_live("tcp://b", 0)
    assert first(order) == "b"
    order.put(member("b", 1))
    assert first(order) == "a"


def test_who_does_not_take_a_request_comes_last() -> None:
    order = InstanceOrder()
    for name, free in (("a", 3), ("b", 9), ("c", 5)):
        order.put(member(name, free))

    def found(takers: str, suspects: str = "", exclude: str = "") -> str:
        best = order.first(exclude, suspects.__contains__, lambda one: one.instance_id in takers)
        assert best is not None
        return best.instance_id

    assert found("ac") == "c" and found("ac", suspects="c") == "a" and found("c", suspects="c") == "c"
    assert found("") == "b" and found("c", exclude="c") == "b" and found("", suspects="b") == "c"


def test_it_is_the_best_of_all_whatever_happens() -> None:
    order, random = InstanceOrder(), Random(2)
    listed: dict[str, Member] = {}
    live: dict[str, int] = {}
    names = [f"i{number}" for number in range(7)]
    for _ in range(2000):
        name = random.choice(names)
        match random.choice(["put", "put", "live", "live", "remove"] if random.random() < 0.1 else ["live"]):
            case "put":
                listed[name] = member(name, random.randrange(5), random.choice(["ready", "ready", "dead"]))
                order.put(listed[name])
            case "live":
                live[name] = random.randrange(4)
                order.has_live(f"tcp://{name}", live[name])
            case "remove":
                listed.pop(name, None)
                order.remove(name)
        exclude, suspects = tuple(random.sample(names, 2)), tuple(random.sample(names, 3))
        usable = [one for one in listed.values() if one.state == "ready" and one.instance_id not in exclude]
        best = min(
            usable,
            key=lambda m: (m.instance_id in suspects, live.get(m.instance_id, 0), -m.free_blocks, m.instance_id),
            default=None,
        )
        assert first(order, exclude, suspects) == (None if best is None else best.instance_id)


@pytest.mark.parametrize("num_members", [10, 1_000, 10_000])
def test_a_question_looks_at_those_it_passes_over_only(num_members: int) -> None:
    """It looked at all of them, for each request."""
    order, looked_at = InstanceOrder(), []
    for number in range(num_members):
        order.put(member(f"i{number}", number))
    found = order.first((f"i{num_members - 1}",), lambda name: bool(looked_at.append(name)))
    assert found is not None and found.instance_id == f"i{num_members - 2}" and len(looked_at) == 1
