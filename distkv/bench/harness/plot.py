"""The report as a picture; matplotlib comes with the extra "bench"."""

from __future__ import annotations

import importlib
import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from distkv.bench.harness.report import Report, Result


def require_matplotlib() -> None:
    """Raises click.UsageError that says what to install. Call it before measuring."""
    if find_spec("matplotlib") is None:
        raise click.UsageError(
            "--plot needs matplotlib, which is not installed; in distkv's checkout: pip install '.[bench]'"
        )


def write_plot(report: Report, path: Path) -> None:
    """One panel per case: a bar per variant at its median, with a line from min to max."""
    figures: Any = importlib.import_module("matplotlib.figure")
    cases: dict[str, list[Result]] = {}
    for row in report.results:
        cases.setdefault(row.case, []).append(row)
    columns = math.ceil(math.sqrt(len(cases)))
    rows = -(-len(cases) // columns)
    figure = figures.Figure(figsize=(4.5 * columns, 3.5 * rows), layout="constrained")
    for index, (case, variants) in enumerate(cases.items()):
        axes = figure.add_subplot(rows, columns, index + 1)
        medians = [row.median for row in variants]
        below = [row.median - row.min for row in variants]
        above = [row.max - row.median for row in variants]
        colours = [f"C{number}" for number in range(len(variants))]
        axes.bar([row.variant for row in variants], medians, yerr=[below, above], capsize=6, color=colours)
        axes.set_title(case, fontsize="medium")
        axes.set_ylabel(variants[0].unit)
        axes.set_ylim(bottom=0)
    facts = report.machine
    figure.suptitle(f"distkv bench {report.benchmark}: {facts['cpu']}, {facts['cores']} cores, {facts['date']}")
    figure.savefig(path, dpi=120)
