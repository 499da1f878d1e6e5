"""Which instances requests leave, and for which: pure rules over what instances say of themselves.

Freeness (Llumnix, Algorithm 1) is the memory that is left of an instance for each of its requests. The request that
waits first counts with all that it needs, its virtual usage, though it has nothing yet: so an instance where a large
one waits is short of memory, and small ones leave it until the large one fits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

THRESHOLD_BLOCKS = 3.0
"""Of freeness: below it requests leave an instance, above it they may come. Llumnix's --migrate-out-threshold."""


class Load(NamedTuple):
    """free_blocks: beyond the watermark, of which first_waiting_blocks are wanted by the request that waits first.
    running: requests, those that are coming included. preempted: whether one that was preempted waits."""

    instance: int
    free_blocks: int
    first_waiting_blocks: int
    running: int
    preempted: bool

    @property
    def freeness(self) -> float:
        """rBlocks that are left for each request; without any limit where there is none."""
        requests = self.running + (self.first_waiting_blocks > 0)
        return (self.free_blocks - self.first_waiting_blocks) / requests if requests else math.inf


def pairs(loads: Sequence[Load]) -> list[tuple[int, int]]:
    """Instances that requests leave, and for which: again and again the one with the lowest freeness, and the one with
    the highest."""
    short = [one for one in loads if one.preempted or one.freeness < THRESHOLD_BLOCKS]
    roomy = [one for one in loads if not one.preempted and one.freeness > THRESHOLD_BLOCKS]
    short.sort(key=lambda one: one.freeness)
    roomy.sort(key=lambda one: -one.freeness)
    return [(source.instance, target.instance) for source, target in zip(short, roomy, strict=False)]
