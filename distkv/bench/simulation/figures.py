"""The figures of a simulated trace, by the definitions of `distkv bench cluster`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from distkv.bench.harness.quantile import quantile
from distkv.bench.pooling.summary import EACH_HIGH, FIRST, FIRST_HIGH, GOODPUT, REFUSED, TOKENS, summary
from distkv.sim.outcome import Unloaded
from distkv.sim.run import SimResult
from distkv.sim.spec import SimSpec
from distkv.sim.trace import TraceRequest, scaled

IMBALANCE_SHARE = 0.95
"""Of the time: imbalance is at most what is reported for so long."""


class Figures(msgspec.Struct, frozen=True):
    """What came of a trace at one rate. None: there is nothing to say, for no request got so far."""

    policy: str
    rate_scale: float
    completed: int
    refused: int
    tokens_per_s: float
    goodput_rps: float
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    tpot_p99_s: float | None
    imbalance_p95: float
    remote_share: float


def at_scale(trace: Sequence[TraceRequest], scale: float) -> list[TraceRequest]:
    """The same requests, arriving `scale` times as often, the first at once."""
    span_s = trace[-1].arrival_s - trace[0].arrival_s
    return scaled(trace, tokens=1.0, per_s=scale * (len(trace) - 1) / span_s if span_s else None)


def figures(result: SimResult, spec: SimSpec, scale: float, unloaded: Unloaded) -> Figures:
    """Of a trace that was played at a rate."""
    deadline_s = spec.deadline_s or result.simulated_s
    found = dict(summary(result.outcomes, unloaded, deadline_s))
    each_ms = found.get(EACH_HIGH)
    imbalances = [sample.imbalance for sample in result.samples]
    return Figures(
        policy=spec.policy,
        rate_scale=scale,
        completed=sum(not one.failed for one in result.outcomes),
        refused=round(found[REFUSED]),
        tokens_per_s=found[TOKENS],
        goodput_rps=found[GOODPUT],
        ttft_p50_s=found.get(FIRST),
        ttft_p99_s=found.get(FIRST_HIGH),
        tpot_p99_s=None if each_ms is None else each_ms / 1e3,
        imbalance_p95=quantile(imbalances, IMBALANCE_SHARE) if imbalances else 0.0,
        remote_share=result.remote_share,
    )
