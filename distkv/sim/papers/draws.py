"""What several draws of the same trace say: the mean of them, and how sure that is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from distkv.sim.papers.figure import Ratio, rounded

STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Student's t of 95 %, two-sided, by degrees of freedom from 1 on."""
MOST = len(STUDENT) + 1


def interval(values: Sequence[float]) -> tuple[float, float]:
    """In which the mean lies with 95 %, if values are normal; of 2 to MOST values."""
    mean, count = statistics.fmean(values), len(values)
    half = STUDENT[count - 2] * statistics.stdev(values) / math.sqrt(count)
    return rounded(mean - half), rounded(mean + half)


def mean_ratio(what: str, theirs: tuple[float, float] | str, draws: Sequence[float]) -> Ratio:
    """The mean of draws; of one, without an interval."""
    interval_of = interval(draws) if len(draws) > 1 else None
    return Ratio(what=what, theirs=theirs, ours=rounded(statistics.fmean(draws)), ours_draws=interval_of)


def paired(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """How many times the others' each of ours is, draw by draw."""
    return [mine / other for mine, other in zip(ours, theirs, strict=True)]
