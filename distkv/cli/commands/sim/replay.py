"""`distkv sim replay`: whether the controllers decide today what they decided when a process was recorded."""

from __future__ import annotations

import json
from pathlib import Path

import click
import msgspec

from distkv.errors import ConfigError
from distkv.sim.replay import Difference, Replayed, replay

MOST_SHOWN = 400
"""Characters of an event or a command; --json has all."""
HELP = """Have gManagers and rManagers decide once more what they decided when they were recorded by --trace-file: the
same events, at the same times. Says of every process that began in these files whether the same commands came of them,
and otherwise of which event what else. Exits 1 if anything differs.

\b
Examples:
  distkv sim replay gmanager.jsonl i0.jsonl i1.jsonl
  distkv sim replay i0.jsonl --json
"""


def _command(files: tuple[Path, ...], json_: bool) -> int:
    found: list[tuple[Path, Replayed]] = []
    for path in files:
        try:
            with path.open("rb") as lines:
                found += ((path, one) for one in replay(lines, str(path)))
        except OSError as error:
            raise ConfigError("trace_file", f"cannot read {path}: {error.strerror}") from None
    if json_:
        results = [{"file": str(path)} | msgspec.to_builtins(one) for path, one in found]
        click.echo(json.dumps({"results": results}, indent=2))
    else:
        for path, one in found:
            _tell(path, one)
    return int(any(one.difference is not None for _, one in found))


def _tell(path: Path, one: Replayed) -> None:
    seconds = one.end_s - one.begin_s
    what = f"{one.name} of distkv {one.version}, {one.num_events:,} events in {seconds:,.1f} s"
    if one.difference is None:
        raised = f"; the last one raises again: {one.raised}" if one.raised else ""
        click.echo(f"{path}: {what}: the same {one.num_commands:,} commands{raised}")
        return
    click.echo(f"{path}: {what}, and then:")
    for name, text in _parts(one.difference):
        click.echo(f"  {name:<9} {text if len(text) <= MOST_SHOWN else text[: MOST_SHOWN - 1] + '…'}")


def _parts(difference: Difference) -> list[tuple[str, str]]:
    return [
        ("line", f"{difference.line}, at {difference.t_s:.6f} s"),
        ("event", difference.event),
        ("recorded", difference.recorded),
        ("now", difference.replayed),
    ]


command = click.Command(
    "sim replay",
    callback=_command,
    params=[
        click.Argument(
            ["files"], nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path),
            metavar="FILE...",
        ),
        click.Option(["--json", "json_"], is_flag=True, help="Print everything that was found as JSON."),
    ],
    help=HELP,
    context_settings={"max_content_width": 100},
)  # fmt: skip
