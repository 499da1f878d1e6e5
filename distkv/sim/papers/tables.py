"""Tables of ratios in Markdown: those of the papers beside ours, between two marks of a page."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from distkv.errors import ConfigError
from distkv.sim.papers.figure import Figure, Ratio

HEAD = (
    "| theirs is | theirs | ours | lies | ours, 95 % | ours, ±20 % | where they differ |",
    "|---|---|---|---|---|---|---|",
)


def begin(name: str) -> str:
    """The mark before a figure's table."""
    return f"<!-- figure {name} -->"


END = "<!-- end of figure -->"


def table(figure: Figure) -> str:
    """The ratios of a figure, its notes, and how it was made."""
    rows = [*HEAD, *(_row(one) for one in figure.ratios)]
    notes = [f"- {note}" for note in figure.notes]
    made = f"Made by `distkv sim paper {figure.name}`" + (", with `--quick`." if figure.effort == "quick" else ".")
    return "\n".join([*rows, "", *([*notes, ""] if notes else []), made])


def with_tables(page: str, figures: Iterable[Figure]) -> str:
    """A page with these figures' tables between their marks, whatever stood there. Raises ConfigError for a figure that
    the page has no marks for."""
    for figure in figures:
        before, mark, rest = page.partition(begin(figure.name) + "\n")
        _, end, after = rest.partition(END)
        if not mark or not end:
            raise ConfigError(
                "docs", f"the page has no place for figure {figure.name}", f"begin it: {begin(figure.name)}"
            )
        page = f"{before}{mark}\n{table(figure)}\n\n{end}{after}"
    return page


def tables_of(page: str) -> Iterator[tuple[str, str]]:
    """The figures that a page has tables of, and those."""
    for found in re.finditer(r"<!-- figure (\S+) -->\n\n(.*?)\n\n" + re.escape(END), page, re.S):
        yield found[1], found[2]


def printed(value: float) -> str:
    """A number with three digits, and all those before the point."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def theirs(ratio: Ratio) -> str:
    """What the paper says."""
    if isinstance(ratio.theirs, str):
        return ratio.theirs
    return _band(ratio.theirs)


def ours_draws(ratio: Ratio) -> str:
    """Where ours lies by several draws; empty where it is one, or no draw at all."""
    return "" if ratio.ours_draws is None else _band(ratio.ours_draws)


def ours_range(ratio: Ratio) -> str:
    """What ours is on other hardware; empty where that was not asked."""
    return "" if ratio.ours_range is None else _band(ratio.ours_range)


def _row(ratio: Ratio) -> str:
    lies = ratio.lies or ""
    cells = (ratio.what, theirs(ratio), printed(ratio.ours), lies, ours_draws(ratio), ours_range(ratio), ratio.note)
    return "|".join(["", *(f" {cell.replace('|', '/')} " for cell in cells), ""])


def _band(band: tuple[float, float]) -> str:
    low, high = map(printed, band)
    return low if low == high else f"{low} to {high}"
