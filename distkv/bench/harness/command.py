"""The command line that every benchmark has: --json, --plot, --quick, and --rounds for most."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
from click.core import ParameterSource
from rich.console import Console

from distkv.bench.harness.alternate import Samples
from distkv.bench.harness.kept import Kept, keeping
from distkv.bench.harness.machine import machine_facts, versions_of
from distkv.bench.harness.plots.plot import check_plot, write_plot
from distkv.bench.harness.report import Goal, Report, Result, check_places, results, show, write_json
from distkv.bench.harness.timing.processes import OtherPrograms

Say = Callable[[str], None]
Plot = Callable[[Report, Path], None]


class Measured(msgspec.Struct, frozen=True):
    """What a benchmark found. facts: how, beside what is known of the machine. rows: results that are not of samples.
    versions: of what is no package of this process."""

    samples: Samples
    goals: tuple[Goal, ...] = ()
    facts: dict[str, Any] = {}
    rows: tuple[Result, ...] = ()
    versions: dict[str, str] = {}


class Benchmark(click.Command):
    """The command of a benchmark. plot: how its report is drawn."""

    def __init__(self, plot: Plot, **settings: Any) -> None:
        super().__init__(**settings)
        self.plot = plot

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does; what was given stays in `ctx.meta`."""
        ctx.meta["distkv.bench.arguments"] = list(args)
        return super().parse_args(ctx, args)


def unit_of_name(case: str) -> str:
    """The unit of a case whose name ends in it."""
    return case.rpartition(", ")[2]


def benchmark(
    name: str,
    measure: Callable[..., Measured],
    help: str,
    options: Sequence[click.Parameter] = (),
    *,
    unit_of: Callable[[str], str],
    packages: Sequence[str] = (),
    rounds: tuple[int, int] | None = None,
    plot: Plot = write_plot,
    table: Callable[[Report, Samples, Console], None] = show,
) -> Benchmark:
    """`distkv bench NAME`. measure(say, quick=..., **options) reports progress to `say`; what it found becomes the
    table on standard output and the files asked for. Exit code 0 whenever it completed, 1 if a file could not be
    written: the table is shown all the same. Interrupted, it shows and writes what it has kept, and its JSON file has
    every case that was complete when another began. unit_of: the unit of a case. packages: whose versions count.
    rounds: how many there are, and how many with --quick, where nobody says. plot, table: how it shows a report."""

    @click.pass_context
    def callback(ctx: click.Context, /, json: Path | None, plot_path: Path | None, **given: Any) -> int:
        check_places(json, plot_path)
        check_plot(plot_path)
        command = _without_files(ctx.meta["distkv.bench.arguments"])
        if rounds is not None and ctx.get_parameter_source("rounds") is not ParameterSource.COMMANDLINE:
            given["rounds"] = rounds[given["quick"]]
            command += ["--rounds", str(given["rounds"])]
        facts = machine_facts() | {"command": shlex.join(("distkv", "bench", name, *command))}
        progress = Console(stderr=True, markup=False, highlight=False)
        written = 0
        interrupt: KeyboardInterrupt | None = None
        others = OtherPrograms()

        def report_of(found: Measured) -> Report:
            machine = facts | found.facts | {"others_cores": round(others.cores(), 2)}
            rows = results(found.samples, unit_of) + found.rows
            return Report(name, machine, versions_of(packages) | found.versions, rows, found.goals)

        with progress.status(f"bench {name}") as status, keeping() as kept:

            def say(text: str) -> None:
                nonlocal written
                if json is not None and kept.num_cases > written and (json.is_file() or not json.exists()):
                    written = kept.num_cases
                    try:
                        write_json(report_of(_interrupted(kept)), json)
                    except OSError as error:  # there may be room again later
                        progress.print(f"bench {name}: {_problem(json, error)}", soft_wrap=True)
                status.update(f"bench {name}: {text}")
                if not progress.is_terminal:
                    progress.print(f"bench {name}: {text}", soft_wrap=True)

            try:
                found = measure(say, **given)
            except KeyboardInterrupt as caught:
                interrupt, found = caught, _interrupted(kept)
                if not (found.samples or found.rows):
                    raise
        report = report_of(found)
        problems = []
        for path, write in ((json, write_json), (plot_path, plot)):
            if path is not None:
                try:
                    write(report, path)
                except OSError as error:
                    problems.append(_problem(path, error))
        table(report, found.samples, Console(markup=False, highlight=False))
        if interrupt is not None:
            raise interrupt
        if problems:
            raise click.ClickException("; ".join(problems))
        return 0

    params: list[click.Parameter] = [
        click.Option(["--json"], type=click.Path(path_type=Path), help="Write the results to this file."),
        click.Option(
            ["--plot", "plot_path"], type=click.Path(path_type=Path), help="Draw the results into this PNG file."
        ),
        click.Option(["--quick"], is_flag=True, help="A small model and few rounds, to see that it works."),
    ]
    if rounds is not None:
        said = f"How often everything is measured; {rounds[0]}, with --quick {rounds[1]}, if not given."
        params.append(click.Option(["--rounds"], type=click.IntRange(min=1), help=said))
    return Benchmark(
        plot,
        name=name,
        callback=callback,
        params=[*params, *options],
        help=help,
        context_settings={"max_content_width": 100},
    )


def _without_files(arguments: Sequence[str]) -> list[str]:
    """What was measured, whatever became of it."""
    words = iter(arguments)
    kept = []
    for word in words:
        if word in ("--json", "--plot"):
            next(words, None)
        elif not word.startswith(("--json=", "--plot=")):
            kept.append(word)
    return kept


def _problem(path: Path, error: OSError) -> str:
    return f"cannot write {path}: {error.strerror or error}"


def _interrupted(kept: Kept) -> Measured:
    """What was measured until then, without goals."""
    return Measured(kept.samples, facts={"interrupted": True}, rows=kept.rows)
