"""The least chunk: how it is doubled, and what a machine does to that."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from distkv.control.schedule.least_chunk import AT_ONCE, COMPARED, KEPT, LEAST_TOKENS, TRIED, LeastChunk

MOST = 1024
Takes = Callable[[int], float]


def compare(least: LeastChunk, takes: Takes, steps: int, first_measure: int = 1) -> list[int]:
    """Sizes of so many steps, the decodes measured before every few of them."""
    sizes = []
    for index in range(steps):
        sizes.append(least.tokens)
        least.observe(sizes[-1], takes(sizes[-1]), first_measure + index // (2 * AT_ONCE))
    return sizes


def linear(pass_s: float, token_s: float = 1e-4) -> Takes:
    return lambda tokens: pass_s + token_s * tokens


@pytest.mark.parametrize(
    ("takes", "found"),
    [
        (linear(0.02), 128),
        (linear(0.1), 512),
        (linear(10.0), MOST),
        (linear(0.0), LEAST_TOKENS),
        (linear(4e-4), LEAST_TOKENS),
        (lambda tokens: max(0.016, 1e-4 * tokens), 128),
    ],
    ids=["pass", "long pass", "as many as may be", "tokens", "tokens and a short pass", "tokens that ride free"],
)
def test_it_is_doubled_while_it_takes_hardly_longer_and_at_most_twice_as_long(takes: Takes, found: int) -> None:
    least = LeastChunk(MOST)
    compare(least, takes, 200)
    assert not least.is_compared
    assert set(compare(least, takes, 100)) == {found}
    assert takes(found) <= 2 * takes(LEAST_TOKENS)


def test_one_stall_decides_nothing() -> None:
    for stalled in range(200):
        least, takes = LeastChunk(MOST), linear(0.02)
        for index in range(200):
            took_s = takes(least.tokens) * (20 if index == stalled else 1)
            least.observe(least.tokens, took_s, 1 + index // (2 * AT_ONCE))
        assert least.tokens in (64, 128)


def test_steps_are_not_compared_beyond_a_measure_of_the_decodes() -> None:
    least = LeastChunk(MOST)
    for index in range(TRIED):
        least.observe(least.tokens, 0.02, 1 + index // AT_ONCE)
    assert not least.is_compared and least.tokens == LEAST_TOKENS


def test_that_of_longer_contexts_is_doubled_from_that_of_shorter_ones_on() -> None:
    shorter = LeastChunk(MOST)
    compare(shorter, linear(0.02), 200)
    longer = LeastChunk(MOST, shorter)
    assert longer.tokens == 128 and longer.is_compared
    compare(longer, linear(0.04), 100)
    assert longer.tokens == 256


def test_it_is_kept_where_chunks_of_twice_its_tokens_do_not_come() -> None:
    least = LeastChunk(MOST)
    for index in range(TRIED):
        assert least.is_compared
        least.observe(LEAST_TOKENS, 0.02, 1 + index // (2 * AT_ONCE))
    assert not least.is_compared and least.tokens == LEAST_TOKENS


def test_it_gets_old() -> None:
    least = LeastChunk(MOST)
    compare(least, linear(0.0), 2 * AT_ONCE * COMPARED)
    assert not least.is_compared and not least.is_old
    compare(least, linear(0.0), KEPT)
    assert least.is_old


def test_a_chunk_counts_as_many_tokens_as_take_as_long_in_the_smallest() -> None:
    least, takes = LeastChunk(MOST), linear(0.02)
    compare(least, takes, 200)
    for tokens in (4, LEAST_TOKENS):
        assert least.counted(tokens) == tokens
    for tokens in (16, 100, 128):
        counted = least.counted(tokens)
        assert counted == pytest.approx(LEAST_TOKENS * takes(tokens) / takes(LEAST_TOKENS), rel=0.02)
    assert least.counted(129) is None
