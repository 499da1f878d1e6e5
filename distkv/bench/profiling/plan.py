"""What is measured: sizes, and the time for it."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec


class Sizes(msgspec.Struct, frozen=True):
    """Points of the curves and of the grid. *_tokens: contexts, as far as pools hold them; first_tokens: behind the
    first sequence of the debtor, others_tokens: behind each other one. chunk_s: of a chunk's steps, which follow each
    other. rounds: visits of each decode step at most, and visit_s, how long one is."""

    batches: tuple[int, ...]
    context_tokens: tuple[int, ...]
    chunks: tuple[int, ...]
    remote_tokens: tuple[int, ...]
    remote_batches: tuple[int, ...]
    remote_chunks: tuple[int, ...]
    grid_batches: tuple[int, ...]
    first_tokens: tuple[int, ...]
    others_tokens: int
    shares: tuple[float, ...]
    creditor_batch: int
    chunk_s: float
    rounds: int
    visit_s: float


FULL = Sizes(
    batches=(1, 2, 4, 8, 16, 32, 64),
    context_tokens=(1024, 4096, 8192),
    chunks=(1, 16, 64, 256, 512),
    remote_tokens=(512, 2048, 4096),
    remote_batches=(1, 4, 16, 32),
    remote_chunks=(1, 16, 64, 256),
    grid_batches=(1, 4, 16),
    first_tokens=(1024, 4096),
    others_tokens=256,
    shares=(0.0, 0.25, 0.5, 1.0),
    creditor_batch=4,
    chunk_s=0.5,
    rounds=16,
    visit_s=0.2,
)
QUICK = Sizes(
    batches=(1, 4),
    context_tokens=(256, 1024),
    chunks=(1, 32),
    remote_tokens=(128, 512),
    remote_batches=(1, 4),
    remote_chunks=(1, 32),
    grid_batches=(1, 4),
    first_tokens=(512,),
    others_tokens=64,
    shares=(0.0, 0.5, 1.0),
    creditor_batch=2,
    chunk_s=0.05,
    rounds=3,
    visit_s=0.03,
)


class Budget:
    """Time for stages: what a stage leaves is for the next ones."""

    def __init__(self, total_s: float) -> None:
        self._started_s, self.total_s = time.monotonic(), total_s
        self._until_s = self._started_s

    def stage(self, share: float) -> None:
        """The next stage may use the time until this share of the total is gone."""
        self._until_s = self._started_s + share * self.total_s

    @property
    def is_spent(self) -> bool:
        """Whether the time of this stage is over."""
        return time.monotonic() >= self._until_s

    @property
    def spent_share(self) -> float:
        """Of the total; more than 1 when it is overdrawn."""
        return (time.monotonic() - self._started_s) / self.total_s


def widest_first(sizes: Sequence[int]) -> tuple[int, ...]:
    """The first, the last, and those between: what is left out leaves a curve its width."""
    return (*sizes[:1], *sizes[:0:-1][:1], *sizes[1:-1])
