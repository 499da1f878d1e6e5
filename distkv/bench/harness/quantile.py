"""Quantiles of what was measured, as benchmarks of many requests count them."""

from __future__ import annotations

from collections.abc import Sequence


def quantile(values: Sequence[float], share: float) -> float:
    """The one before which this share of the others comes, in order of size, rounded down. values: at least one."""
    return sorted(values)[int(share * (len(values) - 1))]


def p99(values: Sequence[float]) -> float:
    """Their 99th percentile."""
    return quantile(values, 0.99)
