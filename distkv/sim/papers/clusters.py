"""Clusters of the papers' hardware that play traces, and what they reach."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import msgspec
from msgspec.structs import replace

from distkv.sim.baselines.batching.prompts import Prompts
from distkv.sim.baselines.cluster import BaselineCluster
from distkv.sim.baselines.single import as_single, single_of
from distkv.sim.baselines.staying import Staying
from distkv.sim.outcome import Outcome
from distkv.sim.profiles import built_in as named
from distkv.sim.profiles.hardware import NetworkName
from distkv.sim.run import UNFINISHED, simulate
from distkv.sim.spec import SimPolicyName, SimSpec
from distkv.sim.trace import TraceRequest
from distkv.types import DispatchName

SETTINGS = {"max_num_seqs": 256, "max_waiting": 1_000_000}
"""vLLM's default of the time for what runs at once; nothing is refused for waiting, as there."""
VLLM_PROMPTS: tuple[Prompts, ...] = ("filling", "short")
DISPATCHES: tuple[DispatchName, ...] = ("predicted", "least-loaded")
"""What stands before vLLM side by side: neither is better for all traces and rates."""


def cluster(
    profile: str, instances: int, policy: SimPolicyName, *, network: NetworkName | None = None, **fields: Any
) -> SimSpec:
    """Instances of a built-in profile with all the memory that they have. fields: others of the spec."""
    return SimSpec(
        instances=instances,
        kv_tokens=named.kv_tokens(profile),
        profile=named.built_in(profile, network=network),
        policy=policy,
        single=single_of(profile, instances, network=network) if policy == "single" else None,
        settings=SETTINGS,
        instances_per_host=named.instances_per_host(profile),
        network_shared=named.network_shared(profile, network=network),
        **fields,
    )


class Reached(msgspec.Struct, frozen=True):
    """What came of a trace until its last request arrived. tokens_per_s: generated. per_token_s: of requests that
    ended, mean of the whole latency divided by the tokens of the output."""

    tokens_per_s: float
    per_token_s: float


def reach(spec: SimSpec, trace: Sequence[TraceRequest]) -> Reached:
    """Play a trace while its requests arrive: what is left then would only show how long the last ones take."""
    window_s = trace[-1].arrival_s
    return _reached(simulate(trace, replace(spec, most_s=window_s)).outcomes, window_s)


def reach_by_vllm(spec: SimSpec, trace: Sequence[TraceRequest]) -> Reached:
    """The same on instances that batch by vLLM's rules and share nothing; on one instance over all GPUs for the policy
    `single`. Of the ways in `by_vllm`, the one that generates most."""
    window_s = trace[-1].arrival_s
    played = by_vllm(trace, replace(spec, most_s=window_s))
    return max((_reached(outcomes, window_s) for outcomes in played), key=lambda one: one.tokens_per_s)


def by_vllm(trace: Sequence[TraceRequest], spec: SimSpec) -> Iterator[Sequence[Outcome]]:
    """What comes of a trace on instances that batch by vLLM's rules: with chunks of prompts that fill steps, and with
    chunks so small that decodes go on beside them; with requests sent where most room is for each, and where fewest
    are."""
    if spec.policy == "single":
        spec = as_single(spec)
    for prompts, dispatch in product(VLLM_PROMPTS, DISPATCHES if spec.instances > 1 else DISPATCHES[:1]):
        advice = replace(spec.advice, dispatch=dispatch)
        cluster = BaselineCluster(replace(spec, advice=advice), Staying, prompts=prompts)
        cluster.play(trace, lambda now_s, ended, of: None)
        cluster.stop(UNFINISHED)
        yield cluster.outcomes


def _reached(outcomes: Sequence[Outcome], window_s: float) -> Reached:
    ended = [one.times_s[-1] / len(one.times_s) for one in outcomes if not one.failed]
    tokens = sum(len(one.times_s) for one in outcomes)
    return Reached(tokens / window_s, statistics.fmean(ended) if ended else 0.0)
