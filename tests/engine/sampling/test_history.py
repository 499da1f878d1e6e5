from __future__ import annotations

import pytest

from distkv.engine.sampling.history import Histories
from distkv.errors import MalformedMessage


def test_any_position_can_be_written_again() -> None:
    histories = Histories()
    histories.write("r", 0, [1, 2, 3])
    histories.write("r", 3, [4])
    histories.write("r", 1, [2, 3])
    histories.write("other", 0, [9])
    assert histories.read("r", 4).tolist() == [1, 2, 3, 4]
    assert histories.read("r", 2).tolist() == [1, 2]
    assert histories.read("other", 1).tolist() == [9]


def test_token_by_token() -> None:
    histories = Histories()
    for position in range(1000):
        histories.write("r", position, [position])
    assert histories.read("r", 1000).tolist() == list(range(1000))


def test_a_new_request_of_the_same_name_starts_over() -> None:
    histories = Histories()
    histories.write("r", 0, [1, 2, 3])
    histories.write("r", 0, [7])
    histories.write("r", 1, [8])
    assert histories.read("r", 2).tolist() == [7, 8]


def test_a_gap_is_refused_also_after_the_name_was_forgotten() -> None:
    histories = Histories()
    histories.write("r", 0, [1, 2])
    histories.forget("r")
    histories.forget("never there")
    with pytest.raises(MalformedMessage, match="a history of 0 tokens cannot go on at 2"):
        histories.write("r", 2, [3])
    with pytest.raises(MalformedMessage, match="a history of 0 tokens ends before 2"):
        histories.read("r", 2)
