"""`distkv demo`: one prompt that no instance could hold alone, checked against transformers."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from distkv.cli.interrupts import signals_interrupt

HELP = """Start three instances with small KV memory, send them a prompt that none of them could hold alone, and show
where its KV lies, what moved, how fast it went, and that the tokens are those of transformers.
Everything runs on this machine and is gone afterwards, also after Ctrl-C.

\b
Examples:
  distkv demo
  distkv demo --instances 5 --kv-tokens 512
  distkv demo --keep-checkpoint ./random-llama
"""


def _command(**options: Any) -> int:
    if find_spec("transformers") is None:
        raise click.ClickException(
            "the demo compares with transformers, which is not installed: pip install transformers"
        )
    kept: Path | None = options["keep_checkpoint"]
    if kept is not None and kept.exists() and (not kept.is_dir() or any(kept.iterdir())):
        raise click.UsageError(f"--keep-checkpoint: {kept} exists and is no empty directory")
    # The story loads torch; a mistake on the command line need not wait for that.
    from distkv.demo.story import Options, run

    try:
        with signals_interrupt(once=True):
            return 0 if run(Options(**options), Console()) else 1
    except KeyboardInterrupt:
        click.echo("interrupted; everything is stopped", err=True)
        return 130


command = click.Command(
    "demo",
    callback=_command,
    params=[
        click.Option(
            ["--instances"], type=click.IntRange(2, 9), default=3, show_default=True, help="How many instances."
        ),
        click.Option(
            ["--kv-tokens"],
            type=click.IntRange(128, 65536),
            default=1024,
            show_default=True,
            help="KV pool of each instance in tokens; the prompt is longer.",
        ),
        click.Option(
            ["--max-tokens"], type=click.IntRange(min=1), default=128, show_default=True, help="Length of the answer."
        ),
        click.Option(["--seed"], type=int, default=0, show_default=True, help="Of the random weights."),
        click.Option(
            ["--keep-checkpoint"],
            type=click.Path(path_type=Path),
            help="Make the checkpoint in this directory and leave it there.",
        ),
    ],
    help=HELP,
    context_settings={"max_content_width": 100},
)
