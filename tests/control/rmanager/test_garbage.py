"""Requests leave nothing that only a collection would free: the rManager's process hardly collects."""

from __future__ import annotations

import gc

from distkv.control.request.sequence import Sequence
from distkv.sim.drawn.cluster import SimCluster


def sequences() -> int:
    return sum(type(one) is Sequence for one in gc.get_objects())


def test_requests_that_ended_are_freed_without_a_collection() -> None:
    gc.collect()
    before = sequences()
    gc.disable()
    try:
        cluster = SimCluster([12, 32, 32])
        for number in range(5):
            cluster.submit("i0", f"long-{number}", list(range(150)), 10)
            cluster.submit("i1", f"short-{number}", list(range(20)), 10)
            cluster.finish()
        cluster.settle()
        assert sequences() == before
    finally:
        gc.enable()
