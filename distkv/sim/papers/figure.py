"""A figure of a paper, made again: curves, and each ratio that the paper prints beside ours."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Literal, TypeVar

import msgspec

from distkv.sim.trace import TraceRequest

Kind = TypeVar("Kind")
Say = Callable[[str, float], None]
"""What is computed, and the share of the figure that is done."""
Lies = Literal["below", "inside", "above"]
SINGLE_SHARE = 0.05
"""Of a value that is printed alone: ours agrees with it within so much."""


class Effort(StrEnum):
    """How much is simulated: `quick` to see that it works, `full` for figures that are compared."""

    QUICK = "quick"
    FULL = "full"

    def pick(self, quick: Kind, full: Kind) -> Kind:
        """The one that belongs to it."""
        return quick if self is Effort.QUICK else full


class Series(msgspec.Struct, frozen=True):
    """A curve: x rises or stays."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]

    @classmethod
    def of(cls, label: str, points: Iterable[tuple[float, float]]) -> Series:
        """With six digits of each number."""
        found = [(rounded(x), rounded(y)) for x, y in points]
        return cls(label, tuple(x for x, _ in found), tuple(y for _, y in found))


class Panel(msgspec.Struct, frozen=True, kw_only=True):
    """One system of axes. x_label, y_label: empty where they are the figure's. x_log, y_log: logarithmic axes."""

    title: str
    series: tuple[Series, ...]
    x_label: str = ""
    y_label: str = ""
    x_log: bool = False
    y_log: bool = False


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """Something that the paper says in a number or in words. theirs: the band as printed, twice the same for one value;
    words where no number is printed. ours_draws: 95 % interval of the mean, if ours is that of several draws.
    ours_range: what it is with each part of the hardware 20 % slower or faster. note: a sentence where they differ."""

    what: str
    theirs: tuple[float, float] | str
    ours: float
    ours_draws: tuple[float, float] | None = None
    ours_range: tuple[float, float] | None = None
    note: str = ""

    @property
    def lies(self) -> Lies | None:
        """Where ours lies by what is printed; None where that is words."""
        if isinstance(self.theirs, str):
            return None
        low, high = self.theirs
        slack = SINGLE_SHARE * high if low == high else 0.0
        if self.ours < low - slack:
            return "below"
        return "above" if self.ours > high + slack else "inside"

    @property
    def differs(self) -> bool:
        """Whether ours lies outside what is printed."""
        return self.lies in ("below", "above")

    def explained(self, note: str) -> Ratio:
        """The same with this note, if it differs."""
        return msgspec.structs.replace(self, note=note if self.differs else "")


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """name: of the paper and the figure, as 001-9. effort: with which it was made; empty until it is known. notes:
    sentences on what was assumed."""

    name: str
    title: str
    x_label: str
    y_label: str
    panels: tuple[Panel, ...]
    ratios: tuple[Ratio, ...]
    notes: tuple[str, ...] = ()
    effort: str = ""

    @property
    def has_goals(self) -> bool:
        """Whether no paper has it: ours stands beside goals, in words."""
        return self.name.startswith("beyond-")


class PlayedTrace(msgspec.Struct, frozen=True):
    """A trace that somebody has, by the name of its file."""

    name: str
    requests: Sequence[TraceRequest]


Maker = Callable[[Effort, Say], Figure]
TraceMaker = Callable[[Effort, Say, Sequence[PlayedTrace]], Figure]


def within(say: Say, title: str, place: int, places: int) -> Say:
    """For a part of a figure, so many of which there are."""
    return lambda what, share: say(f"{title}, {what}", (place + share) / places)


def rounded(value: float) -> float:
    """With six digits."""
    return float(f"{value:.6g}")
