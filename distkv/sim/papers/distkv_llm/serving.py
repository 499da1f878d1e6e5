"""000 Fig. 8 (§6.2): datasets served by DistKV-LLM and by one instance over all GPUs, vLLM-v2, at rising rate."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from msgspec.structs import replace

from distkv.sim.datasets.draw import REQUESTS as ALL
from distkv.sim.datasets.draw import dataset
from distkv.sim.papers.clusters import reach, reach_by_vllm
from distkv.sim.papers.distkv_llm.setups import SETUPS, SHARES, dataset_of
from distkv.sim.papers.figure import Effort, Figure, Panel, Ratio, Say, rounded, within
from distkv.sim.papers.rising import System, Traces, most_ratio, offered_s, rise
from distkv.sim.papers.sensitivity import specs_around
from distkv.sim.spec import SimSpec
from distkv.sim.trace import TraceRequest

PLAYED = (0, 1)
"""Rows of Table 2 that are simulated."""
THEIRS = ((1.4, 2.4), (1.1, 1.4), (1.03, 1.3))
"""Improvements by share of long requests, as printed."""
REQUESTS = 50
"""In the time of a play at load 1, and so many times more at a higher one."""
LOADS = (1.0, 2.0)
DRAWS = 3
VARIED = (0,)
"""Rows that are played again on hardware around the one that is assumed, one draw at the highest load."""
SINGLE, OURS, OUR_RULES = "vLLM-v2", "DistKV-LLM", "vLLM-v2 by DistKV-LLM's rules"


def figure_8(effort: Effort, say: Say) -> Figure:
    """Throughput and latency by setup and share of long requests."""
    setups, shares = effort.pick(PLAYED[:1], PLAYED), effort.pick((0,), range(len(SHARES)))
    loads, draws, count = effort.pick((2.0,), LOADS), effort.pick(1, DRAWS), effort.pick(8, REQUESTS)
    cases = [(row, share) for row in setups for share in shares]
    panels, ratios = list[Panel](), list[Ratio]()
    for place, (row, share) in enumerate(cases):
        setup, name = SETUPS[row], dataset_of(row, share)
        spec = setup.spec()
        request_s = offered_s(dataset(name), spec) / ALL
        traces = partial(_trace, name, count * request_s)
        found = rise(
            systems(spec), [load / request_s for load in loads], draws, traces, within(say, name, place, len(cases))
        )
        title = f"{setup.title}, {SHARES[share]} % long"
        panels.append(
            Panel(title=title, series=tuple(one.latency_by_throughput(label) for label, one in found.items()))
        )
        around = effort is Effort.FULL and row in VARIED
        ratio = most_ratio(f"{title}: most tokens/s, times those of vLLM-v2", THEIRS[share], found[OURS], found[SINGLE])
        by_rules = most_ratio(
            f"{title}: the same, were vLLM-v2 to begin and preempt as DistKV-LLM does",
            "-",
            found[OURS],
            found[OUR_RULES],
        )
        ratios += [
            replace(
                ratio,
                note=_note(ratio, by_rules),
                ours_range=_range(spec, traces, loads[-1] / request_s, ratio.ours) if around else None,
            ),
            by_rules,
        ]
    return Figure(
        name="000-8",
        title="Datasets served by instances that share memory, and by one over all GPUs",
        x_label="output tokens/s",
        y_label="latency per output token, s",
        panels=tuple(panels),
        ratios=tuple(ratios),
        notes=(
            f"{len(setups)} of the six setups, {draws} draws. Load 1 is as fast as the memory of all GPUs can be read "
            f"for what the requests attend to; played are {_list(loads)}, each for the time in which {count} requests "
            "arrive at load 1, one of the longest among them. Tokens are counted while requests arrive; what is left "
            "then would only show how long the last ones take.",
            "Intervals are wide: which of a few long requests comes when decides much in each draw.",
            "vLLM-v2 batches by vLLM's rules, with chunks of prompts that fill steps or are kept short, whichever "
            "generates more.",
        ),
    )


def systems(spec: SimSpec) -> dict[str, System]:
    """By label."""
    single = replace(spec, policy="single")
    return {
        SINGLE: partial(reach_by_vllm, single),
        OURS: partial(reach, spec),
        OUR_RULES: partial(reach, single),
    }


def _trace(name: str, window_s: float, rate_per_s: float, seed: int) -> list[TraceRequest]:
    return dataset(name, per_s=rate_per_s, count=max(2, round(rate_per_s * window_s)), seed=seed)


def _range(spec: SimSpec, traces: Traces, rate_per_s: float, ours: float) -> tuple[float, float]:
    """What the ratio becomes on hardware around the one that is assumed, the same for both: by how many times the first
    draw's changes."""
    trace = traces(rate_per_s, 0)
    base = _over_single(spec, trace)
    found = [ours, *(ours * _over_single(around, trace) / base for around in specs_around(spec))]
    return rounded(min(found)), rounded(max(found))


def _over_single(spec: SimSpec, trace: Sequence[TraceRequest]) -> float:
    return reach(spec, trace).tokens_per_s / reach_by_vllm(replace(spec, policy="single"), trace).tokens_per_s


def _note(ratio: Ratio, by_rules: Ratio) -> str:
    if not ratio.differs:
        return ""
    if ratio.ours > 1 and by_rules.ours < ratio.ours:
        return (
            "What vLLM-v2 loses here is what its queue keeps waiting, as the next row shows; what its all-reduces and "
            "smaller matrices cost it is little, for reading keys is most of a step."
        )
    return (
        "Reading keys is most of a step and as fast either way, so little is left to win; one instance over all GPUs "
        "divides each long request among them, and has one queue and one pool for all."
    )


def _list(loads: tuple[float, ...]) -> str:
    return ", ".join(f"{load:g}" for load in loads)
