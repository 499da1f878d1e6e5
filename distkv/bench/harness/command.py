"""The command line that every benchmark has: --json, --plot, --quick."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from distkv.bench.harness.alternate import Samples, kept_rounds
from distkv.bench.harness.machine import machine_facts, versions_of
from distkv.bench.harness.plot import require_matplotlib, write_plot
from distkv.bench.harness.report import Report, results, show, write_json

Say = Callable[[str], None]
Measured = tuple[Report, Samples]


def _keep(name: str, samples: Samples, json: Path | None) -> None:
    """Show, and write, the rounds that an interrupted benchmark has measured; which unit a case has it alone knows."""
    if not samples:
        return
    facts = machine_facts() | {"interrupted": True}
    report = Report(name, facts, versions_of(()), results(samples, dict.fromkeys(samples, "")))
    if json is not None:
        write_json(report, json)
    show(report, samples, Console(markup=False, highlight=False))


def benchmark(
    name: str,
    measure: Callable[..., Measured],
    help: str,
    options: Sequence[click.Parameter] = (),
    *,
    plot: Callable[[Report, Path], None] = write_plot,
    table: Callable[[Report, Samples, Console], None] = show,
) -> click.Command:
    """`distkv bench NAME`. measure(say, quick=..., **options) reports progress to `say`; its report becomes the table
    on standard output and the files asked for. Exit code 0 whenever it completed; interrupted, it shows and writes the
    rounds that `alternate` has measured. plot, table: how it shows them."""

    def callback(json: Path | None, plot_path: Path | None, **given: Any) -> int:
        for path in (json, plot_path):
            if path is not None and not path.absolute().parent.is_dir():
                raise click.UsageError(f"there is no directory {path.absolute().parent} for {path.name}")
        if plot_path is not None:
            require_matplotlib()
        progress = Console(stderr=True, markup=False, highlight=False)
        with progress.status(f"bench {name}") as status:

            def say(text: str) -> None:
                status.update(f"bench {name}: {text}")
                if not progress.is_terminal:
                    progress.print(f"bench {name}: {text}", soft_wrap=True)

            with kept_rounds() as so_far:
                try:
                    report, samples = measure(say, **given)
                except KeyboardInterrupt:
                    _keep(name, so_far(), json)
                    raise
        if json is not None:
            write_json(report, json)
        if plot_path is not None:
            plot(report, plot_path)
        table(report, samples, Console(markup=False, highlight=False))
        return 0

    return click.Command(
        name,
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
