"""What requests of 004 take, stage by stage, on instances that are divided and on others."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
from msgspec.structs import replace

from distkv.sim.baselines.batching.served import Served
from distkv.sim.baselines.cluster import BaselineCluster
from distkv.sim.baselines.disaggregated.divided import Passage
from distkv.sim.baselines.disaggregated.pulling import Pulling
from distkv.sim.baselines.disaggregated.pushing import Pushing
from distkv.sim.baselines.staying import Staying
from distkv.sim.outcome import Outcome
from distkv.sim.papers.clusters import SETTINGS, cluster
from distkv.sim.run import simulate
from distkv.sim.spec import SimSpec
from distkv.sim.trace import TraceRequest

PROFILE = "h100-mistral-large"
"""004 §5.1: a host of eight H100 each."""
WHOLE_PROMPTS = {**SETTINGS, "max_num_batched_tokens": 131_072}
"""Without chunked prefill a step of vLLM has the model's longest prompt, or as many as are no longer together. That
theirs is without says §5.2.1: it "prioritizes prefill computation"."""
Place = type[Pulling] | type[Pushing]


class Stages(msgspec.Struct, frozen=True):
    """Seconds of a request (004 Fig. 14). queue_s: until its prompt began to be computed; prefill_s: until it was.
    memory_s: of waiting until there was memory where it decodes. transfer_s: until its keys and values were there.
    decode_s: until its last token, the first of `tokens` is not counted."""

    queue_s: float
    prefill_s: float
    memory_s: float
    transfer_s: float
    decode_s: float
    tokens: int

    @property
    def first_s(self) -> float:
        """Until it could decode: with what it waited for memory, as theirs is (004 §5.1)."""
        return self.queue_s + self.prefill_s + self.memory_s + self.transfer_s

    @property
    def total_s(self) -> float:
        return self.first_s + self.decode_s

    @property
    def between_s(self) -> float | None:
        """Between its tokens; None if there is but one."""
        return self.decode_s / (self.tokens - 1) if self.tokens > 1 else None


Of = Callable[[Sequence[TraceRequest]], list[Stages]]
"""What becomes of a trace on some instances."""


def divided(prefills: int, decodes: int, place: Place, trace: Sequence[TraceRequest]) -> list[Stages]:
    """So many instances compute prompts, as many whole ones at once as fit a step, and so many decode."""
    return stages_of(played(prefills, decodes, place, trace))


def played(prefills: int, decodes: int, place: Place, trace: Sequence[TraceRequest]) -> BaselineCluster:
    """The cluster of `divided`, which has served a trace."""
    spec = _spec(prefills + decodes, settings=WHOLE_PROMPTS)
    cluster = BaselineCluster(spec, partial(place, prefills), prompts="alone")
    cluster.play(trace, lambda *progress: None)
    return cluster


def stages_of(cluster: BaselineCluster) -> list[Stages]:
    """Of all requests of such a cluster, in order of arrival."""
    assert isinstance(cluster.placement, Pulling | Pushing)
    passages = cluster.placement.divided.passages
    return [_of_divided(one, passages.get(one)) for one in cluster.served]


def by_vllm(trace: Sequence[TraceRequest], *, chunked: bool) -> list[Stages]:
    """One instance. chunked: whether chunks of prompts fill steps with decodes, of 2,048 tokens; otherwise whole ones
    go first."""
    spec = _spec(1) if chunked else _spec(1, settings=WHOLE_PROMPTS)
    one = BaselineCluster(spec, Staying, prompts="filling" if chunked else "alone")
    one.play(trace, lambda *progress: None)
    return _of_all(one.outcomes)


def shared(instances: int, trace: Sequence[TraceRequest]) -> list[Stages]:
    """Instances that each do all, and lend each other memory, by distkv's own rules."""
    return _of_all(simulate(trace, _spec(instances)).outcomes)


def high(found: Sequence[Stages], of: Callable[[Stages], float | None]) -> float:
    """The ninth of ten, as theirs (004 Fig. 13)."""
    known = [value for one in found if (value := of(one)) is not None]
    return statistics.quantiles(known, n=10, method="inclusive")[-1]


def mean(found: Sequence[Stages], of: Callable[[Stages], float | None]) -> float:
    """Of those that have one."""
    return statistics.fmean(value for one in found if (value := of(one)) is not None)


def _spec(instances: int, **fields: object) -> SimSpec:
    return replace(cluster(PROFILE, instances, "contract" if instances > 1 else "none"), **fields)


def _of_all(outcomes: Sequence[Outcome]) -> list[Stages]:
    """Of requests that stay where they begin, whose queue is not told apart."""
    assert not any(one.failed for one in outcomes), "nothing refuses or ends them"
    return [Stages(0.0, one.first_s, 0.0, 0.0, one.times_s[-1] - one.first_s, len(one.times_s)) for one in outcomes]


def _of_divided(one: Served, passage: Passage | None) -> Stages:
    outcome = one.outcome
    assert not outcome.failed and one.began_s is not None
    last_s, tokens = one.due_s + outcome.times_s[-1], len(outcome.times_s)
    passage = passage or Passage()
    granted_s, here_s = passage.granted_s, passage.here_s or last_s  # the first token of some was their last
    computed_s = passage.computed_s or here_s
    if granted_s is None:
        queue_s, memory_s, left_s = one.began_s - one.due_s, 0.0, computed_s
    elif granted_s <= one.began_s:  # pushed: memory comes first
        queue_s, memory_s, left_s = one.began_s - granted_s, granted_s - one.due_s, computed_s
    else:
        queue_s, memory_s, left_s = one.began_s - one.due_s, granted_s - computed_s, granted_s
    return Stages(queue_s, computed_s - one.began_s, memory_s, here_s - left_s, last_s - here_s, tokens)
