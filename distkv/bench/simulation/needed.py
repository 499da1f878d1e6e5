"""How many instances a trace needs, and of which memory: the smallest cluster, of those that were played, that meets
what is wanted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from distkv.bench.simulation.figures import Figures


class Wanted(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a cluster is to reach; None is whatever it be. completed: share of the requests."""

    ttft_p99_s: float | None = None
    tpot_p99_s: float | None = None
    completed: float | None = None

    def missed(self, figures: Figures, requests: int) -> tuple[str, ...]:
        """What a cluster does not reach, and what it does instead, of so many requests."""
        return tuple(self._missed(figures, requests))

    def _missed(self, figures: Figures, requests: int) -> Iterator[str]:
        least = 1.0 if self.completed is None else self.completed
        if figures.completed < least * requests:
            yield f"{figures.completed:,} of {requests:,} requests completed"
        for name, most_s, found_s in (
            ("time to first token", self.ttft_p99_s, figures.ttft_p99_s),
            ("time per token", self.tpot_p99_s, figures.tpot_p99_s),
        ):
            if most_s is not None and found_s is not None and found_s > most_s:
                yield f"{name} p99 {found_s:.3g} s, not {most_s:g} s"


class Size(msgspec.Struct, frozen=True, order=True):
    """Of a cluster. kv_tokens: of each pool."""

    instances: int
    kv_tokens: int

    def __str__(self) -> str:
        return f"{self.instances:,} instance{'s' if self.instances > 1 else ''} of {self.kv_tokens:,} tokens"


class Needed(msgspec.Struct, frozen=True):
    """The answer for a policy at a rate: the fewest instances, of these the smallest pools. None: no size that was
    played. smaller: the next smaller size that was played, or the largest; empty if there is none. missed: what that
    does not reach."""

    policy: str
    rate_scale: float
    instances: int | None
    kv_tokens: int | None
    smaller: str
    missed: tuple[str, ...]

    def __str__(self) -> str:
        what = f"{self.policy}, rate x {self.rate_scale:g}: "
        if self.instances is None or self.kv_tokens is None:
            return f"{what}none of these sizes is enough; {self.smaller}: {', '.join(self.missed)}"
        answer = f"{what}{Size(self.instances, self.kv_tokens)}"
        if not self.smaller:
            return f"{answer}, the smallest that was played"
        return f"{answer}; {self.smaller}: {', '.join(self.missed)}"


def needed(played: Sequence[tuple[Size, Figures]], wanted: Wanted, requests: int) -> list[Needed]:
    """For each policy and rate, in the order in which they were played."""
    groups: dict[tuple[str, float], list[tuple[Size, Figures]]] = {}
    for size, figures in played:
        groups.setdefault((figures.policy, figures.rate_scale), []).append((size, figures))
    return [_needed(policy, scale, group, wanted, requests) for (policy, scale), group in groups.items()]


def _needed(policy: str, scale: float, group: Sequence[tuple[Size, Figures]], wanted: Wanted, requests: int) -> Needed:
    below = ""
    missed: tuple[str, ...] = ()
    for size, figures in sorted(group, key=lambda one: one[0]):
        before, missed = missed, wanted.missed(figures, requests)
        if not missed:
            return Needed(policy, scale, size.instances, size.kv_tokens, below, before)
        below = str(size)
    return Needed(policy, scale, None, None, below, missed)
