"""What a benchmark found: rows of medians and spread, goals, and the machine they hold for."""

from __future__ import annotations

import contextlib
import math
import os
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table

from distkv.bench.harness.alternate import Ratio, Samples, paired_ratio


class Result(msgspec.Struct, frozen=True):
    """One variant in one case."""

    case: str
    variant: str
    median: float
    min: float
    max: float
    unit: str


class Goal(msgspec.Struct, frozen=True):
    """A goal that an issue states. met: None when this machine or its noise cannot tell; `why` then says so."""

    goal: str
    target: str
    measured: str
    met: bool | None
    why: str = ""


class Report(msgspec.Struct, frozen=True):
    """The whole of it, as it is written to JSON."""

    benchmark: str
    machine: dict[str, Any]
    versions: dict[str, str]
    results: tuple[Result, ...]
    goals: tuple[Goal, ...] = ()


def results(samples: Samples, unit_of: Callable[[str], str]) -> tuple[Result, ...]:
    """One row per case and variant. unit_of: the unit of a case."""
    return tuple(
        Result(case, variant, statistics.median(values), min(values), max(values), unit_of(case))
        for case, variants in samples.items()
        for variant, values in variants.items()
    )


def at_least(goal: str, ratio: Ratio, least: float) -> Goal:
    """Met when the mean of the rounds' ratios is."""
    return Goal(goal, f"at least {least:g}", str(ratio), ratio.value >= least)


def judged(goal: str, ratio: Ratio | None, *, least: float = -math.inf, most: float = math.inf) -> Goal:
    """Met when the whole interval lies within [least, most], not met when all of it lies outside; else unresolved, as
    where there is nothing to compare."""
    target = f"at least {least:g}" if least > -math.inf else f"at most {most:g}"
    if ratio is None:
        return Goal(goal, target, "not measured", None, "there is nothing to compare with")
    if ratio.low == ratio.high:
        return Goal(goal, target, str(ratio), None, "one round has no interval")
    if least <= ratio.low and ratio.high <= most:
        return Goal(goal, target, str(ratio), True)
    if ratio.high < least or ratio.low > most:
        return Goal(goal, target, str(ratio), False)
    return Goal(goal, target, str(ratio), None, "the 95 % interval includes the target")


def check_places(*paths: Path | None) -> None:
    """Raises click.UsageError for a file that cannot be written, as far as can be known. Call it before measuring."""
    for path in paths:
        if path is None:
            continue
        file = path.resolve()
        if not file.parent.is_dir():
            raise click.UsageError(f"there is no directory {file.parent} for {path.name}")
        if file.is_dir():
            raise click.UsageError(f"{path} is a directory, expected a file")
        if not (os.access(file, os.W_OK) or os.access(file.parent, os.W_OK)):
            raise click.UsageError(f"{path} cannot be written: permission denied")


def write_json(report: Report, path: Path) -> None:
    """Write the report as indented JSON. What was in the file stays until all of it is written. Raises OSError."""
    text = msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"
    path = path.resolve()
    if path.exists() and not path.is_file():  # a pipe or a device
        path.write_bytes(text)
        return
    unfinished = path.with_name(f"{path.name}.part")
    try:
        unfinished.write_bytes(text)
        unfinished.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise


def show(report: Report, samples: Samples, console: Console) -> None:
    """A table per case; its first variant is compared with each other one, round by round."""
    console.print(f"distkv bench {report.benchmark}", style="bold")
    for case, variants in samples.items():
        first = next(iter(variants))
        table = _table(case)
        for row in report.results:
            if row.case == case:
                ours, theirs = variants[first], variants[row.variant]
                paired = row.variant != first and len(ours) == len(theirs) and min(*ours, *theirs) > 0
                beside = str(paired_ratio(ours, theirs)) if paired else ""
                table.add_row(row.variant, *map(_number, (row.median, row.min, row.max)), row.unit, beside)
        console.print(table)
    console.print("ratio: of the first variant to this one, mean over rounds with its 95 % interval", style="dim")
    _show_end(report, console)


def show_lines(report: Report, samples: Samples, console: Console) -> None:
    """A table per measure of cases that are called "MEASURE, AT": medians, a row for each AT, a column per variant."""
    console.print(f"distkv bench {report.benchmark}", style="bold")
    variants = list(dict.fromkeys(row.variant for row in report.results))
    medians: dict[str, dict[str, dict[str, float]]] = {}
    for row in report.results:
        measure, _, at = row.case.rpartition(", ")
        medians.setdefault(f"{measure}, {row.unit}", {}).setdefault(at, {})[row.variant] = row.median
    for measure, rows in medians.items():
        table = _titled(measure)
        table.min_width = len(measure)
        for variant in ("", *variants):
            table.add_column(variant, justify="right")
        for at, found in rows.items():
            table.add_row(at, *(_number(found[name]) if name in found else "" for name in variants))
        console.print(table)
    _show_end(report, console)


def show_goals(report: Report, console: Console) -> None:
    """A line for each."""
    for goal in report.goals:
        met = {True: "met", False: "NOT met", None: "unresolved"}[goal.met]
        why = f"; {goal.why}" if goal.why else ""
        console.print(f"goal {met}: {goal.goal}: {goal.measured} (target: {goal.target}){why}", soft_wrap=True)


def _show_end(report: Report, console: Console) -> None:
    """Goals and facts."""
    show_goals(report, console)
    for facts in (report.machine, report.versions):
        console.print(_in_one_line(facts), style="dim", soft_wrap=True)


def _titled(case: str) -> Table:
    return Table(title=case, title_justify="left", title_style="", box=None, padding=(0, 1, 0, 0))


def _table(case: str) -> Table:
    table = _titled(case)
    table.add_column("", width=18, overflow="fold")
    for name in ("median", "min", "max"):
        table.add_column(name, width=9, justify="right")
    table.add_column("unit", width=8)
    table.add_column("ratio", width=18)
    return table


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:,.4g}"


def _in_one_line(facts: Mapping[str, Any]) -> str:
    plain = ", ".join(f"{name} {value}" for name, value in facts.items() if not isinstance(value, dict))
    nested = (f"\n{name}: {text}" for one in facts.values() if isinstance(one, dict) for name, text in one.items())
    return plain + "".join(nested)
