"""What steps were seen to take."""

from __future__ import annotations

from random import Random

import pytest

from distkv.control.performance.observed import MOST_TIMES, ObservedTimes


def test_base_and_row_are_told_apart_by_batches_of_different_sizes() -> None:
    times, draw = ObservedTimes(), Random(1)
    for _ in range(500):
        rows = draw.randrange(1, 33)
        times.observe(rows, 0, (0.01 + 0.001 * rows) * draw.uniform(0.9, 1.1))
    assert times.base_s == pytest.approx(0.01, rel=0.3) and times.row_s == pytest.approx(0.001, rel=0.2)
    assert times.decode_s(20) == pytest.approx(0.03, rel=0.1)


def test_of_batches_of_one_size_half_is_taken_to_grow() -> None:
    times = ObservedTimes()
    for _ in range(50):
        times.observe(10, 0, 0.02)
    assert times.decode_s(10) == pytest.approx(0.02)
    assert times.decode_s(20) == pytest.approx(0.03)


def test_a_prompt_costs_what_its_step_took_beyond_the_decodes() -> None:
    times = ObservedTimes()
    times.observe(4, 100, 0.5)
    assert times.prompt_token_s == 0, "what the decodes take is not known yet"
    times.observe(0, 100, 0.1)
    assert times.prompt_token_s == pytest.approx(0.001)
    for _ in range(200):
        times.observe(4, 0, 0.02)
        times.observe(4, 100, 0.07)
    assert times.prompt_token_s == pytest.approx(0.0005, rel=0.01)


def test_a_step_that_stalled_moves_little() -> None:
    times = ObservedTimes()
    for _ in range(50):
        times.observe(4, 0, 0.02)
    before = times.decode_s(4)
    times.observe(4, 0, 30.0)
    assert times.decode_s(4) < 1.1 * before
    times.observe(0, 10, 0.01)
    times.observe(0, 10, 30.0)
    assert times.prompt_token_s <= MOST_TIMES * 0.001


def test_steps_without_a_time_or_without_anything_count_for_nothing() -> None:
    times = ObservedTimes()
    times.observe(4, 0, 0.0)
    times.observe(0, 0, 1.0)
    assert (times.base_s, times.row_s, times.prompt_token_s, times.decode_s(3)) == (0, 0, 0, 0)


def test_nothing_is_ever_below_zero() -> None:
    times, draw = ObservedTimes(), Random(2)
    for _ in range(2000):
        times.observe(draw.randrange(0, 9), draw.choice([0, 0, 50]), draw.expovariate(20.0))
        assert times.base_s >= 0 and times.row_s >= 0 and times.prompt_token_s >= 0
