from __future__ import annotations

import math

from distkv.sim.baselines.migration.pairing import Load, pairs


def load(instance: int, free: int, running: int, waiting: int = 0, preempted: bool = False) -> Load:
    return Load(instance, free, waiting, running, preempted)


def test_freeness_is_what_is_left_for_each() -> None:
    assert load(0, 60, 4).freeness == 15
    assert load(0, 60, 0).freeness == math.inf


def test_who_waits_first_counts_with_all_it_needs() -> None:
    assert load(0, 60, 3, waiting=100).freeness == -10
    assert load(0, 60, 0, waiting=100).freeness == -40


def test_the_fullest_sends_to_the_emptiest() -> None:
    assert pairs([load(0, 2, 4), load(1, 90, 3), load(2, 0, 4), load(3, 90, 2), load(4, 20, 5)]) == [(2, 3), (0, 1)]


def test_nobody_sends_while_all_have_room_or_none_has() -> None:
    assert pairs([load(0, 50, 4), load(1, 90, 3)]) == []
    assert pairs([load(0, 2, 4), load(1, 1, 3)]) == []


def test_who_preempted_sends_and_takes_nobody() -> None:
    assert pairs([load(0, 50, 4, preempted=True), load(1, 90, 3)]) == [(0, 1)]
    assert pairs([load(0, 50, 4, preempted=True), load(1, 2, 3)]) == []
