"""`distkv bench profile`: how well the performance model predicts decoding with rBlocks on a creditor (001, Fig. 7).

The same as `distkv profile`, of a model with random weights that is made for it.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from distkv.bench.baselines.checkpoints import MODELS, checkpoint
from distkv.bench.harness.alternate import Samples
from distkv.bench.harness.command import Measured, Say, benchmark, unit_of_name
from distkv.bench.harness.finite import FiniteRange
from distkv.bench.harness.report import Goal, Report, show_goals
from distkv.bench.profiling.compare import share_within
from distkv.bench.profiling.plot import draw
from distkv.bench.profiling.run import BUDGET_S, run, summary
from distkv.wire.profile_file import Predicted, ProfileFile, save_profile

PREDICTED, MEASURED = "predicted", "measured"
LEAST_WITHIN = 0.9
HELP = """Profiles a model with random weights, then decodes with more and more rBlocks on a creditor, which decodes
requests of its own or not, and compares tokens/s with what the performance model predicts by the profile.

\b
Examples:
  distkv bench profile --json profile.json --plot profile.png
  distkv bench profile --quick
"""


def measure(
    say: Say, *, quick: bool, model: str | None, device: str, threads: int, budget: float, profile: Path | None
) -> Measured:
    """Run it."""
    shape = MODELS[model or ("tiny" if quick else "b")]
    with tempfile.TemporaryDirectory(prefix="distkv-bench-profile-") as scratch:
        say(f"making {shape.name}")
        path = checkpoint(shape, Path(scratch))
        cores = sorted(os.sched_getaffinity(0))[: 2 * threads]
        pinned = {"cpu_affinity": ",".join(map(str, cores))} if len(cores) == 2 * threads else {}
        settings = {"model": str(path), "device": device, "threads": threads} | pinned
        file = run(settings, say, quick=quick, budget_s=budget)
    if profile is not None:
        save_profile(file, profile)
    facts = {
        "threads": threads,
        "cores_used": pinned.get("cpu_affinity", "as the system chooses"),
        "model": f"random Llama {shape.name}, bfloat16, {shape.parameters / 1e6:.1f}M parameters",
    }
    return Measured(dict(_samples(file.points)), (_goal(file, quick),), facts)


def _samples(points: Sequence[Predicted]) -> Iterator[tuple[str, dict[str, list[float]]]]:
    for point in points:
        for who, pair in (("debtor", point.debtor), ("creditor", point.creditor)):
            if pair is not None:
                case = (
                    f"{who}, batch {point.batch}, {point.context_tokens} tokens, {point.remote_blocks} rBlocks lent, "
                    f"creditor batch {point.creditor_batch}, tokens/s"
                )
                yield case, {MEASURED: [pair[1]], PREDICTED: [pair[0]]}


def points_of(report: Report) -> tuple[Predicted, ...]:
    """The points of a report, which are in the names of its cases."""
    found: dict[tuple[int, ...], dict[str, dict[str, float]]] = {}
    for row in report.results:
        numbers = tuple(map(int, re.findall(r"\d+", row.case)))
        found.setdefault(numbers, {}).setdefault(row.case.partition(",")[0], {})[row.variant] = row.median
    return tuple(
        Predicted(
            batch=batch,
            context_tokens=tokens,
            remote_blocks=blocks,
            creditor_batch=own,
            debtor=(pairs["debtor"][PREDICTED], pairs["debtor"][MEASURED]),
            creditor=(pairs["creditor"][PREDICTED], pairs["creditor"][MEASURED]) if "creditor" in pairs else None,
        )
        for (batch, tokens, blocks, own), pairs in found.items()
    )


def _goal(file: ProfileFile, quick: bool) -> Goal:
    share = share_within(file.points)
    name = "predictions within 10 % of what was measured"
    if share is None:
        return Goal(name, f"at least {LEAST_WITHIN:.0%}", "none", None, "the budget ended before there was any")
    met, why = (None, "a quick run measures too little") if quick else (share >= LEAST_WITHIN, "")
    return Goal(name, f"at least {LEAST_WITHIN:.0%}", summary(file), met, why)


def _plot(report: Report, path: Path) -> None:
    facts = report.machine
    draw(points_of(report), f"distkv bench profile: {facts['cpu']}, {facts['cores']} cores, {facts['date']}", path)


def table(report: Report, samples: Samples, console: Console) -> None:
    """A line for each point."""
    shown = Table(box=None, padding=(0, 1, 0, 0))
    for name in ("batch", "tokens", "rBlocks lent", "creditor's batch", "rate of", MEASURED, PREDICTED, "off by"):
        shown.add_column(name, justify="left" if name == "rate of" else "right")
    for point in points_of(report):
        for who, pair in (("debtor", point.debtor), ("creditor", point.creditor)):
            if pair is not None:
                predicted, measured = pair
                sizes = (point.batch, point.context_tokens, point.remote_blocks, point.creditor_batch)
                shown.add_row(
                    *(f"{size:,}" for size in sizes), who, f"{measured:,.1f}", f"{predicted:,.1f}",
                    f"{predicted / measured - 1:+.1%}",
                )  # fmt: skip
    console.print(f"distkv bench {report.benchmark}", style="bold")
    console.print(shown)
    show_goals(report, console)
    console.print(", ".join(f"{name} {value}" for name, value in report.machine.items()), style="dim", soft_wrap=True)


main = benchmark(
    "profile",
    measure,
    HELP,
    [
        click.Option(["--device"], default="cpu", show_default=True, help="cpu, cuda, or cuda:N."),
        click.Option(["--model"], type=click.Choice(sorted(MODELS)), help="b, with --quick tiny."),
        click.Option(["--threads"], type=click.IntRange(min=1), default=1, show_default=True, help="Of each instance."),
        click.Option(
            ["--budget"], type=FiniteRange(min=1), default=BUDGET_S, show_default=True, metavar="SECONDS",
            help="Time to measure.",
        ),
        click.Option(["--profile"], type=click.Path(path_type=Path), help="Write the profile to this file too."),
    ],
    unit_of=unit_of_name,
    packages=("torch",),
    plot=_plot,
    table=table,
)  # fmt: skip
