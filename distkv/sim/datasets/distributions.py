"""Distributions of lengths between two bounds, by their quantiles."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import msgspec

_HALVINGS = 200
_NEARLY = 1e-6


class Distribution(Protocol):
    """Lengths, by the share of them that is shorter: `quantile(0)` is the shortest there is, `quantile(1)` the longest,
    and between them it never falls."""

    def quantile(self, share: float) -> float: ...


class LogUniform(msgspec.Struct, frozen=True):
    """Each order of magnitude from `low` to `high` as often as another. 0 < low < high."""

    low: float
    high: float

    def quantile(self, share: float) -> float:
        return self.low * math.exp(share * math.log(self.high / self.low))

    @property
    def mean(self) -> float:
        return (self.high - self.low) / math.log(self.high / self.low)

    @property
    def mean_square(self) -> float:
        return self.mean * (self.high + self.low) / 2


class Uniform(msgspec.Struct, frozen=True):
    """Each length from `low` to `high` as often as another."""

    low: float
    high: float

    def quantile(self, share: float) -> float:
        return self.low + (self.high - self.low) * share


class Kumaraswamy(msgspec.Struct, frozen=True):
    """On [low, high], with the shapes of a beta distribution, but with quantiles in closed form."""

    low: float
    high: float
    a: float
    b: float

    def quantile(self, share: float) -> float:
        within = 1.0 if share >= 1 else (1 - (1 - share) ** (1 / self.b)) ** (1 / self.a)
        return self.low + (self.high - self.low) * within


class Mixture(msgspec.Struct, frozen=True):
    """A share of `long` above a rest of `short`, all of which are shorter."""

    short: Distribution
    long: Distribution
    long_share: float

    def quantile(self, share: float) -> float:
        rest = 1 - self.long_share
        if share < rest:
            return self.short.quantile(share / rest)
        return self.long.quantile(min(1.0, (share - rest) / self.long_share))


def hump(low: float, high: float, mean: float, deviation: float) -> Kumaraswamy:
    """With one hump, or one end that most are near to, and this mean and standard deviation.

    Raises ValueError where none is found; nothing within the bounds has sqrt((mean - low) (high - mean)) or more.
    """
    wanted, spread = (mean - low) / (high - low), deviation / (high - low)

    def b_of(a: float) -> float:
        """The one that has the mean, which falls as b grows."""
        return math.exp(_root(lambda log_b: wanted - _moment(1, a, math.exp(log_b)), -20, 12))

    def excess(log_a: float) -> float:
        a = math.exp(log_a)
        return spread**2 - (_moment(2, a, b_of(a)) - wanted**2)

    a = math.exp(_root(excess, -2, 2))
    return Kumaraswamy(low, high, a, b_of(a))


def turns_and_documents(low: float, high: float, mean: float, deviation: float, documents: float) -> Mixture:
    """Short turns, and a share of `documents` that are far longer, up to `high`, with this mean and standard deviation:
    for deviations of several times the mean, which no hump has. Both are log-uniform.

    Raises ValueError where there is none.
    """
    square, rest = deviation**2 + mean**2, 1 - documents

    def turns(least: float) -> LogUniform:
        """Those that leave the mean as it is, if documents begin at `least`; as near to that as turns can be."""
        wanted = (mean - documents * LogUniform(least, high).mean) / rest
        wanted = min(max(wanted, low * (1 + _NEARLY)), LogUniform(low, least).mean)
        return LogUniform(low, _root(lambda turn: LogUniform(low, turn).mean - wanted, low * (1 + _NEARLY), least))

    def excess(least: float) -> float:
        return documents * LogUniform(least, high).mean_square + rest * turns(least).mean_square - square

    least = _root(excess, low * (1 + 2 * _NEARLY), high * (1 - _NEARLY))
    long, short = LogUniform(least, high), turns(least)
    if not math.isclose(documents * long.mean + rest * short.mean, mean, rel_tol=1e-3):
        raise ValueError("so many documents leave no room for turns with such a mean and standard deviation")
    return Mixture(short, long, documents)


def _moment(order: int, a: float, b: float) -> float:
    """The mean of x ** order of Kumaraswamy's distribution on [0, 1]: b B(1 + order / a, b)."""
    inner = 1 + order / a
    return math.exp(math.log(b) + math.lgamma(inner) + math.lgamma(b) - math.lgamma(inner + b))


def _root(rising: Callable[[float], float], low: float, high: float) -> float:
    """Where it is 0. Raises ValueError if it is not, between them."""
    if rising(low) > 0 or rising(high) < 0:
        raise ValueError("no distribution within these bounds has such a mean and standard deviation")
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        if rising(middle) < 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2
