"""Measure variants by turns, so that what changes on the machine meanwhile meets all of them alike."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from distkv.bench.harness.kept import keep

T = TypeVar("T")
Measure = Callable[[], Mapping[str, float]]
Samples = dict[str, dict[str, list[float]]]
"""case → variant → one value per round."""

RESAMPLES = 2000


class Ratio(msgspec.Struct, frozen=True):
    """How many times `b` one variant is, and the 95 % interval of that."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f}..{self.high:.2f})"


def alternate(
    variants: Mapping[str, Measure], rounds: int, *, warmups: int = 1, report: Callable[[str], None] | None = None
) -> Samples:
    """Call every variant once a round, in an order that turns round each time; warm-up rounds do not count.

    A variant returns the value of each case it measured. report: hears of every round.
    """
    turns = Turns()
    for index in range(-warmups, rounds):
        if report is not None:
            report(round_name(index, rounds))
        turns.take(variants, index)
    return turns.samples


async def alternate_in_loop(
    variants: Mapping[str, Callable[[], Awaitable[Mapping[str, float]]]],
    rounds: int,
    *,
    report: Callable[[str], None],
) -> Samples:
    """As `alternate` with one warm-up, for variants that are measured where an event loop goes on."""
    turns = Turns()
    for index in range(-1, rounds):
        report(round_name(index, rounds))
        for name in in_turn(variants, index):
            turns.note(name, index, await variants[name]())
    return turns.samples


def round_name(index: int, rounds: int) -> str:
    """What to say of it."""
    return "warming up" if index < 0 else f"round {index + 1} of {rounds}"


def in_turn(names: Iterable[str], index: int) -> list[str]:
    """The order of a round."""
    return list(names) if index % 2 == 0 else list(names)[::-1]


class Turns:
    """Rounds of variants that take turns. samples: what they measured."""

    def __init__(self) -> None:
        self.samples: Samples = keep({}, by_turns=True)

    def take(self, variants: Mapping[str, Measure], index: int) -> None:
        """Call each once, every other round in the reverse order; nothing counts before round 0."""
        for name in in_turn(variants, index):
            self.note(name, index, variants[name]())

    def note(self, name: str, index: int, measured: Mapping[str, float]) -> None:
        """What a variant measured in a round."""
        if index >= 0:
            for case, value in measured.items():
                self.samples.setdefault(case, {}).setdefault(name, []).append(value)


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """The geometric mean of the rounds' ratios ours/theirs, with a bootstrapped 95 % interval.

    Values are > 0, one per round, in the order they were measured. Raises ValueError for different lengths.
    """
    logs = [math.log(a / b) for a, b in zip(ours, theirs, strict=True)]
    return Ratio(*map(math.exp, _bootstrapped(logs, statistics.fmean)))


def pooled_ratio(
    ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]], of: Callable[[Sequence[float]], float]
) -> Ratio:
    """Ours/theirs, each `of` the values of all its rounds, with a bootstrapped 95 % interval of rounds, for what
    one round has too few values to say.

    Values are > 0. Raises ValueError for different numbers of rounds.
    """
    rounds = list(zip(ours, theirs, strict=True))

    def ratio(chosen: Sequence[tuple[Sequence[float], Sequence[float]]]) -> float:
        mine, other = (of([value for values in part for value in values]) for part in zip(*chosen, strict=True))
        return mine / other

    return Ratio(*_bootstrapped(rounds, ratio))


def median_interval(values: Sequence[float]) -> Ratio:
    """The median of the rounds, and its bootstrapped 95 % interval."""
    return Ratio(*_bootstrapped(values, statistics.median))


def _bootstrapped(rounds: Sequence[T], of: Callable[[Sequence[T]], float]) -> tuple[float, float, float]:
    """What the rounds say, and the bounds of its 95 % interval."""
    draw = random.Random(0)
    found = sorted(of(draw.choices(rounds, k=len(rounds))) for _ in range(RESAMPLES))
    return of(rounds), found[int(0.025 * RESAMPLES)], found[int(0.975 * RESAMPLES) - 1]
