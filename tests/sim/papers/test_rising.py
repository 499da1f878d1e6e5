"""Systems at rising rate."""

from __future__ import annotations

from collections.abc import Sequence

from distkv.sim.papers.clusters import Reached
from distkv.sim.papers.figure import Series
from distkv.sim.papers.rising import Rising, most_ratio, rise
from distkv.sim.trace import TraceRequest


def points(*tokens_per_s: tuple[float, ...]) -> Rising:
    """By rate, then by draw."""
    rates = tuple(float(rate + 1) for rate in range(len(tokens_per_s)))
    return Rising(rates, tuple(tuple(Reached(one, one / 100) for one in of_rate) for of_rate in tokens_per_s))


def test_the_most_is_at_any_rate_and_of_each_draw() -> None:
    found = points((10.0, 20.0), (30.0, 15.0))
    assert found.most == [30.0, 20.0]
    assert found.by_rate("a", "tokens_per_s") == Series("a", (1.0, 2.0), (15.0, 22.5))
    assert found.latency_by_throughput("a") == Series("a", (15.0, 22.5), (0.15, 0.225))


def test_a_ratio_is_the_mean_over_draws_with_its_interval() -> None:
    ratio = most_ratio("a", (1.4, 2.4), points((10.0, 30.0)), points((10.0, 10.0)))
    assert ratio.ours == 2.0 and ratio.ours_draws is not None
    low, high = ratio.ours_draws
    assert low < 2.0 < high and low + high == 4.0
    assert most_ratio("a", "-", points((3.0,)), points((1.0,))).ours_draws is None


def test_each_system_serves_each_draw_at_each_rate() -> None:
    def traces(rate_per_s: float, seed: int) -> Sequence[TraceRequest]:
        return [TraceRequest(0.0, round(rate_per_s), 1 + seed)]

    def system(trace: Sequence[TraceRequest]) -> Reached:
        return Reached(100.0 * trace[0].prompt_tokens + trace[0].output_tokens, 0.0)

    shares = list[float]()
    found = rise({"a": system}, (1.0, 2.0), 2, traces, lambda what, share: shares.append(share))
    assert found["a"].points == (
        (Reached(101.0, 0.0), Reached(102.0, 0.0)),
        (Reached(201.0, 0.0), Reached(202.0, 0.0)),
    )
    assert shares == [0.0, 0.5]
