"""When there will be room, by when those that run are expected to end."""

from __future__ import annotations

import math

import pytest

from distkv.control.schedule.endings import Running, endings, steps_until
from tests.control.schedule.admitting import Admitting


@pytest.mark.parametrize(
    ("running", "lacking", "steps"),
    [
        ([], 1, math.inf),
        ([(5.0, 2)], 0, 0.0),
        ([(5.0, 2)], 2, 5.0),
        ([(5.0, 2)], 3, math.inf),
        ([(50.0, 8), (5.0, 2), (9.0, 3)], 5, 9.0),
        ([(50.0, 8), (5.0, 2), (9.0, 3)], 6, 50.0),
    ],
)
def test_when_there_will_be_room(running: list[tuple[float, int]], lacking: int, steps: float) -> None:
    assert steps_until([Running(*one) for one in running], lacking) == steps


def test_what_ends_leaves_its_slots_and_those_kept_for_it() -> None:
    admitting = Admitting(16)
    admitting.run("r", 3)
    admitting.wait("other", 2)
    assert endings(admitting.state) == [Running(8, 3 + 2)], "8 tokens are to come, for which 2 rBlocks are kept"
