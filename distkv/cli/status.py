"""`distkv status`: what every instance of a cluster does now."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.console import Console

from distkv.cli.generate import address_option
from distkv.cli.terminal import status_tables
from distkv.client.blocking import Client

HELP = """Show the instances of a cluster, their KV memory, and where the KV of each running request lies.
Every instance is asked; one that does not answer within a second is shown as unreachable.

\b
Examples:
  distkv status
  distkv status --json --address tcp://127.0.0.1:7171
"""


def _command(**options: Any) -> int:
    with Client(options["address"]) as client:
        if options["json"]:
            click.echo(json.dumps(client.status(), indent=2))
        else:
            Console().print(status_tables(client.statuses()))
    return 0


command = click.Command(
    "status",
    callback=_command,
    params=[address_option(), click.Option(["--json"], is_flag=True, help="Print JSON.")],
    help=HELP,
    context_settings={"max_content_width": 100},
)
