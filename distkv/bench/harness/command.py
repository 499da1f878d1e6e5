"""The command line that every benchmark has: --json, --plot, --quick."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console

from distkv.bench.harness.alternate import Samples
from distkv.bench.harness.kept import Kept, keeping
from distkv.bench.harness.machine import Others, machine_facts, versions_of
from distkv.bench.harness.plots.plot import check_plot, write_plot
from distkv.bench.harness.report import Report, check_places, results, show, write_json

Say = Callable[[str], None]
Measured = tuple[Report, Samples]
Plot = Callable[[Report, Path], None]


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
    plot: Plot = write_plot,
    table: Callable[[Report, Samples, Console], None] = show,
) -> Benchmark:
    """`distkv bench NAME`. measure(say, quick=..., **options) reports progress to `say`; its report becomes the table
    on standard output and the files asked for. Exit code 0 whenever it completed, 1 if a file could not be written: the
    table is shown all the same. Interrupted, it shows and writes what it has kept, and its JSON file has every case
    that was complete when another began. unit_of: the unit of a case. plot, table: how it shows a report."""

    @click.pass_context
    def callback(ctx: click.Context, /, json: Path | None, plot_path: Path | None, **given: Any) -> int:
        check_places(json, plot_path)
        check_plot(plot_path)
        progress = Console(stderr=True, markup=False, highlight=False)
        command = shlex.join(("distkv", "bench", name, *ctx.meta["distkv.bench.arguments"]))
        written = 0
        interrupt: KeyboardInterrupt | None = None
        others = Others()
        with progress.status(f"bench {name}") as status, keeping() as kept:

            def say(text: str) -> None:
                nonlocal written
                if json is not None and kept.num_cases > written and (json.is_file() or not json.exists()):
                    written = kept.num_cases
                    try:
                        write_json(_interrupted(name, kept, unit_of, command)[0], json)
                    except OSError as error:  # there may be room again later
                        progress.print(f"bench {name}: {_problem(json, error)}", soft_wrap=True)
                status.update(f"bench {name}: {text}")
                if not progress.is_terminal:
                    progress.print(f"bench {name}: {text}", soft_wrap=True)

            try:
                report, samples = measure(say, **given)
            except KeyboardInterrupt as caught:
                interrupt = caught
                report, samples = _interrupted(name, kept, unit_of, command)
                if not report.results:
                    raise
        machine = report.machine | {"others_cores": round(others.cores(), 2)}
        report = msgspec.structs.replace(report, machine=machine)
        problems = []
        for path, write in ((json, write_json), (plot_path, plot)):
            if path is not None:
                try:
                    write(report, path)
                except OSError as error:
                    problems.append(_problem(path, error))
        table(report, samples, Console(markup=False, highlight=False))
        if interrupt is not None:
            raise interrupt
        if problems:
            raise click.ClickException("; ".join(problems))
        return 0

    return Benchmark(
        plot,
        name=name,
        callback=callback,
        params=[
            click.Option(["--json"], type=click.Path(path_type=Path), help="Write the results to this file."),
            click.Option(
                ["--plot", "plot_path"], type=click.Path(path_type=Path), help="Draw the results into this PNG file."
            ),
            click.Option(["--quick"], is_flag=True, help="A small model and few rounds, to see that it works."),
            *options,
        ],
        help=help,
        context_settings={"max_content_width": 100},
    )


def _problem(path: Path, error: OSError) -> str:
    return f"cannot write {path}: {error.strerror or error}"


def _interrupted(name: str, kept: Kept, unit_of: Callable[[str], str], command: str) -> Measured:
    """What was measured until then, without goals."""
    samples = kept.samples
    rows = results(samples, {case: unit_of(case) for case in samples}) + kept.rows
    facts = machine_facts() | {"interrupted": True, "command": command}
    return Report(name, facts, versions_of(()), rows), samples
