"""Availability: exact among few, at most a step off among many, and by turns."""

from __future__ import annotations

from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distkv.control.cluster.indices.availability import Availability, standing_of
from distkv.control.cluster.indices.shelves import MOST_PASSED, SORTED, STEPS, step_of
from distkv.control.cluster.policy.interface import InstanceView
from tests.control.cluster.policy.test_contract import view


class Shown:
    """Instances whose views change one at a time."""

    def __init__(self, *views: InstanceView) -> None:
        self.views = {one.instance_id: one for one in views}
        self.instances = Availability(self.views.get, lambda: iter(self.views.values()))
        for one in views:
            self.instances.put(one.instance_id, standing_of(one))

    def put(self, one: InstanceView) -> None:
        self.views[one.instance_id] = one
        self.instances.put(one.instance_id, standing_of(one))

    def able_to_lend(self) -> list[InstanceView]:
        return list(self.instances.able_to_lend(None, waiting=False, skip=()))


@given(st.integers(-(2**40), 2**40), st.integers(0, 2**40))
def test_steps_keep_the_order_and_are_an_eighth_wide_at_most(amount: int, more: int) -> None:
    assert step_of(amount) <= step_of(amount + more)
    if step_of(amount) == step_of(amount + more):
        assert more * STEPS <= max(abs(amount), abs(amount + more))
        assert abs(amount) >= 2 * STEPS or not more


@pytest.mark.parametrize("count", [SORTED, 20 * SORTED])
def test_through_any_history_nobody_clearly_worse_is_found(count: int) -> None:
    draw = Random(count)

    def anyhow(index: int) -> InstanceView:
        free = draw.choice([draw.randrange(64), draw.randrange(900, 1030)])
        waiting = draw.choice([0, 0, 0, 2])
        return view(
            f"i{index:04d}",
            free_blocks=free,
            lendable_blocks=max(0, free - draw.randrange(8)),
            load=draw.randrange(4) + waiting,
            waiting=waiting,
            host_key=draw.choice(["", "x"]),
            state=draw.choice(["ready", "ready", "ready", "draining"]),
        )

    shown = Shown(*(anyhow(index) for index in range(count)))
    for _ in range(100):
        for _ in range(count // 10):
            shown.put(anyhow(draw.randrange(count)))
        ready = [one for one in shown.views.values() if one.state == "ready"]
        calm = [one for one in ready if not one.waiting]
        skip = {one.instance_id for one in draw.sample(ready, 3)}
        others = [one for one in calm if one.instance_id not in skip]
        found = shown.instances.roomiest(waiting=False, skip=skip)
        best = max(others, key=lambda one: one.room_tokens)
        assert found is not None and found.instance_id not in skip
        assert step_of(found.room_tokens) == step_of(best.room_tokens)
        wanted = draw.randrange(1030) * 16
        fits = [one for one in others if one.room_tokens >= wanted]
        found = shown.instances.fitting(wanted, waiting=False, skip=skip)
        assert (found is None) == (not fits)
        if found is not None:
            least = min(one.load for one in fits)
            assert found.load == least and found in fits
            most = max(one.room_tokens for one in fits if one.load == least)
            assert step_of(found.room_tokens) == step_of(most)
        able = shown.able_to_lend()
        assert sorted(one.instance_id for one in able) == sorted(one.instance_id for one in calm if one.lendable_blocks)
        steps = [step_of(one.lendable_blocks) for one in able]
        assert steps == sorted(steps, reverse=True)
        if count <= SORTED:
            assert able == sorted(able, key=lambda one: (-one.lendable_blocks, one.instance_id))
    shown.instances.validate()


def test_of_many_that_are_alike_one_that_was_just_found_comes_last() -> None:
    """Whatever is sent there or lent by it is missing from then on."""
    shown = Shown(*(view(f"i{index:03d}", free_blocks=1000, lendable_blocks=1000) for index in range(2 * SORTED)))
    names = []
    for _ in range(2 * SORTED):
        first = shown.able_to_lend()[0]
        names.append(first.instance_id)
        shown.put(msgspec.structs.replace(first, free_blocks=999, lendable_blocks=999))
    assert len(set(names)) == 2 * SORTED
    shown.put(view("i000", free_blocks=1020, lendable_blocks=1020))
    assert shown.able_to_lend()[0].instance_id == "i000"


def test_thousands_that_have_a_little_too_little_hide_nobody_larger() -> None:
    names = [f"i{index:04d}" for index in range(4 * MOST_PASSED)]
    shown = Shown(*(view(name, free_blocks=1000, load=index % 3) for index, name in enumerate(names)))
    assert shown.instances.fitting(4 * 1000, waiting=False, skip=()) == shown.views[names[0]]
    assert shown.instances.fitting(4 * 1001, waiting=False, skip=()) is None
    shown.put(view("large", free_blocks=2000, load=9))
    found = shown.instances.fitting(4 * 1001, waiting=False, skip=())
    assert found is not None and found.instance_id == "large"
