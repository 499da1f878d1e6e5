"""What is played to all contenders: requests, and the memory that instances have for them."""

from __future__ import annotations

import statistics
from pathlib import Path

import msgspec

from distkv.bench.workloads.trace import POOL_OF_LARGEST, Drawn, drawn_trace, pool_of, read_trace
from distkv.errors import ConfigError
from distkv.sim.trace import TraceRequest, scaled

ALONE_REQUESTS = 6
WINDOW_S, LEAST_REQUESTS = 30.0, 12
"""At low rates requests of so much time are played, and not fewer than that."""


class Load(msgspec.Struct, frozen=True):
    """Requests of a trace, `title`. kv_tokens: of each pool. alone: those that are served one after the other first."""

    title: str
    requests: list[TraceRequest]
    kv_tokens: int
    alone: list[TraceRequest]

    @property
    def lengths(self) -> list[int]:
        """Tokens of each request, its output included."""
        return [one.num_tokens for one in self.requests]

    @property
    def num_unheld(self) -> int:
        """How many no pool holds."""
        return sum(length > self.kv_tokens for length in self.lengths)

    def num_at(self, rate: float) -> int:
        """How many are played at so many a second."""
        return min(len(self.requests), max(LEAST_REQUESTS, round(rate * WINDOW_S)))

    def __str__(self) -> str:
        lengths = self.lengths
        return (
            f"{len(lengths)}, {min(lengths):,} to {max(lengths):,} tokens, mean {statistics.fmean(lengths):,.0f}, "
            f"standard deviation {statistics.pstdev(lengths):,.0f}; {self.num_unheld} that no pool holds"
        )


def load_of(
    trace: Path | None,
    drawn: Drawn,
    seed: int,
    count: int,
    median_tokens: int,
    scale_tokens: float,
    kv_tokens: int | None,
    instances: int,
) -> Load:
    """The first `count` requests of a trace, or as many drawn ones, on so many instances of `kv_tokens` each, or of as
    many as the load is known by. Raises ConfigError for a trace that cannot be played there."""
    requests = drawn_trace(drawn, count, median_tokens, seed) if trace is None else read_trace(trace, count)
    played = scaled(requests, tokens=scale_tokens)
    largest = max(one.num_tokens for one in played)
    pool = kv_tokens or pool_of(played, POOL_OF_LARGEST["variance" if trace else drawn])
    if largest > pool * instances:
        raise ConfigError(
            "kv_tokens", f"the largest request has {largest:,} tokens, {instances} pools of {pool:,} do not"
        )
    alone = [one for one in played if one.num_tokens <= pool and one.output_tokens > 1][:ALONE_REQUESTS]
    if not alone:
        raise ConfigError("kv_tokens", f"no request of two output tokens fits a pool of {pool:,} tokens")
    return Load(f"drawn, {drawn}, seed {seed}" if trace is None else trace.name, played, pool, alone)
