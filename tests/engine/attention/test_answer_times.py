"""AnswerTimes: patience grows with the work, and with how slow the creditor is."""

from __future__ import annotations

import pytest

from distkv.engine.attention.answer_times import MANY_TIMES, SHORTEST_S, AnswerTimes

LONGEST_S = 5.0


@pytest.fixture
def times() -> AnswerTimes:
    return AnswerTimes(LONGEST_S)


def test_who_never_answered_is_waited_for_to_the_end(times: AnswerTimes) -> None:
    assert times.patience_s(1) == LONGEST_S


def test_who_is_fast_is_waited_for_briefly(times: AnswerTimes) -> None:
    times.took(8, 0.001)
    assert times.patience_s(8) == SHORTEST_S


def test_who_is_slow_is_waited_for_longer(times: AnswerTimes) -> None:
    times.took(8, 0.1)
    assert times.patience_s(8) == pytest.approx(MANY_TIMES * 0.1)
    times.took(8, 1.0)
    assert times.patience_s(8) == LONGEST_S


def test_one_slow_answer_is_forgotten_in_time(times: AnswerTimes) -> None:
    times.took(8, 1.0)
    for _ in range(50):
        times.took(8, 0.001)
    assert times.patience_s(8) == LONGEST_S
    for _ in range(500):
        times.took(8, 0.001)
    assert times.patience_s(8) == SHORTEST_S


def test_more_work_may_take_more_time(times: AnswerTimes) -> None:
    """A prefill asks for a thousand times as much as the decodes before it."""
    times.took(4, 0.075)
    assert times.patience_s(4) == pytest.approx(0.75) and times.patience_s(8) == pytest.approx(1.5)
    assert times.patience_s(4096) == LONGEST_S
    times.took(4096, 0.1)
    assert times.patience_s(4096) == pytest.approx(1.0)
    assert times.patience_s(1) == pytest.approx(0.75), "as the next larger that is known"
