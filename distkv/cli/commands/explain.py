"""`distkv explain`: why the KV of a request lies where it lies."""

from __future__ import annotations

import json
from typing import Any

import click
import msgspec

from distkv.cli.options import address_option
from distkv.cli.signals import signals_interrupt
from distkv.client.blocking import Client
from distkv.log.printable import printable

HELP = """Say why the rBlocks of a request lie where they lie: which instance serves it and why, what it has borrowed
when, from whom and for what, what came home, what was lost or preempted, and what its next decision depends on. REQUEST
is the id in `distkv status`, or that of an HTTP response. Instances remember the requests they serve, and the newest
that ended. Prompts and outputs are never shown.

\b
Examples:
  distkv explain req-7
  distkv explain chatcmpl-1f2e3d4c --json
"""


def _command(**options: Any) -> int:
    with signals_interrupt(), Client(options["address"]) as client:
        explanation = client.explain(options["request"])
    sentences = explanation.sentences()
    if options["json"]:
        click.echo(json.dumps({"sentences": sentences, **msgspec.to_builtins(explanation)}, indent=2))
    else:
        for sentence in sentences:
            click.echo(printable(sentence))
    return 0


command = click.Command(
    "explain",
    callback=_command,
    params=[
        click.Argument(["request"], metavar="REQUEST"),
        address_option(),
        click.Option(["--json"], is_flag=True, help="Print JSON."),
    ],
    help=HELP,
    context_settings={"max_content_width": 100},
)
