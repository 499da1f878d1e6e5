"""000 Fig. 10 (§6.4): throughput over time, with loans that go round cancelled and without."""

from __future__ import annotations

from itertools import pairwise

from msgspec.structs import replace

from distkv.sim.datasets.draw import dataset
from distkv.sim.papers.distkv_llm.setups import SETUPS, dataset_of
from distkv.sim.papers.figure import Effort, Figure, Panel, Ratio, Say, Series, rounded
from distkv.sim.papers.rising import offered_s
from distkv.sim.run import SimResult, simulate

SETUP = 3
"""Four LLaMA2-13B instances of two GPUs, requests of 1 to 480k tokens."""
SHARE = 2
"""Of its datasets, that with most long requests: loans go round only where many borrow."""
LOAD = 1.0
"""Requests arrive as fast as the memory of all GPUs can be read for them."""
REQUESTS = 32
PARTS = 8
"""Of the time in which requests arrive."""


def figure_10(effort: Effort, say: Say) -> Figure:
    """Throughput while requests arrive, with DGFM and without."""
    row, load = effort.pick((0, 0.25), (SETUP, LOAD))
    setup, name = SETUPS[row], dataset_of(row, effort.pick(0, SHARE))
    count = effort.pick(4, REQUESTS)
    spec = setup.spec()
    request_s = offered_s(dataset(name, count=count), spec) / count
    trace = dataset(name, count=count, per_s=load / request_s)
    spec = replace(spec, most_s=trace[-1].arrival_s)
    results = dict[str, SimResult]()
    for place, (label, least) in enumerate((("with DGFM", spec.advice.dgfm_min_blocks), ("without DGFM", 0))):
        say(label, place / 2)
        results[label] = simulate(trace, replace(spec, advice=replace(spec.advice, dgfm_min_blocks=least)))
    curves = {label: over_time(result, trace[-1].arrival_s) for label, result in results.items()}
    counters = results["with DGFM"].counters
    swapped, moved = counters.swapped_blocks, counters.moved_blocks
    kept = [points[-1][1] / max(at for _, at in points) for points in curves.values()]
    whole = [sum(tokens_per_s for _, tokens_per_s in points) for points in curves.values()]
    why = (
        f"{swapped:,} rBlocks were swapped, of {moved:,} that moved: loans come back when their requests end, so that "
        "few go round for DGFM to cancel."
    )
    return Figure(
        name="000-10",
        title=f"Throughput over time, {setup.title}, {name}",
        x_label="s",
        y_label="output tokens/s",
        panels=(Panel(title=setup.title, series=tuple(Series.of(*one) for one in curves.items())),),
        ratios=(
            Ratio(
                what="with DGFM: throughput at the end, of the highest",
                theirs="higher, maintained",
                ours=rounded(kept[0]),
            ),
            Ratio(
                what="without DGFM: throughput at the end, of the highest",
                theirs="continuous downward trend",
                ours=rounded(kept[1]),
            ),
            Ratio(
                what="throughput with DGFM, times that without",
                theirs="higher",
                ours=rounded(whole[0] / whole[1]),
                note=why,
            ),
        ),
        notes=(
            f"{len(trace)} requests, one of the longest among them, which arrive {load:g} times as fast as memory can "
            "be read for them; the paper does not say which dataset it is, nor at which rate. Of the three of this "
            "setup it is the one with most long requests. Shown until all have arrived.",
        ),
    )


def over_time(result: SimResult, until_s: float) -> list[tuple[float, float]]:
    """Ends of equal parts of the time, and tokens each second within them."""
    ends = [until_s * part / PARTS for part in range(PARTS + 1)]
    came = [one.request.arrival_s + at_s for one in result.outcomes for at_s in one.times_s]
    return [(end, sum(begin < at <= end for at in came) / (end - begin)) for begin, end in pairwise(ends)]
