"""PathBook: a path that fails is left alone for a while that doubles, and one success forgives all."""

from __future__ import annotations

import math
from itertools import pairwise
from random import Random

import pytest

from distkv.control.loan.debtor.paths import (
    FIRST_DOUBT_S,
    LONGEST_DOUBT_S,
    LONGEST_UNUSED_S,
    REMEMBER_S,
    Path,
    PathBook,
)
from distkv.wire.messages.common import Epoch, SpanRef
from distkv.wire.messages.to_worker import RemoteSpan

QUERIES, PULLS, OTHER = Path("me", "p"), Path("p", "me"), Path("q", "p")


@pytest.fixture
def paths() -> PathBook:
    return PathBook(Random(1))


def doubts_s(paths: PathBook, count: int, took_s: float = 0.0) -> list[float]:
    """How long a path is in doubt that fails again whenever it is tried."""
    now, ends = 100.0, [100.0]
    for _ in range(count):
        paths.failed(QUERIES, "no route", now, took_s)
        while paths.is_in_doubt(QUERIES):
            now = paths.next_deadline()
            paths.tick(now)
            paths.validate()
        ends.append(now)
    return [later - earlier for earlier, later in pairwise(ends)]


def test_doubts_double_up_to_a_limit() -> None:
    for seed in range(5):
        for index, doubt_s in enumerate(doubts_s(PathBook(Random(seed)), 10)):
            assert doubt_s == pytest.approx(min(LONGEST_DOUBT_S, FIRST_DOUBT_S * 2**index), rel=0.2501)


def test_what_cost_no_token_is_tried_again_within_seconds(paths: PathBook) -> None:
    now = 100.0
    for _ in range(10):
        paths.failed(QUERIES, "no link", now, longest_s=LONGEST_UNUSED_S)
        assert paths.next_deadline() - now <= 1.25 * LONGEST_UNUSED_S
        now = paths.next_deadline()
        paths.tick(now)
    paths.failed(QUERIES, "no partials", now)
    assert paths.next_deadline() - now >= 0.75 * LONGEST_DOUBT_S, "what cost more is left alone for longer"
    paths.failed(PULLS, "no blocks", now, took_s=20.0, longest_s=LONGEST_UNUSED_S)
    paths.tick(now + 0.75 * 20.0 - 0.01)
    assert paths.is_in_doubt(PULLS), "not sooner than after as long as it took to notice"


def test_instances_do_not_come_back_all_at_once() -> None:
    assert len({doubts_s(PathBook(Random(seed)), 1)[0] for seed in range(20)}) == 20


def test_what_took_long_to_fail_is_left_alone_for_as_long(paths: PathBook) -> None:
    first, second = doubts_s(paths, 2, took_s=15.0)
    assert first >= 0.75 * 15.0 and second >= 0.75 * 30.0


def test_the_same_failure_noticed_twice_counts_once(paths: PathBook) -> None:
    for _ in range(5):
        paths.failed(QUERIES, "no route", 100.0)
    paths.tick(100.0 + 1.25 * FIRST_DOUBT_S)
    assert not paths.is_in_doubt(QUERIES) and paths.has_failed(QUERIES)


@pytest.mark.parametrize("how", ["a step", "a pull"])
def test_one_success_forgives_all(paths: PathBook, how: str) -> None:
    doubts_s(paths, 5)
    paths.failed(QUERIES, "no route", 1e4)
    if how == "a step":
        span = SpanRef(span_id="s", epoch=Epoch(1, 1))
        paths.attended("me", [RemoteSpan(instance_id="p", span=span, index=0, first_block=0, num_blocks=1)])
    else:
        paths.worked(QUERIES)
    assert not paths.has_failed(QUERIES) and paths.describe() == "" and paths.next_deadline() == math.inf
    assert doubts_s(paths, 1)[0] <= 1.25 * FIRST_DOUBT_S


def test_to_be_linked_is_no_success(paths: PathBook) -> None:
    """Who opens a link and never answers by it is not trusted for opening it again."""
    paths.linked(QUERIES)
    assert paths.is_linked(QUERIES)
    paths.failed(QUERIES, "partials were missing", 100.0)
    assert not paths.is_linked(QUERIES)
    paths.linked(QUERIES)
    assert paths.is_linked(QUERIES) and paths.is_in_doubt(QUERIES)


def test_failures_long_ago_are_forgotten(paths: PathBook) -> None:
    (doubt_s,) = doubts_s(paths, 1)
    now = 100.0 + doubt_s + REMEMBER_S
    paths.tick(now)
    assert paths.has_failed(QUERIES)
    paths.tick(now + 2.5 * FIRST_DOUBT_S)
    assert not paths.has_failed(QUERIES) and paths.next_deadline() == math.inf


def test_each_direction_is_a_path_of_its_own(paths: PathBook) -> None:
    paths.failed(PULLS, "no route", 100.0)
    assert paths.is_in_doubt(PULLS) and not paths.is_in_doubt(QUERIES)
    assert paths.doubted_creditors("me") == {"p"}
    paths.failed(OTHER, "no route", 100.0)
    assert paths.doubted_creditors("me") == {"p"}, "q can lend to me, though it cannot pull from p"
    assert paths.doubted_creditors("q") == {"p"}


def test_the_paths_of_a_peer_that_is_gone_are_forgotten(paths: PathBook) -> None:
    for path in (QUERIES, PULLS, OTHER, Path("me", "q")):
        paths.failed(path, "no route", 100.0)
    paths.linked(Path("me", "q"))
    paths.forget("p")
    assert paths.doubted_creditors("me") == {"q"} and paths.is_linked(Path("me", "q"))
    paths.validate()


def test_it_says_what_fails_and_never_more_than_a_few_lines(paths: PathBook) -> None:
    paths.failed(QUERIES, "no route " * 1000, 100.0)
    assert paths.describe().startswith("me could not read from p: no route")
    for number in range(100):
        paths.failed(Path("me", f"p{number}"), "no route", 100.0)
    assert len(paths.describe()) < 1000


def test_a_path_whose_tries_hold_memory_for_nothing_is_tried_ever_more_rarely(paths: PathBook) -> None:
    """Half of what all tries took: where each took 4 s, peers were kept from their memory for 0.7 of the time."""
    now, took_s, doubts = 100.0, 4.0, []
    for number in range(1, 41):
        now += took_s
        paths.failed(PULLS, "too slow", now, took_s, LONGEST_UNUSED_S, took_s)
        doubts.append(paths.next_deadline() - now)
        assert doubts[-1] >= 0.75 * min(LONGEST_DOUBT_S, number * took_s / 2)
        now = paths.next_deadline()
        paths.tick(now)
    assert sum(doubts[:2]) <= 1.25 * (took_s + LONGEST_UNUSED_S), "who waits out a short cut waits as before"
    assert max(doubts) <= 1.25 * LONGEST_DOUBT_S
    paths.worked(PULLS)
    paths.failed(PULLS, "too slow", now, longest_s=LONGEST_UNUSED_S)
    assert paths.next_deadline() - now <= 1.25 * FIRST_DOUBT_S
