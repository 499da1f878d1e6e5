"""Quantiles of what was measured, as all benchmarks count them."""

from __future__ import annotations

import math
from collections.abc import Sequence


def quantile(values: Sequence[float], share: float) -> float:
    """The least value that so many are not above (nearest rank): of fewer than 100 values the largest is the 99th
    percentile. values: at least one."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def p99(values: Sequence[float]) -> float:
    """Their 99th percentile."""
    return quantile(values, 0.99)
