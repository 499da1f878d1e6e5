"""Shares of right answers: counted, with their interval, as a table and as a heat map."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from distkv.bench.harness.alternate import Samples
from distkv.bench.harness.report import Report, Result, show

Z = 1.96  # of a 95 % interval
UNIT = "% exact"
DEPTH = re.compile(r"depth (\d+)-")


class Score(msgspec.Struct, frozen=True):
    """Right answers of all."""

    right: int = 0
    questions: int = 0

    def with_answer(self, right: bool) -> Score:
        """One more."""
        return Score(self.right + right, self.questions + 1)

    @property
    def percent(self) -> float:
        return 100 * self.right / self.questions

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval, in percent."""
        share, spread = self.right / self.questions, Z * Z / self.questions
        middle = (share + spread / 2) / (1 + spread)
        half = (spread * (share * (1 - share) + spread / 4)) ** 0.5 / (1 + spread)
        return min(self.percent, 100 * (middle - half)), max(self.percent, 100 * (middle + half))

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.right}/{self.questions} = {self.percent:.2f} % ({low:.2f}..{high:.2f})"


def score_row(case: str, variant: str, score: Score, unit: str = UNIT) -> Result:
    """A row of the report; min and max are the interval, the variant ends in the counts."""
    low, high = score.interval
    return Result(case, f"{variant}: {score.right}/{score.questions}", score.percent, low, high, unit)


def show_scores(report: Report, samples: Samples, console: Console) -> None:
    """A line per cell and sort of question, without depths; then goals, machine and versions."""
    table = Table(box=None, padding=(0, 1, 0, 0))
    for name in ("document", "questions", "exact", "95 % interval"):
        table.add_column(name, justify="left" if name in ("document", "questions") else "right")
    for row in report.results:
        if not DEPTH.match(row.variant):
            table.add_row(row.case, row.variant, f"{row.median:.2f} %", f"{row.min:.2f}..{row.max:.2f}")
    console.print(table)
    show(report, samples, console)


def write_heat_map(report: Report, path: Path) -> None:
    """Share of exact answers, a line per cell and a column per depth."""
    figures: Any = importlib.import_module("matplotlib.figure")
    cells: dict[str, dict[int, float]] = {}
    for row in report.results:
        if match := DEPTH.match(row.variant):
            cells.setdefault(row.case, {})[int(match[1])] = row.median
    depths = sorted({depth for found in cells.values() for depth in found})
    shares = [[found.get(depth, float("nan")) for depth in depths] for found in cells.values()]
    figure = figures.Figure(figsize=(3 + 0.75 * len(depths), 1.6 + 0.5 * len(cells)), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(shares, vmin=80, vmax=100, cmap="RdYlGn", aspect="auto")
    for line, values in enumerate(shares):
        for column, value in enumerate(values):
            axes.text(column, line, f"{value:.1f}", ha="center", va="center", fontsize="small")
    axes.set_xticks(range(len(depths)), [f"{depth} %" for depth in depths])
    axes.set_yticks(range(len(cells)), list(cells))
    axes.set_xlabel("depth of the fact, from")
    axes.set_title("exact answers, % (higher is better)")
    figure.colorbar(image)
    figure.savefig(path, dpi=120)
