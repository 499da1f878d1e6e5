"""`distkv`: local clusters, requests, status and benchmarks from a terminal."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import click

import distkv
from distkv.cli.failures import run

COMMANDS = ("up", "generate", "status", "demo", "bench")
HELP = """Serve large language models from one pool of KV memory that many instances share.

\b
Examples:
  distkv up --model ./Llama-3.2-1B --instances 3 --kv-tokens 4K
  distkv generate "Once upon a time" --max-tokens 64
  distkv status
  distkv demo
  distkv bench smoke --quick --json smoke.json
"""


class _Commands(click.Group):
    """Loads a command's module when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"distkv.cli.{cmd_name}").command
        return command


def _version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        click.echo(f"distkv {distkv.__version__}")
        ctx.exit(0)


@click.pass_context
def _group(ctx: click.Context, /, **params: Any) -> int | None:
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
    return None


command = _Commands(
    "distkv",
    callback=_group,
    invoke_without_command=True,
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_version,
            help="Print the version and exit.",
        )
    ],
    help=HELP,
    context_settings={"max_content_width": 100},
)


def main() -> None:
    """Entry point of the console script."""
    sys.exit(run(command))


if __name__ == "__main__":
    main()
