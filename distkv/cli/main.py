"""`distkv`: local clusters, requests, status and benchmarks from a terminal."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import click
from click.shell_completion import CompletionItem

from distkv.cli.exit_codes import run
from distkv.cli.version import version_option

COMMANDS = {
    "up": "Start a cluster on this machine and watch it.",
    "serve": "The same with the flags of vllm serve.",
    "generate": "Send a prompt to a cluster and stream the answer.",
    "status": "Show the instances of a cluster and where KV lies.",
    "explain": "Say why a request's KV lies where it lies.",
    "top": "Watch a cluster: memory, loans, requests, throughput.",
    "demo": "See several instances serve one prompt, and check it.",
    "profile": "Measure what this machine does with a model, to plan by.",
    "bench": "Run a benchmark.",
    "sim": "Play a trace to a cluster in simulated time.",
    "sim paper": "Make figures of the papers again.",
    "sim trace": "Draw a dataset of the papers as a trace.",
    "sim replay": "Decide once more what a trace file has recorded.",
    "wire": "Look at captured messages.",
    "completion": "Print the shell completion of all programs.",
}
"""The commands and what they do, known without loading them. One of two words may be written with a hyphen."""
HELP = """Serve large language models from one pool of KV memory that many instances share.

\b
Examples:
  distkv up ./Llama-3.2-1B --instances 3 --kv-tokens 4K
  distkv serve ./Llama-3.2-1B --data-parallel-size 3 --port 8000
  distkv generate "The gate code is 48213. Question: What is the gate code? Answer:" --temperature 0
  distkv top
  distkv demo
  distkv bench smoke --quick --json smoke.json
"""


def module_of(name: str) -> str:
    """The module that has a command. Those of `sim` have a room, of which `sim` by itself is one."""
    return f"distkv.cli.commands.{'sim.play' if name == 'sim' else name.replace(' ', '.')}"


class _Commands(click.Group):
    """Loads a command's module when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        name = cmd_name.replace("-", " ")
        if name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(module_of(name)).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if (name := " ".join(args[:2])) in COMMANDS:
            # Help and errors call it as it was written.
            return name, self.get_command(ctx, name), args[2:]
        if args[0].replace("-", " ") not in COMMANDS and not args[0].startswith("-") and not ctx.resilient_parsing:
            # Only a mistake has to wait for the settings to be loaded.
            from distkv.config import nearest

            ctx.fail(f"No such command {args[0]!r} ({nearest(args[0], COMMANDS)})")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        words = {name.replace(" ", "-"): text for name, text in COMMANDS.items()}  # one is completed at a time
        found = [CompletionItem(name, help=text) for name, text in words.items() if name.startswith(incomplete)]
        return found + click.Command.shell_complete(self, ctx, incomplete)


@click.pass_context
def _group(ctx: click.Context, /, **params: Any) -> int | None:
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
    return None


command = _Commands(
    "distkv",
    callback=_group,
    invoke_without_command=True,
    params=[version_option("distkv")],
    help=HELP,
    context_settings={"max_content_width": 100},
)


def main() -> None:
    """Entry point of the console script."""
    sys.exit(run(command))


if __name__ == "__main__":
    main()
