"""`distkv sim paper`: figures of the papers, made again."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import click
import msgspec
from click.shell_completion import CompletionItem
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from distkv.cli.signals import signals_interrupt
from distkv.config import nearest
from distkv.errors import ConfigError
from distkv.sim.papers import FIGURES, make
from distkv.sim.papers.figure import Effort, Figure
from distkv.sim.papers.tables import ours_draws, ours_range, printed, theirs, with_tables

HELP = """Make figures of the papers again, all if none is named: the control code that also serves, in simulated time
on the hardware of the papers by cited data. Each ratio that a paper prints stands beside ours, with what it becomes if
one part of the hardware is 20 % slower or faster.

\b
Examples:
  distkv sim paper 000-11
  distkv sim paper --quick
  distkv sim paper 000-8 --json . --plot .
  distkv sim paper --from docs/papers --docs docs/papers.md
"""


def _command(
    names: tuple[str, ...],
    json_path: Path | None,
    plot_path: Path | None,
    docs_path: Path | None,
    from_path: Path | None,
    quick: bool,
) -> int:
    from distkv.bench.harness.plot import require_matplotlib
    from distkv.bench.simulation.paper_plot import draw

    for name in names:
        if name not in FIGURES:
            raise ConfigError("figure", f"there is no figure {name!r}", nearest(name, FIGURES))
    if plot_path is not None:
        require_matplotlib()
    chosen = tuple(dict.fromkeys(names or FIGURES))
    made = _made(chosen, Effort.QUICK if quick else Effort.FULL) if from_path is None else _read(chosen, from_path)
    console = Console(soft_wrap=True, highlight=False)
    for figure in made:
        console.print(_table(figure))
        if json_path is not None:
            _write(
                json_path / f"{figure.name}.json", msgspec.json.format(msgspec.json.encode(figure), indent=1) + b"\n"
            )
        if plot_path is not None:
            draw(figure, plot_path / f"{figure.name}.png")
        if docs_path is not None:
            _write(docs_path, with_tables(docs_path.read_text(encoding="utf-8"), [figure]).encode())
    return 0


def _made(names: tuple[str, ...], effort: Effort) -> Iterator[Figure]:
    """Each as soon as it is made, with a bar for the one that is being made."""
    for name in names:
        with _progress() as bar, signals_interrupt(once=True):
            figure = make(name, effort, partial(_say, bar, bar.add_task(name, total=1.0), name))
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


def _write(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        raise ConfigError("json", f"cannot write {path}: {error.strerror}") from None


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in FIGURES if name.startswith(incomplete)]


_DIRECTORY = click.Path(exists=True, file_okay=False, path_type=Path)

command = click.Command(
    "sim-paper",
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
        click.Option(["--quick"], is_flag=True, help="Simulate little, to see that it works."),
    ],
    help=HELP,
    epilog=f"Figures: {', '.join(FIGURES)}.",
    context_settings={"max_content_width": 100},
)  # fmt: skip
