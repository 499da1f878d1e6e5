"""`simulate`: a trace on a cluster in simulated time, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from distkv.events import ClusterEvent
from distkv.sim.baselines.cluster import BaselineCluster
from distkv.sim.baselines.disaggregated.divided import splits
from distkv.sim.baselines.disaggregated.pulling import Pulling
from distkv.sim.baselines.migration.placement import Migrating
from distkv.sim.baselines.single import as_single
from distkv.sim.collecting import rarely_collected
from distkv.sim.outcome import Outcome
from distkv.sim.spec import SimSpec
from distkv.sim.timed.cluster import READY_S, Progress, TimedCluster
from distkv.sim.timed.memory import MemorySample
from distkv.sim.token_times import TokenTimes
from distkv.sim.trace import TraceRequest
from distkv.wire.messages.counters import Counters

UNFINISHED = "unfinished"
"""Why requests failed that had not ended when the simulation did."""


class SimResult(msgspec.Struct, frozen=True):
    """What came of a trace. outcomes: of its requests, in order of arrival. samples: of memory. counters: of all
    instances together. simulated_s: from the beginning of the trace until its last request ended. events: what was
    published, when and by whom, if the spec wanted that kept. prefill_instances: how many computed prompts where the
    others decoded."""

    outcomes: tuple[Outcome, ...]
    samples: tuple[MemorySample, ...]
    counters: Counters
    simulated_s: float
    events: tuple[tuple[float, str, ClusterEvent], ...]
    prefill_instances: int | None = None

    @property
    def remote_share(self) -> float:
        """Of the keys that steps attended to, those that lay at creditors."""
        counters = self.counters
        return counters.remote_attended_tokens / counters.attended_tokens if counters.attended_tokens else 0.0


def simulate(
    trace: Sequence[TraceRequest], spec: SimSpec, progress: Progress = lambda now_s, ended, of: None
) -> SimResult:
    """Play a trace, in order of arrival, to a cluster. The same trace and spec give the same result.

    progress: called with the simulated seconds, how many requests have ended, and of how many.
    """
    with rarely_collected():
        return _simulated(trace, spec, progress)


def _simulated(trace: Sequence[TraceRequest], spec: SimSpec, progress: Progress) -> SimResult:
    if spec.policy == "migrate":
        return _of_baseline(trace, BaselineCluster(spec, Migrating), progress)
    if spec.policy == "prefill-decode":
        wanted = [spec.prefill_instances] if spec.prefill_instances else splits(spec.instances)
        return min((_divided(trace, spec, prefills, progress) for prefills in wanted), key=_rank)
    cluster = TimedCluster(as_single(spec) if spec.policy == "single" else spec)
    cluster.play(trace, progress)
    cluster.clients.stop(UNFINISHED)
    return SimResult(
        outcomes=_of_all(cluster.clients.outcomes, trace),
        samples=tuple(cluster.samples),
        counters=cluster.count(),
        simulated_s=cluster.agenda.now() - READY_S,
        events=tuple(cluster.events),
    )


def _divided(trace: Sequence[TraceRequest], spec: SimSpec, prefills: int, progress: Progress) -> SimResult:
    result = _of_baseline(trace, BaselineCluster(spec, partial(Pulling, prefills)), progress)
    return msgspec.structs.replace(result, prefill_instances=prefills)


def _rank(result: SimResult) -> tuple[int, float]:
    """Of results for one trace: the fewest requests that failed, then the shortest times to last tokens."""
    return (
        sum(bool(one.failed) for one in result.outcomes),
        sum(one.times_s[-1] for one in result.outcomes if not one.failed),
    )


def _of_baseline(trace: Sequence[TraceRequest], cluster: BaselineCluster, progress: Progress) -> SimResult:
    cluster.play(trace, progress)
    cluster.stop(UNFINISHED)
    return SimResult(
        outcomes=_of_all(cluster.outcomes, trace),
        samples=tuple(cluster.samples),
        counters=cluster.counters,
        simulated_s=cluster.agenda.now(),
        events=(),
    )


def _of_all(arrived: Sequence[Outcome], trace: Sequence[TraceRequest]) -> tuple[Outcome, ...]:
    """Those that did not come to arrive included."""
    return (*arrived, *(Outcome(request, TokenTimes(), UNFINISHED) for request in trace[len(arrived) :]))
