"""Which way figures are better, by their unit."""

from __future__ import annotations

from typing import Literal

LOWER = frozenset(
    {"s", "ms", "µs", "MB", "% of one core", "% of a core", "µs of a core", "requests", "times", "of all keys"}
)
HIGHER = frozenset({
    "tokens/s", "steps/s", "requests/s", "GB/s", "calls/s", "of real time", "of alone", "% exact", "% same", "% home",
})  # fmt: skip
LOADS = frozenset({"1/s", "%", "sequences"})
"""What was asked for, or how it was done, not what came of it."""


def better(unit: str) -> Literal["lower", "higher"] | None:
    """Which figures of this unit are better; None if neither."""
    return "lower" if unit in LOWER else "higher" if unit in HIGHER else None
