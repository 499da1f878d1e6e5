"""000 Table 2: the 18 datasets, drawn again."""

from __future__ import annotations

from collections.abc import Sequence

from distkv.sim.datasets.draw import dataset
from distkv.sim.datasets.tables import DATASETS
from distkv.sim.papers.distkv_llm.setups import SETUPS, SHARES, dataset_of
from distkv.sim.papers.figure import Effort, Figure, Panel, Ratio, Say, Series, rounded

CURVE_POINTS = 50


def table_2(effort: Effort, say: Say) -> Figure:
    """Lengths of each dataset, with what the table prints of them."""
    panels, ratios = list[Panel](), list[Ratio]()
    for setup, one in enumerate(SETUPS):
        say(one.title, setup / len(SETUPS))
        curves = list[Series]()
        for share, printed in enumerate(SHARES):
            name = dataset_of(setup, share)
            lengths = sorted(request.num_tokens for request in dataset(name))
            curves.append(Series.of(f"{name}, {printed} % long", _curve(lengths)))
            normal = one.normal_tokens
            long = sum(tokens > normal for tokens in lengths)
            ratios += [
                Ratio(
                    what=f"{name} ({one.title}): requests of more than {normal // 1000}k tokens, %",
                    theirs=(float(printed), float(printed)),
                    ours=rounded(100 * long / len(lengths)),
                ),
                Ratio(
                    what=f"{name}: longest request, tokens",
                    theirs=(2.0 * normal, 2.0 * normal),
                    ours=float(lengths[-1]),
                ),
            ]
        panels.append(Panel(title=one.title, series=tuple(curves), x_log=True))
    assert len(ratios) == 2 * sum(name.startswith("distkv-") for name in DATASETS)
    return Figure(
        name="000-table-2",
        title="Datasets by length of requests",
        x_label="tokens of a request",
        y_label="share of requests that are no longer",
        panels=tuple(panels),
        ratios=tuple(ratios),
        notes=(
            "1,000 requests each, as theirs; the table has neither means nor deviations. That normal requests are "
            "log-uniform and long ones uniform is assumed.",
        ),
    )


def _curve(lengths: Sequence[int]) -> list[tuple[float, float]]:
    """Points of the distribution, evenly over the requests, which are in order of length."""
    last = len(lengths) - 1
    places = [round(last * point / CURVE_POINTS) for point in range(CURVE_POINTS + 1)]
    return [(lengths[place], (place + 1) / len(lengths)) for place in places]
