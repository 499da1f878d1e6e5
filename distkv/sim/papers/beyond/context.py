"""The longest context that a cluster serves, by the number of its instances."""

from __future__ import annotations

from msgspec.structs import replace

from distkv.sim.papers.clusters import cluster
from distkv.sim.papers.figure import Effort, Figure, Panel, Ratio, Say, Series, rounded
from distkv.sim.run import UNFINISHED, simulate
from distkv.sim.spec import SimSpec
from distkv.sim.trace import TraceRequest

PROFILE = "a100-llama2-7b"
INSTANCES = (2, 4, 8, 16, 32)
GOAL = 0.95
"""Of so many times one instance's."""
OUTPUT_TOKENS = 2
REFUSED_BY_S = 0.2
"""What is refused is so at once."""
PLAYED = 8
"""Instances, at most, that serve their longest request to its end here: more of them take minutes."""


def figure_context(effort: Effort, say: Say) -> Figure:
    """The longest that is not refused, found by trying."""
    counts = effort.pick(INSTANCES[:1], INSTANCES)
    alone = longest_tokens(_spec(1))
    points, ratios = [(1.0, float(alone))], list[Ratio]()
    for index, instances in enumerate(counts):
        say(f"{instances} instances", index / len(counts))
        spec = _spec(instances)
        tokens = longest_tokens(spec)
        is_served = instances > PLAYED or _is_served(spec, tokens)
        assert is_served, f"{instances} instances took a request of {tokens} tokens and did not serve it"
        points.append((instances, tokens))
        ratios.append(
            Ratio(
                what=f"{instances} instances: longest context, times that of {instances} single ones",
                theirs=f"at least {GOAL:g}",
                ours=rounded(tokens / (instances * alone)),
            )
        )
    return Figure(
        name="beyond-context",
        title="The longest context that is served, LLaMA2-7B on A100",
        x_label="instances",
        y_label="tokens",
        panels=(Panel(title="", series=(Series.of("contract", points),), x_log=True, y_log=True),),
        ratios=tuple(ratios),
        notes=(
            f"Up to {PLAYED} instances the longest request is played to its end; with more it is that which is not "
            "refused.",
            "Hosts of eight, linked by InfiniBand of 400 Gb/s: over Ethernet the same memory is there, but slow.",
        ),
    )


def longest_tokens(spec: SimSpec) -> int:
    """Of the requests that are not refused, to a rBlock: one step after the other, twice as long each, down from all
    memory, then by halves."""
    taken, step = spec.instances * spec.num_blocks, 1
    refused = taken + 1
    while not _is_taken(spec, taken):
        refused, taken, step = taken, max(1, taken - step), 2 * step
    while refused - taken > 1:
        middle = (taken + refused) // 2
        taken, refused = (middle, refused) if _is_taken(spec, middle) else (taken, middle)
    return taken * spec.profile.block_tokens


def _is_taken(spec: SimSpec, blocks: int) -> bool:
    request = _request(blocks * spec.profile.block_tokens)
    (outcome,) = simulate([request], replace(spec, most_s=REFUSED_BY_S)).outcomes
    return outcome.failed in ("", UNFINISHED)


def _is_served(spec: SimSpec, tokens: int) -> bool:
    return not simulate([_request(tokens)], spec).outcomes[0].failed


def _request(tokens: int) -> TraceRequest:
    return TraceRequest(0.0, tokens - OUTPUT_TOKENS, OUTPUT_TOKENS)


def _spec(instances: int) -> SimSpec:
    return cluster(PROFILE, instances, "contract", network="infiniband")
