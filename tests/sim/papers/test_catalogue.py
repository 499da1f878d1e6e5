"""All figures: each is made with little effort, and the page of the papers has what was written of each."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from distkv.errors import ConfigError
from distkv.sim.papers import NAMES, OF_TRACES, make
from distkv.sim.papers.figure import Effort, Figure, PlayedTrace
from distkv.sim.papers.tables import table, tables_of
from distkv.sim.trace import TraceRequest
from tests.lanes import rest_is_slow

DOCS = Path(__file__).resolve().parents[3] / "docs"
COMPUTED = ("000-table-2", "000-11", "000-12", "001-table-1", "001-11")
"""By formulas alone, as quickly with all effort."""
LONG = ("000-7", "000-8", "000-10", "004-13")
"""With little effort still seconds."""
TRACE = PlayedTrace("conversation", [TraceRequest(0.5 * place, 500 + place, 20) for place in range(40)])


def committed(name: str) -> Figure:
    return msgspec.json.decode((DOCS / "papers" / f"{name}.json").read_bytes(), type=Figure)


@pytest.mark.parametrize("name", rest_is_slow(sorted(NAMES, key=LONG.__contains__), len(NAMES) - len(LONG)))
def test_each_figure_is_made_and_says_how_far_it_is(name: str) -> None:
    shares = list[float]()
    figure = make(name, Effort.QUICK, lambda what, share: shares.append(share), [TRACE])
    assert (figure.name, figure.effort) == (name, "quick")
    assert shares and shares == sorted(shares) and shares[0] >= 0 and shares[-1] <= 1
    assert figure.panels and figure.ratios
    for panel in figure.panels:
        assert panel.series
        for series in panel.series:
            assert len(series.x) == len(series.y) > 0
            assert all(map(math.isfinite, (*series.x, *series.y)))


@pytest.mark.parametrize("name", NAMES)
def test_what_was_written_is_a_figure_with_reasons_for_what_differs(name: str) -> None:
    figure = committed(name)
    assert (figure.name, figure.effort) == (name, "full")
    assert (DOCS / "papers" / f"{name}.png").is_file()
    for ratio in figure.ratios:
        assert not ratio.differs or ratio.note, ratio.what
        if ratio.ours_draws is not None:
            assert ratio.ours_draws[0] <= ratio.ours <= ratio.ours_draws[1], ratio.what
        if ratio.ours_range is not None:
            assert ratio.ours_range[0] <= ratio.ours <= ratio.ours_range[1], ratio.what


def test_the_page_s_tables_are_those_that_were_written() -> None:
    assert dict(tables_of((DOCS / "papers.md").read_text(encoding="utf-8"))) == {
        name: table(committed(name)) for name in NAMES
    }


@pytest.mark.parametrize("name", COMPUTED)
def test_what_formulas_say_is_what_was_written(name: str) -> None:
    assert make(name, Effort.FULL, lambda what, share: None) == committed(name)


def test_a_figure_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"there is no figure '000-13'.*did you mean 00"):
        make("000-13", Effort.QUICK, lambda what, share: None)


@pytest.mark.parametrize("name", OF_TRACES)
def test_what_plays_traces_wants_one(name: str) -> None:
    with pytest.raises(ConfigError, match="--trace"):
        make(name, Effort.QUICK, lambda what, share: None)
