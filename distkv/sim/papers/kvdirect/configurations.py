"""004 Fig. 12 (§5.2.2): requests of one length, by how many instances compute prompts and how many decode."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from operator import attrgetter
from random import Random

import msgspec

from distkv.sim.baselines.disaggregated.pulling import Pulling
from distkv.sim.papers.draws import mean_ratio
from distkv.sim.papers.figure import Effort, Figure, Panel, Ratio, Say, Series, rounded
from distkv.sim.papers.kvdirect.stages import Stages, divided, mean
from distkv.sim.trace import TraceRequest

RATES_PER_S: Mapping[int, float] = {8192: 8.0, 16_384: 4.0, 32_768: 1.0, 65_536: 0.6}
"""Tokens of a prompt → requests each second, as printed."""
OUTPUTS = (128, 256, 512, 1024)
DECODES = ((1, 1), (1, 2), (1, 3))
PREFILLS = ((1, 1), (2, 1), (3, 1))
REQUESTS = 100
DRAWS = 3
TOKEN_MS: Mapping[int, tuple[float, float]] = {8192: (67.0, 55.0), 65_536: (52.0, 45.0)}
"""Between tokens with one and with three that decode, as printed."""
LESS_PREFILL = (38.0, 58.0, 33.0, 11.0)
"""By how many per cent three that decode shorten the prefill stage of 1,024 tokens of output, by the prompt."""
FASTER_PREFILL = (2.34, 1.74, 3.73, 4.04)
"""How many times as long the prefill stage is with one that computes prompts as with two, by the prompt."""
QUEUE_NOTE = (
    "A queue of prompts is most of this time: of so many more requests than one instance computes, and for as long as "
    "they arrive, which is not said."
)
ROOM_NOTE = (
    "All that is waited for is who computes prompts: who decodes has room for what it computes. Theirs wait for "
    "memory there too."
)
STEP_NOTE = "Steps of theirs take 45 to 67 ms, ours, by a roofline, about half as long."
THIRD_NOTE = (
    "Who decodes has room for what three compute, so requests only wait less; theirs wait for memory there, which the "
    "third fills sooner."
)


Found = Mapping[tuple[int, int], Sequence[list[Stages]]]
"""By instances that compute prompts and that decode: what the requests of each draw took."""


class Workload(msgspec.Struct, frozen=True):
    """Requests that are all alike."""

    prompt_tokens: int
    output_tokens: int

    def requests(self, count: int, seed: int) -> list[TraceRequest]:
        """They arrive at random, as often as printed."""
        draw, now_s = Random(f"{self.prompt_tokens} {self.output_tokens} {seed}"), 0.0
        found = list[TraceRequest]()
        for _ in range(count):
            found.append(TraceRequest(now_s, self.prompt_tokens, self.output_tokens))
            now_s += draw.expovariate(RATES_PER_S[self.prompt_tokens])
        return found


def figure_12(effort: Effort, say: Say) -> Figure:
    """Latency by the length of responses, for each number of instances of either kind."""
    prompts, outputs = effort.pick(tuple(RATES_PER_S)[:1], tuple(RATES_PER_S)), effort.pick((1024,), OUTPUTS)
    count, draws = effort.pick(6, REQUESTS), effort.pick(2, DRAWS)
    kinds = dict.fromkeys((*DECODES, *PREFILLS))
    workloads = [Workload(prompt, output) for prompt in prompts for output in outputs]
    found: dict[Workload, Found] = {}
    for place, one in enumerate(workloads):
        say(f"{one.prompt_tokens}-{one.output_tokens}", place / len(workloads))
        traces = [one.requests(count, seed) for seed in range(draws)]
        found[one] = {kind: [divided(*kind, Pulling, trace) for trace in traces] for kind in kinds}
    panels = tuple(
        Panel(
            title=f"{prompt:,} tokens, {RATES_PER_S[prompt]:g}/s",
            series=tuple(
                Series.of(
                    _named(kind),
                    [(output, _mean(found[Workload(prompt, output)][kind])) for output in outputs],
                )
                for kind in kinds
            ),
        )
        for prompt in prompts
    )
    return Figure(
        name="004-12",
        title="Latency by instances that compute prompts (P) and that decode (D)",
        x_label="tokens of the response",
        y_label="mean latency, s",
        panels=panels,
        ratios=tuple(_ratios(found, prompts, outputs)),
        notes=(
            STEP_NOTE,
            "Who computes prompts has as many whole ones in a step as have 131,072 tokens, as vLLM without chunked "
            "prefill.",
            f"{count} requests of each kind, which arrive at random, {draws} draws. The prefill stage is all until a "
            "request can decode, waiting for memory included, as theirs.",
        ),
    )


def _ratios(found: Mapping[Workload, Found], prompts: Sequence[int], outputs: Sequence[int]) -> list[Ratio]:
    one, more_decode, more_prefill = (1, 1), (1, 3), (2, 1)
    ratios = list[Ratio]()
    for prompt, less, times in zip(prompts, LESS_PREFILL, FASTER_PREFILL, strict=False):
        longest = found[Workload(prompt, outputs[-1])]
        if prompt in TOKEN_MS:
            before_ms, after_ms = TOKEN_MS[prompt]
            theirs = rounded(after_ms / before_ms)
            tokens = _by_draw(longest, more_decode, one, "between_s")
            what = f"{prompt}-{outputs[-1]}: time between tokens with 1P3D, times 1P1D's"
            ratios.append(_ratio(what, theirs, tokens, STEP_NOTE))
        shorter = [100 * (1 - ratio) for ratio in _by_draw(longest, more_decode, one, "first_s")]
        ratios.append(
            _ratio(f"{prompt}-{outputs[-1]}: prefill stage with 1P3D, % less than 1P1D's", less, shorter, ROOM_NOTE)
        )
        each = [_by_draw(found[Workload(prompt, output)], one, more_prefill, "first_s") for output in outputs]
        faster = [statistics.fmean(of_draw) for of_draw in zip(*each, strict=True)]
        ratios.append(_ratio(f"{prompt}: prefill stage with 1P1D, times 2P1D's", times, faster, QUEUE_NOTE))
        totals = _by_draw(longest, (3, 1), more_prefill, "total_s")
        latency = mean_ratio(f"{prompt}-{outputs[-1]}: latency with 3P1D, times 2P1D's", "an increase", totals)
        ratios.append(msgspec.structs.replace(latency, note=THIRD_NOTE if latency.ours < 1 else ""))
    return ratios


def _ratio(what: str, theirs: float, draws: Sequence[float], note: str) -> Ratio:
    return mean_ratio(what, (theirs, theirs), draws).explained(note)


def _by_draw(found: Found, ours: tuple[int, int], other: tuple[int, int], field: str) -> list[float]:
    """How many times the other's mean."""
    means = [[mean(draw, attrgetter(field)) for draw in found[kind]] for kind in (ours, other)]
    return [mine / its for mine, its in zip(*means, strict=True)]


def _mean(draws: Sequence[list[Stages]]) -> float:
    return statistics.fmean(mean(draw, attrgetter("total_s")) for draw in draws)


def _named(kind: tuple[int, int]) -> str:
    return f"{kind[0]}P{kind[1]}D"
