"""Tables of ratios in Markdown: those of the papers beside ours, between two marks of a page."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from string import ascii_lowercase

from distkv.errors import ConfigError
from distkv.sim.papers.figure import Figure, Ratio

HEAD = ("what", "theirs", "ours", "95 %", "±20 %", "lies")
HEAD_OF_GOALS = ("what", "goal", *HEAD[2:-1], "is")
NOTHING = "-"
"""What `Ratio.theirs` is where neither a paper nor a goal says anything."""
ALWAYS = 3
"""Columns that every table has; of the others those that say something."""


def begin(name: str) -> str:
    """The mark before a figure's table."""
    return f"<!-- figure {name} -->"


END = "<!-- end of figure -->"


def table(figure: Figure) -> str:
    """The ratios of a figure; why some differ, each reason once under the letter that stands in their rows; its notes,
    and how it was made."""
    letters = dict(zip(dict.fromkeys(one.note for one in figure.ratios if one.note), ascii_lowercase, strict=False))
    head = HEAD_OF_GOALS if figure.has_goals else HEAD
    rows = [_cells(one, _verdict(one, figure.has_goals), letters.get(one.note, "")) for one in figure.ratios]
    kept = [place for place in range(len(head)) if place < ALWAYS or any(row[place] for row in rows)]
    titles, *lines = (f"| {' | '.join(row[place] for place in kept)} |" for row in (head, *rows))
    reasons = [f"- ({letter}) {note}" for note, letter in letters.items()]
    notes = [f"- {note}" for note in figure.notes]
    made = f"Made by `distkv sim paper {figure.name}`" + (", with `--quick`." if figure.effort == "quick" else ".")
    below = [*reasons, *notes]
    return "\n".join([titles, f"|{'---|' * len(kept)}", *lines, "", *([*below, ""] if below else []), made])


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


def _verdict(ratio: Ratio, is_goal: bool) -> str:
    """Where ours lies; of words and goals, whether it is so. Empty where nothing is said."""
    if is_goal:
        return "" if ratio.theirs == NOTHING else "missed" if ratio.note else "met"
    return ratio.lies or ("not so" if ratio.note else "")


def _cells(ratio: Ratio, verdict: str, letter: str) -> list[str]:
    """Of a row, in the order of HEAD. letter: of why it differs; empty where it does not."""
    lies = f"{verdict} ({letter})" if letter else verdict
    cells = (ratio.what, theirs(ratio), printed(ratio.ours), ours_draws(ratio), ours_range(ratio), lies)
    return [cell.replace("|", "/") for cell in cells]


def _band(band: tuple[float, float]) -> str:
    low, high = map(printed, band)
    return low if low == high else f"{low} to {high}"
