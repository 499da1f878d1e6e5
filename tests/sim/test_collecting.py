"""Garbage is looked for rarely while a cluster is simulated, and as before when it is over."""

from __future__ import annotations

import gc

import pytest

from distkv.sim.collecting import THRESHOLDS, rarely_collected
from distkv.sim.run import simulate
from tests.sim.timed.parts import spec, trace


def test_thresholds_come_back_also_after_an_error() -> None:
    before = gc.get_threshold()
    with pytest.raises(KeyError), rarely_collected():
        assert gc.get_threshold() == THRESHOLDS
        raise KeyError
    assert gc.get_threshold() == before


def test_a_cluster_is_simulated_so() -> None:
    before, seen = gc.get_threshold(), set[tuple[int, int, int]]()
    simulate(trace((0.0, 100, 10)), spec(), lambda *now: seen.add(gc.get_threshold()))
    assert seen == {THRESHOLDS} and gc.get_threshold() == before
