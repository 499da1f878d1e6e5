"""`distkv bench plot FILE.json`: the picture of a report that was written before, drawn again without measuring."""

from __future__ import annotations

import importlib
from pathlib import Path

import click
import msgspec

from distkv.bench.harness.command import Benchmark
from distkv.bench.harness.plots.plot import check_plot
from distkv.bench.harness.report import Report, check_places
from distkv.bench.rooms import modules

HELP = """Draw what --json of a benchmark wrote, as its --plot does, into the PNG file of the same name or into --plot.

\b
Examples:
  distkv bench plot smoke.json
  distkv bench plot smoke.json --plot picture.png
"""


def _plot(file: Path, plot_path: Path | None) -> int:
    written = plot_path or file.with_suffix(".png")
    check_places(written)
    check_plot(written)
    try:
        report = msgspec.json.decode(file.read_bytes(), type=Report)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{file} was not written by --json of a benchmark: {error}") from None
    _benchmark(report.benchmark).plot(report, written)
    click.echo(written)
    return 0


def _benchmark(name: str) -> Benchmark:
    if path := modules().get(name):
        main = importlib.import_module(path).main
        if isinstance(main, Benchmark):
            return main
    raise click.UsageError(f"the file says it is of benchmark {name!r}, which there is not")


main = click.Command(
    "plot",
    callback=_plot,
    params=[
        click.Argument(["file"], type=click.Path(exists=True, dir_okay=False, path_type=Path)),
        click.Option(["--plot", "plot_path"], type=click.Path(dir_okay=False, path_type=Path), help="The PNG file."),
    ],
    help=HELP,
)
