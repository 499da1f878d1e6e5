"""Systems that serve the same requests at rising rate, several draws of them (000 Fig. 8, 001 Fig. 10)."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

import msgspec

from distkv.control.performance.model import PerformanceModel
from distkv.sim.papers.clusters import Reached
from distkv.sim.papers.draws import mean_ratio, paired
from distkv.sim.papers.figure import Ratio, Say, Series
from distkv.sim.spec import SimSpec
from distkv.sim.trace import TraceRequest

System = Callable[[Sequence[TraceRequest]], Reached]
Traces = Callable[[float, int], Sequence[TraceRequest]]
"""Those of a rate, by the seed that they are drawn by."""


class Rising(msgspec.Struct, frozen=True):
    """What a system reached. points: of each rate, by draw."""

    rates_per_s: tuple[float, ...]
    points: tuple[tuple[Reached, ...], ...]

    @property
    def most(self) -> list[float]:
        """The most tokens each second at any rate, by draw."""
        return [max(one.tokens_per_s for one in of_draw) for of_draw in zip(*self.points, strict=True)]

    def by_rate(self, label: str, field: str) -> Series:
        """The mean of a field of `Reached` over draws."""
        return Series.of(label, zip(self.rates_per_s, self._means(field), strict=True))

    def latency_by_throughput(self, label: str) -> Series:
        """Means over draws of one rate after the other."""
        return Series.of(label, zip(self._means("tokens_per_s"), self._means("per_token_s"), strict=True))

    def _means(self, field: str) -> list[float]:
        return [statistics.fmean(getattr(one, field) for one in of_rate) for of_rate in self.points]


def rise(
    systems: Mapping[str, System], rates_per_s: Sequence[float], draws: int, traces: Traces, say: Say
) -> dict[str, Rising]:
    """Have each system serve each draw at each rate."""
    found = dict[str, Rising]()
    for place, (label, system) in enumerate(systems.items()):
        points = list[tuple[Reached, ...]]()
        for index, rate in enumerate(rates_per_s):
            say(f"{label}, {rate:.3g}/s", (place + index / len(rates_per_s)) / len(systems))
            points.append(tuple(system(traces(rate, seed)) for seed in range(draws)))
        found[label] = Rising(tuple(rates_per_s), tuple(points))
    return found


def most_ratio(what: str, theirs: tuple[float, float] | str, ours: Rising, other: Rising) -> Ratio:
    """The most of one, times the most of the other, draw by draw."""
    return mean_ratio(what, theirs, paired(ours.most, other.most))


def offered_s(trace: Sequence[TraceRequest], spec: SimSpec) -> float:
    """Seconds that all instances together need for a trace at least: prompts, and reading keys for each token."""
    model = PerformanceModel(spec.profile)
    return sum(
        model.prefill_s(one.prompt_tokens) + one.output_tokens * model.attention_s(one.num_tokens) for one in trace
    ) / (spec.instances)
