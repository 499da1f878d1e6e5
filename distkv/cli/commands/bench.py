"""`distkv bench`: the benchmarks, each a program of its own in a room of `distkv.bench`, whose `main` is a command."""

from __future__ import annotations

import importlib

import click

from distkv.bench.rooms import PLOT, modules
from distkv.cli.signals import signals_interrupt
from distkv.config import nearest

HELP = """Run a benchmark. It ends with a table, and says the machine and versions it ran on.

\b
Examples:
  distkv bench smoke --quick
  distkv bench smoke --json smoke.json --plot smoke.png
  distkv bench plot smoke.json
"""


@click.pass_context
def _command(ctx: click.Context, /, name: str | None, arguments: tuple[str, ...]) -> int:
    if name is None:
        click.echo(ctx.get_help())
        return 0
    known = modules()
    if name not in known:
        raise click.UsageError(f"there is no benchmark {name!r} ({nearest(name, known)})", ctx)
    main: click.Command = importlib.import_module(known[name]).main
    with signals_interrupt(once=True):
        code: int = main.main(list(arguments), prog_name=f"distkv bench {name}", standalone_mode=False)
    return code


command = click.Command(
    "bench",
    callback=_command,
    params=[
        click.Argument(["name"], required=False, metavar="NAME"),
        click.Argument(
            ["arguments"], nargs=-1, type=click.UNPROCESSED, metavar="[--json FILE] [--plot FILE.png] [--quick]"
        ),
    ],
    help=HELP,
    epilog=f"Benchmarks: {', '.join(name for name in modules() if name != PLOT)}. {PLOT} draws the JSON of one again.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False, "max_content_width": 100},
)
