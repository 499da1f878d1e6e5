"""001 Table 1 (§7.1): ranges, means and standard deviations of nine traces, printed and drawn."""

from __future__ import annotations

import statistics

from distkv.sim.datasets.draw import dataset
from distkv.sim.datasets.tables import DATASETS
from distkv.sim.papers.figure import Effort, Figure, Panel, Ratio, Say, Series, rounded

PREFIX = "infinite-"
SEEDS = 5
SHARES = 20
"""Points of a curve, at equal distances."""


def table_1(effort: Effort, say: Say) -> Figure:
    """Lengths of the traces, by the share of requests that is shorter."""
    say("drawing traces", 0.0)
    panels, ratios = list[Panel](), list[Ratio]()
    for name, printed in DATASETS.items():
        if not name.startswith(PREFIX):
            continue
        draws = [[one.num_tokens for one in dataset(name, seed=seed)] for seed in range(effort.pick(1, SEEDS))]
        assert printed.mean is not None and printed.deviation is not None, f"{name} has neither in 001"
        trace = name.removeprefix(PREFIX)
        facts = (
            ("longest", float(printed.high), [float(max(one)) for one in draws]),
            ("mean", printed.mean, [statistics.fmean(one) for one in draws]),
            ("standard deviation", printed.deviation, [statistics.pstdev(one) for one in draws]),
        )
        ratios += [
            Ratio(
                what=f"trace {trace}, {what}, tokens",
                theirs=(theirs, theirs),
                ours=rounded(statistics.median(ours)),
            )
            for what, theirs, ours in facts
        ]
        lengths = sorted(draws[0])
        points = [(lengths[index * (len(lengths) - 1) // SHARES], index / SHARES) for index in range(SHARES + 1)]
        panels.append(Panel(title=f"trace {trace}", series=(Series.of("requests", points),), x_log=True))
    return Figure(
        name="001-table-1",
        title="Context lengths of the traces",
        x_label="tokens",
        y_label="share of requests that is shorter",
        panels=tuple(panels),
        ratios=tuple(ratios),
        notes=(
            f"Ours are medians of {effort.pick(1, SEEDS)} draws of 1,000 requests each: how many the paper's traces "
            "have is not said.",
        ),
    )
