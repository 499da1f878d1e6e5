"""How many examples tests take that say so."""

from __future__ import annotations

from hypothesis import settings

OF_THE_SLOW_LANE = 100
"""What those take that say nothing, see conftest.py."""


def examples(count: int) -> int:
    """`count` in the slow lane, and in the default one the part of it that tests take that say nothing."""
    return -(-count * min(settings().max_examples, OF_THE_SLOW_LANE) // OF_THE_SLOW_LANE)
