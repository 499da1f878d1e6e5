"""Figures and their tables."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from distkv.errors import ConfigError
from distkv.sim.papers.figure import Effort, Figure, Ratio, Series
from distkv.sim.papers.tables import printed, table, tables_of, with_tables


def ratio(theirs: tuple[float, float] | str, ours: float) -> Ratio:
    return Ratio(what="one, times the other", theirs=theirs, ours=ours, ours_range=(1.1, 1.9), note="a|b")


def figure(name: str, effort: str = "full") -> Figure:
    ratios = (ratio((1.4, 2.4), 1.5), ratio((2.0, 2.0), 12_345.6), ratio("higher", 0.12345))
    return Figure(
        name=name, title="t", x_label="x", y_label="y", panels=(), ratios=ratios, notes=("Assumed.",), effort=effort
    )


@pytest.mark.parametrize(
    ("theirs", "ours", "lies"),
    [
        ((1.4, 2.4), 1.4, "inside"),
        ((1.4, 2.4), 2.4, "inside"),
        ((1.4, 2.4), 1.39, "below"),
        ((1.4, 2.4), 2.41, "above"),
        ((2.0, 2.0), 2.09, "inside"),
        ((2.0, 2.0), 2.11, "above"),
        ((2.0, 2.0), 1.89, "below"),
        ("higher", 0.0, None),
    ],
)
def test_a_band_is_as_printed_and_one_value_is_met_within_five_per_cent(
    theirs: tuple[float, float] | str, ours: float, lies: str | None
) -> None:
    assert ratio(theirs, ours).lies == lies
    assert ratio(theirs, ours).differs is (lies in ("below", "above"))


def test_numbers_have_three_digits_and_all_before_the_point() -> None:
    assert [printed(one) for one in (0.012345, 1.0, 12.345, 999.4, 1000.0, 12_345.6)] == [
        "0.0123", "1", "12.3", "999", "1,000", "12,346",
    ]  # fmt: skip


def test_a_curve_keeps_six_digits() -> None:
    assert Series.of("a", [(1 / 3, 2e6 / 3)]) == Series("a", (0.333333,), (666_667.0,))


def test_effort_picks() -> None:
    assert (Effort.QUICK.pick(1, 2), Effort.FULL.pick(1, 2)) == (1, 2)


def test_a_table_has_theirs_beside_ours_and_how_it_was_made() -> None:
    lines = table(figure("000-0")).splitlines()
    assert lines[:5] == [
        "| what | theirs | ours | ±20 % | lies |",
        "|---|---|---|---|---|",
        "| one, times the other | 1.4 to 2.4 | 1.5 | 1.1 to 1.9 | inside (a) |",
        "| one, times the other | 2 | 12,346 | 1.1 to 1.9 | above (a) |",
        "| one, times the other | higher | 0.123 | 1.1 to 1.9 | not so (a) |",
    ]
    assert lines[-5:] == ["", "- (a) a|b", "- Assumed.", "", "Made by `distkv sim paper 000-0`."]
    assert table(figure("000-0", "quick")).endswith("with `--quick`.")


def test_a_table_has_no_column_that_says_nothing_and_each_reason_once() -> None:
    one = Ratio(what="a|b", theirs="-", ours=2.0)
    bare = replace(figure("000-0"), ratios=(one,), notes=())
    assert table(bare).splitlines()[:4] == ["| what | theirs | ours |", "|---|---|---|", "| a/b | - | 2 |", ""]
    reasons = [replace(one, note=note) for note in ("why", "else", "why")]
    lines = table(replace(bare, ratios=(one, *reasons))).splitlines()
    assert [line.rpartition("2 | ")[2] for line in lines[2:6]] == [" |", "not so (a) |", "not so (b) |", "not so (a) |"]
    assert lines[7:9] == ["- (a) why", "- (b) else"]


def test_goals_are_met_or_missed() -> None:
    one = Ratio(what="one", theirs="at least 1", ours=1.0)
    ratios = (one, replace(one, ours=0.9, note="why"), replace(one, theirs="-"))
    lines = table(replace(figure("beyond-one"), ratios=ratios)).splitlines()
    assert lines[0] == "| what | goal | ours | is |"
    assert [line.split(" | ")[-1] for line in lines[2:5]] == ["met |", "missed (a) |", " |"]


def test_a_page_gets_the_tables_of_its_figures_and_keeps_the_rest() -> None:
    page = (
        "a\n<!-- figure 000-1 -->\n<!-- end of figure -->\nb\n<!-- figure 000-2 -->\nold\n<!-- end of figure -->\nc\n"
    )
    once = with_tables(page, [figure("000-2")])
    assert once.startswith("a\n<!-- figure 000-1 -->\n<!-- end of figure -->\nb\n") and once.endswith("\nc\n")
    assert dict(tables_of(once)) == {"000-2": table(figure("000-2"))}
    both = with_tables(once, [figure("000-1"), figure("000-2")])
    assert dict(tables_of(both)) == {name: table(figure(name)) for name in ("000-1", "000-2")}
    assert with_tables(both, [figure("000-1")]) == both


@pytest.mark.parametrize("page", ["", "<!-- figure 000-12 -->\n", "<!-- figure 000-12 -->\n<!-- end of figure -->"])
def test_a_figure_without_a_place_is_refused(page: str) -> None:
    with pytest.raises(ConfigError, match="no place for figure 000-1"):
        with_tables(page, [figure("000-1")])
