"""How `distkv bench distattention` judges what it measured."""

from __future__ import annotations

import random

import pytest

from distkv.bench.harness.alternate import Samples
from distkv.bench.split_attention.goals import LONG, goals_of, time_case
from distkv.bench.split_attention.ways import DIST, HEADS, HOST, RING, SHAPED


def samples(heads: float, ring: float, ring_rounds: int = 9) -> Samples:
    """Of rounds that all found the same, but for a little; DistAttention takes 10 ms."""
    draw = random.Random(1)

    def of(value: float, rounds: int = 9) -> list[float]:
        return [value * draw.uniform(0.999, 1.001) for _ in range(rounds)]

    return {
        time_case(link, LONG): {DIST: of(10.0), HEADS: of(heads), RING: of(ring, ring_rounds)}
        for link in (HOST, SHAPED)
    }


@pytest.mark.parametrize(("heads", "ring", "met"), [(10.0, 100.0, True), (9.0, 70.0, False)])
def test_goals(heads: float, ring: float, met: bool) -> None:
    assert [goal.met for goal in goals_of(samples(heads, ring), [LONG], "")] == [met, met, met]


@pytest.mark.parametrize(("ring", "met"), [(77.5, True), (76.5, False), (77.0, None)])
def test_ring_attention_has_fewer_rounds(ring: float, met: bool | None) -> None:
    """So its rounds have no partners: the goal is met where any two of them meet it."""
    *_, goal = goals_of(samples(10.0, ring, 3), [LONG], "")
    assert goal.met is met and goal.measured.count("..") == 1


def test_short_contexts_are_not_judged_beside_tensor_parallelism() -> None:
    (ring,) = goals_of({}, [4096], "it takes root")
    assert RING in ring.goal and (ring.met, ring.why) == (None, "no shaped links: it takes root")


def test_without_a_network_its_goals_say_so() -> None:
    found = samples(10.0, 100.0)
    del found[time_case(SHAPED, LONG)]
    host, shaped, ring = goals_of(found, [LONG], "it takes root")
    assert host.met and all(goal.met is None and "root" in goal.why for goal in (shaped, ring))
