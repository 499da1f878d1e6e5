"""The report as a picture; matplotlib comes with the extra "bench"."""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from distkv.bench.harness.plots.units import better
from distkv.bench.harness.report import Report, Result

BARS = "bar: median of all rounds; whiskers: least and most; number: the first bar's median divided by this one's"
LINES = "point: median of all rounds; whiskers: least and most"
CURVES = "point: median of all rounds; whiskers: least and most; number: this median divided by the first one"


def check_plot(path: Path | None, flag: str = "--plot") -> None:
    """Raises click.UsageError where matplotlib is not installed, with what to install, or has no such format. Call it
    before measuring."""
    if path is None:
        return
    if find_spec("matplotlib") is None:
        raise click.UsageError(
            f"{flag} needs matplotlib, which is not installed; in distkv's checkout: pip install '.[bench]'"
        )
    backends: Any = importlib.import_module("matplotlib.backend_bases")
    formats = backends.FigureCanvasBase.get_supported_filetypes()
    if path.suffix.removeprefix(".").lower() not in formats:
        raise click.UsageError(f"{flag} {path}: expected a name that ends with .png, .svg or .pdf")


def write_plot(report: Report, path: Path) -> None:
    """One panel per case: a bar per variant, and how many times the first one it is, as the table says it."""
    cases = _by_case(report)
    figure, rows, columns = _figure(report, len(cases), BARS)
    for index, (case, variants) in enumerate(cases.items()):
        axes = figure.add_subplot(rows, columns, index + 1)
        places = range(len(variants))
        colours = [f"C{number}" for number in places]
        axes.bar(places, [row.median for row in variants], yerr=_whiskers(variants), capsize=6, color=colours)
        axes.set_xticks(places, [_wrapped(row.variant) for row in variants], fontsize="small")
        for place, row in enumerate(variants[1:], 1):
            _number(axes, place, row.max, variants[0].median, row.median)
        _describe(axes, case, variants[0].unit)
    figure.savefig(path, dpi=120)


def write_curves(report: Report, path: Path, along: str) -> None:
    """One panel per case, over variants that are numbers of `along`, and how many times the first point each is."""
    cases = _by_case(report)
    figure, rows, columns = _figure(report, len(cases), CURVES)
    for index, (case, variants) in enumerate(cases.items()):
        axes = figure.add_subplot(rows, columns, index + 1)
        counts = [int(row.variant.replace(",", "")) for row in variants]
        medians = [row.median for row in variants]
        axes.errorbar(counts, medians, yerr=_whiskers(variants), marker="o", capsize=4)
        axes.set_xscale("log")
        axes.set_xlabel(along)
        for count, row in zip(counts[1:], variants[1:], strict=True):
            _number(axes, count, row.max, row.median, variants[0].median)
        _describe(axes, case, variants[0].unit)
    figure.savefig(path, dpi=120)


def write_lines(report: Report, path: Path, along: str, *, log: bool = False) -> None:
    """One panel per measure of cases that are called "MEASURE, NUMBER/UNIT" or "MEASURE, NUMBERK", over the number: a
    line per variant. log: of what is measured, as `along` always is."""
    lines: dict[str, dict[str, list[tuple[float, Result]]]] = {}
    for row in report.results:
        measure, _, at = row.case.rpartition(", ")
        point = float(at.partition("/")[0].removesuffix("K")), row
        lines.setdefault(measure, {}).setdefault(row.variant, []).append(point)
    variants = list(dict.fromkeys(row.variant for row in report.results))
    figure, rows, columns = _figure(report, len(lines), LINES)
    for index, (measure, by_variant) in enumerate(lines.items()):
        axes = figure.add_subplot(rows, columns, index + 1)
        for variant, points in by_variant.items():
            xs, found = zip(*sorted(points, key=lambda one: one[0]), strict=True)
            medians, colour = [row.median for row in found], f"C{variants.index(variant)}"
            axes.errorbar(
                xs, medians, yerr=_whiskers(found), marker="o", markersize=4, capsize=3, color=colour, label=variant
            )
        axes.set_xscale("log")
        places = sorted({x for points in by_variant.values() for x, _ in points})
        axes.set_xticks(places, [f"{x:g}" for x in places])
        axes.minorticks_off()
        axes.set_xlabel(along)
        _describe(axes, measure, found[0].unit, log=log)
    labelled = [zip(*axes.get_legend_handles_labels(), strict=True) for axes in figure.axes]
    handles = {name: handle for pairs in labelled for handle, name in pairs}
    figure.legend([handles[name] for name in variants], variants, loc="outside right upper")
    figure.savefig(path, dpi=120)


def _by_case(report: Report) -> dict[str, list[Result]]:
    cases: dict[str, list[Result]] = {}
    for row in report.results:
        cases.setdefault(row.case, []).append(row)
    return cases


def _figure(report: Report, panels: int, caption: str) -> tuple[Any, int, int]:
    """An empty figure with room for so many panels, its rows and columns."""
    figures: Any = importlib.import_module("matplotlib.figure")
    columns = math.ceil(math.sqrt(panels))
    rows = -(-panels // columns)
    figure = figures.Figure(figsize=(4.5 * max(2, columns), 3.5 * rows + 0.5), layout="constrained")
    facts = report.machine
    cut = ", interrupted" if facts.get("interrupted") else ""
    figure.suptitle(f"distkv bench {report.benchmark}: {facts['cpu']}, {facts['cores']} cores, {facts['date']}{cut}")
    figure.supxlabel(caption, fontsize="small")
    return figure, rows, columns


def _whiskers(rows: Sequence[Result]) -> list[list[float]]:
    return [[row.median - row.min for row in rows], [row.max - row.median for row in rows]]


def _number(axes: Any, x: float, y: float, one: float, other: float) -> None:
    """What one median is of another, above the whiskers."""
    if not other:
        return
    ratio = one / other
    text = f"{ratio:.2f}" if ratio < 10 else f"{ratio:,.3g}"
    axes.annotate(text, (x, y), (0, 4), textcoords="offset points", ha="center", fontsize="small")


def _describe(axes: Any, case: str, unit: str, *, log: bool = False) -> None:
    way = better(unit)
    axes.set_title(case, fontsize="medium")
    axes.set_ylabel(f"{unit} ({way} is better)" if way else unit)
    if log:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0, top=1.1 * axes.get_ylim()[1])


def _wrapped(name: str) -> str:
    """In lines that stand beside those of other bars."""
    lines = [""]
    for word in name.split():
        if lines[-1] and len(lines[-1]) + len(word) > 12:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)
