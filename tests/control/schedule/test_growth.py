"""How much longer an output gets, by those that ended: a mean of the longer ones, never above its limit; and what those
that run need at once."""

from __future__ import annotations

import pytest

from distkv.control.schedule.growth import (
    SEEN,
    UNSEEN_TOKENS,
    OutputLengths,
    blocks_to_come,
    most_at_once,
    share_kept,
)
from tests.control.parts import lend
from tests.control.schedule.admitting import Admitting


def test_before_anything_was_seen() -> None:
    outputs = OutputLengths()
    assert outputs.still_to_come(0, 40) == 40 and outputs.still_to_come(30, 40) == 10
    assert outputs.still_to_come(0, 10_000) == outputs.still_to_come(500, 10_000) == UNSEEN_TOKENS


def test_it_ends_as_those_that_got_longer() -> None:
    outputs = OutputLengths()
    for length in (10, 20, 30, 40):
        outputs.ended(length)
    assert [outputs.still_to_come(generated, 1000) for generated in (0, 9, 10, 25, 39)] == [25, 16, 20, 10, 1]
    assert outputs.still_to_come(40, 1000) == UNSEEN_TOKENS, "nobody got that long"
    assert outputs.still_to_come(0, 12) == 12 and outputs.still_to_come(12, 12) == 0


def test_the_newest_count() -> None:
    outputs = OutputLengths()
    for length in [1000] * 10 + [7] * SEEN:
        outputs.ended(length)
    assert outputs.still_to_come(0, 5000) == 7 and outputs.still_to_come(7, 5000) == UNSEEN_TOKENS


@pytest.mark.parametrize(
    ("tokens", "held", "to_come", "blocks"), [(8, 2, 1, 0), (8, 2, 2, 1), (8, 2, 9, 2), (9, 5, 3, 0)]
)
def test_blocks_of_four(tokens: int, held: int, to_come: int, blocks: int) -> None:
    assert blocks_to_come(tokens, held, to_come, 4) == blocks


@pytest.mark.parametrize("count", range(1, 40))
def test_what_one_has_grown_by_is_there_for_the_others_once_it_has_ended(count: int) -> None:
    """They grow by a block a tick, and one ends after each four ticks."""
    ends = [4 * (number + 1) for number in range(count)]
    most = max(tick * sum(end >= tick for end in ends) for tick in range(1, ends[-1] + 1))
    assert most <= most_at_once(sum(ends), count) <= most + 1


def test_less_is_kept_where_computing_again_is_cheap() -> None:
    assert share_kept(0.0, 2.0) == share_kept(1.0, 0.0) == 1.0, "not known yet"
    assert [share_kept(again_s, 10.0) for again_s in (5.0, 1.5, 1.2, 0.75, 0.1)] == pytest.approx([1, 1, 0.8, 0.5, 0.5])


def test_one_block_at_least_is_kept_for_each() -> None:
    assert most_at_once(0, 0) == 0 and most_at_once(10, 1) == 10
    assert most_at_once(3, 3) == 3 and most_at_once(100, 50) == 51


def test_places_to_spare_that_are_given_back_are_needed_here_at_once() -> None:
    """Also within a step in which that was looked at before."""
    admitting = Admitting(16)
    seq = admitting.run("r", 4)
    debt = lend(seq, "p", 1, debts=admitting.debts, spare=3)
    before = admitting.state.growing.blocks()
    admitting.debts.release_unused(seq, debt)
    assert admitting.state.growing.blocks() == before + 1
