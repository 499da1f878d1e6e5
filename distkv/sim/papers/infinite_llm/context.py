"""001 Fig. 9 (§7.2): throughput of the largest batch of three context lengths, and the longest that there can be."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from distkv.sim.baselines.single import single_of
from distkv.sim.baselines.throughput import largest_batch, separate_tokens_per_s
from distkv.sim.papers.beyond.context import longest_tokens
from distkv.sim.papers.clusters import cluster
from distkv.sim.papers.figure import Effort, Figure, Panel, Ratio, Say, Series, rounded
from distkv.sim.papers.infinite_llm.engines import ClosedLoop, Decodes
from distkv.sim.papers.sensitivity import specs_around
from distkv.sim.spec import SimSpec

SHORT_TOKENS = 1000
BEYOND = 1.05
"""Of one instance's memory: slightly more than vLLM-multi supports."""
CONTEXT_BAND, SINGLE_BAND = (2.0, 19.0), (1.4, 5.3)
CONTEXT_NOTE = "The paper went up to 2,000K tokens; so many pools hold more."
HOP_NOTE = "Hidden states of the whole batch cross the Ethernet between the stages of the one instance, in each step."
PAIR_NOTE = "Two equal pools are two times one, less the block that a step writes."
SINGLE_NOTE = (
    "A memory full of keys takes most of a step, and these are read as fast either way; weights and launches, where "
    "one instance over all GPUs is inefficient, are the rest. The paper's had a host's cost for each step besides."
)


class Setup(msgspec.Struct, frozen=True):
    """Instances of a built-in profile, as 000 (Table 2) has them for the same six ranges."""

    profile: str
    instances: int

    @property
    def title(self) -> str:
        return f"{self.instances} x {self.profile.removeprefix('a100-')}"

    def spec(self) -> SimSpec:
        single = single_of(self.profile, self.instances)
        return replace(cluster(self.profile, self.instances, "contract"), single=single)


SETUPS = (
    Setup("a100-llama2-7b", 2),
    Setup("a100-llama2-13b", 2),
    Setup("a100-llama2-70b", 2),
    Setup("a100-llama2-13b", 4),
    Setup("a100-llama2-7b", 16),
    Setup("a100-llama2-7b", 32),
)


def figure_9(effort: Effort, say: Say) -> Figure:
    """1k, slightly more than one instance holds, and the most that all hold."""
    setups, for_s = effort.pick(SETUPS[:1], SETUPS), effort.pick(2.0, 10.0)
    panels, ratios = list[Panel](), list[Ratio]()
    for index, setup in enumerate(setups):
        say(setup.title, index / len(setups))
        spec = setup.spec()
        longest = longest_tokens(spec)
        lengths = (SHORT_TOKENS, round(BEYOND * spec.kv_tokens), longest)
        multi = separate_tokens_per_s(spec.profile, spec.kv_tokens, SHORT_TOKENS, spec.instances)
        ours = [(tokens, pooled_tokens_per_s(spec, tokens, for_s)) for tokens in lengths]
        panels.append(
            Panel(
                title=setup.title,
                series=(
                    Series.of("vLLM-multi", [(SHORT_TOKENS, multi)]),
                    Series.of("vLLM-single", [(tokens, _single(spec, tokens)) for tokens in lengths]),
                    Series.of("Infinite-LLM", ours),
                ),
                x_log=True,
                y_log=True,
            )
        )
        ratios += _ratios(setup.title, spec, longest / longest_tokens(replace(spec, instances=1)), ours[0][1] / multi)
    return Figure(
        name="001-9",
        title="Throughput of the largest batch by context length",
        x_label="context tokens",
        y_label="tokens/s",
        panels=tuple(panels),
        ratios=tuple(ratios),
        notes=(
            "The longest context is that which the control code does not refuse; decode steps are those of engines "
            "with each request's keys in the first pools that have room, over Ethernet of 125 MB/s between hosts. "
            "vLLM-single's pipeline is counted as if all of its stages attended to one sequence at once, which "
            "favours it.",
            "GPUs are those that 000 has for the same six ranges.",
        ),
    )


def pooled_tokens_per_s(spec: SimSpec, tokens: int, for_s: float) -> float:
    """Of the largest batch that all pools together hold. Instances that lend nothing each do what one does."""
    if batch := largest_batch(spec.profile, spec.kv_tokens, tokens):
        (alone,) = ClosedLoop(spec.profile, ("host",)).tokens_per_s([[Decodes(batch, tokens)]], for_s)
        return spec.instances * alone
    batches = placed(spec, tokens)
    hosts = [f"host{index // spec.instances_per_host}" for index in range(spec.instances)]
    loop = ClosedLoop(spec.profile, hosts, network_shared=spec.network_shared)
    return sum(loop.tokens_per_s(batches, for_s))


def placed(spec: SimSpec, tokens: int) -> list[list[Decodes]]:
    """What each instance decodes: one that has what it lacks in the pools of those that decode none."""
    needed = -(-tokens // spec.profile.block_tokens)
    owners = spec.instances * spec.num_blocks // needed
    free = [spec.num_blocks] * (spec.instances - owners)
    placed: list[list[Decodes]] = []
    for _ in range(owners):
        lent, lacking = list[tuple[int, int]](), needed - spec.num_blocks
        for index in range(len(free)):
            if blocks := min(lacking, free[index]):
                free[index] -= blocks
                lacking -= blocks
                lent.append((owners + index, blocks))
        assert not lacking, f"{owners} requests of {tokens} tokens do not fit"
        placed.append([Decodes(1, tokens, lent=tuple(lent))])
    return [*placed, *([] for _ in free)]


def _single(spec: SimSpec, tokens: int) -> float:
    assert spec.single is not None
    return separate_tokens_per_s(spec.single.profile, spec.single.kv_tokens, tokens)


def _ratios(title: str, spec: SimSpec, context: float, multi: float) -> tuple[Ratio, ...]:
    ours = _over_single(spec)
    around = [ours, *map(_over_single, specs_around(spec))]
    return (
        Ratio(
            what=f"{title}: longest context, times vLLM-multi's", theirs=CONTEXT_BAND, ours=rounded(context)
        ).explained(PAIR_NOTE if context < 2 else CONTEXT_NOTE),
        Ratio(
            what=f"{title}: tokens/s at 1k, times vLLM-single's",
            theirs=SINGLE_BAND,
            ours=rounded(ours),
            ours_range=(rounded(min(around)), rounded(max(around))),
        ).explained(SINGLE_NOTE if ours < SINGLE_BAND[0] else HOP_NOTE),
        Ratio(what=f"{title}: tokens/s at 1k, times vLLM-multi's", theirs="comparable", ours=rounded(multi)),
    )


def _over_single(spec: SimSpec) -> float:
    """At 1k, where no instance lends."""
    multi = separate_tokens_per_s(spec.profile, spec.kv_tokens, SHORT_TOKENS, spec.instances)
    return multi / _single(spec, SHORT_TOKENS)
