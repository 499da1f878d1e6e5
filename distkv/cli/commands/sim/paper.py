"""`distkv sim paper`: figures of the papers, made again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import click
import msgspec
from click.shell_completion import CompletionItem
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from distkv.cli.signals import signals_interrupt
from distkv.cli.simulated.files import write
from distkv.config import nearest
from distkv.errors import ConfigError
from distkv.sim.papers import FIGURES, NAMES, make
from distkv.sim.papers.figure import Effort, Figure, PlayedTrace
from distkv.sim.papers.tables import ours_draws, ours_range, printed, theirs, with_tables

HELP = """Make figures of the papers again: the control code that also serves, in simulated time on the hardware of the
papers by cited data. Each ratio that a paper prints stands beside ours, with what it becomes if one part of the
hardware is 20 % slower or faster. Without a name all are made, those that play traces if --trace gives one.

\b
Examples:
  distkv sim paper 000-11
  distkv sim paper --quick
  distkv sim paper 000-8 --json . --plot .
  distkv sim paper beyond-goodput --trace conversations.csv
  distkv sim paper --from docs/papers --docs docs/papers.md
"""


def _command(
    names: tuple[str, ...],
    json_path: Path | None,
    plot_path: Path | None,
    docs_path: Path | None,
    from_path: Path | None,
    trace_paths: tuple[Path, ...],
    quick: bool,
) -> int:
    from distkv.bench.harness.plots.plot import check_plot
    from distkv.bench.harness.report import check_places
    from distkv.bench.simulation.paper_plot import draw
    from distkv.bench.workloads.trace import read_trace

    for name in names:
        if name not in NAMES:
            raise ConfigError("figure", f"there is no figure {name!r}", nearest(name, NAMES))
    check_places(docs_path)
    check_plot(plot_path and plot_path / "figure.png")
    if from_path is None:
        traces = [PlayedTrace(path.stem, read_trace(path)) for path in trace_paths]
        chosen = tuple(dict.fromkeys(names or (NAMES if traces else FIGURES)))
        made = _made(chosen, Effort.QUICK if quick else Effort.FULL, traces)
    else:
        made = _read(tuple(dict.fromkeys(names or NAMES)), from_path)
    console = Console(soft_wrap=True, highlight=False)
    little: list[str] = []
    for figure in made:
        console.print(_table(figure))
        if figure.effort == Effort.QUICK:
            little.append(figure.name)
        if json_path is not None:
            write(json_path / f"{figure.name}.json", msgspec.json.format(msgspec.json.encode(figure), indent=1) + b"\n")
        if plot_path is not None:
            draw(figure, plot_path / f"{figure.name}.png")
        if docs_path is not None:
            write(docs_path, with_tables(docs_path.read_text(encoding="utf-8"), [figure]).encode(), "docs")
    if little:
        console.print(f"{', '.join(little)}: a run with --quick only shows that it works; its numbers mean nothing")
    return 0


def _made(names: tuple[str, ...], effort: Effort, traces: Sequence[PlayedTrace]) -> Iterator[Figure]:
    """Each as soon as it is made, with a bar for the one that is being made."""
    for name in names:
        with signals_interrupt(once=True), _progress() as bar:
            figure = make(name, effort, partial(_say, bar, bar.add_task(name, total=1.0), name), traces)
        yield figure


def _say(bar: Progress, task: TaskID, name: str, what: str, share: float) -> None:
    bar.update(task, description=f"{name}: {what}", completed=share)


def _read(names: tuple[str, ...], directory: Path) -> Iterator[Figure]:
    for name in names:
        path = directory / f"{name}.json"
        try:
            yield msgspec.json.decode(path.read_bytes(), type=Figure)
        except OSError as error:
            raise ConfigError("from", f"cannot read {path}: {error.strerror}") from None
        except msgspec.DecodeError as error:
            raise ConfigError("from", f"{path} is no figure: {error}") from None


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:.0f} %"),
        TimeElapsedColumn(),
        console=Console(stderr=True, highlight=False),
        transient=True,
    )


def _table(figure: Figure) -> Table:
    table = Table(
        "", "theirs", "ours", "95 %", "± 20 %", title=f"{figure.name}: {figure.title}", box=None, title_justify="left"
    )
    for one in figure.ratios:
        table.add_row(one.what, theirs(one), printed(one.ours), ours_draws(one), ours_range(one))
    return table


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in NAMES if name.startswith(incomplete)]


_DIRECTORY = click.Path(exists=True, file_okay=False, path_type=Path)

command = click.Command(
    "sim paper",
    callback=_command,
    params=[
        click.Argument(["names"], nargs=-1, metavar="[FIGURE]...", shell_complete=_complete),
        click.Option(["--json", "json_path"], type=_DIRECTORY, help="Write each figure into this directory, as data."),
        click.Option(["--plot", "plot_path"], type=_DIRECTORY, help="Draw each into this directory, as a PNG file."),
        click.Option(
            ["--docs", "docs_path"], type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
            help="Put the ratios of each between its marks in this Markdown file.",
        ),
        click.Option(
            ["--from", "from_path"], type=_DIRECTORY,
            help="Make none: read what --json wrote into this directory before.",
        ),
        click.Option(
            ["--trace", "trace_paths"], type=click.Path(dir_okay=False, path_type=Path), multiple=True, metavar="CSV",
            help="A trace to play, for figures that have no requests of their own; may be given again.",
        ),
        click.Option(["--quick"], is_flag=True, help="Simulate little, to see that it works."),
    ],
    help=HELP,
    epilog=f"Figures: {', '.join(NAMES)}.",
    context_settings={"max_content_width": 100},
)  # fmt: skip
