"""`distkv status`: what every instance of a cluster does now."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from distkv.cli.live.dashboard import STATE_STYLE
from distkv.cli.options import address_option
from distkv.cli.signals import signals_interrupt
from distkv.client.blocking import Client
from distkv.printable import printable
from distkv.wire.messages.to_client import Status

MAX_REQUESTS = 20
HELP = """Show the instances of a cluster, their KV memory, and where the KV of each running request lies.
Every instance is asked; one that does not answer within a second is shown as unreachable.

\b
Examples:
  distkv status
  distkv status --json --address tcp://127.0.0.1:7171
"""


def _command(**options: Any) -> int:
    with signals_interrupt(), Client(options["address"]) as client:
        if options["json"]:
            click.echo(json.dumps(client.status(), indent=2))
        else:
            Console().print(status_tables(client.statuses()))
    return 0


def status_tables(statuses: Sequence[Status]) -> Group:
    """The instances, and below them the live requests with the place of each span."""
    instances = _table("id", "state", "rBlocks", "free", "local", "lent", "reserved", "borrowed", "running", "waiting")
    for one in (status.instance for status in statuses):
        blocks = one.blocks
        counts = (blocks.total, blocks.free, blocks.local, blocks.lent, blocks.reserved, one.borrowed_blocks)
        state = Text(printable(one.state), style=STATE_STYLE.get(one.state, ""))
        instances.add_row(Text(printable(one.instance_id)), state, *map(str, (*counts, one.running, one.waiting)))
    requests = [request for status in statuses for request in status.requests]
    if not requests:
        return Group(instances)
    table = _table("request", "at", "tokens", "KV lies at")
    table.columns[-1].justify = "left"
    for request in requests[:MAX_REQUESTS]:
        spans = ", ".join(
            f"{span.instance_id}[{span.first_token}..{span.first_token + span.num_tokens})" for span in request.spans
        )
        names = (request.request_id, request.instance_id, str(request.num_tokens), spans)
        table.add_row(*(Text(printable(name)) for name in names))
    if len(requests) > MAX_REQUESTS:
        table.caption = f"and {len(requests) - MAX_REQUESTS} more"
    return Group(instances, "", table)


def _table(*names: str) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0))
    for index, name in enumerate(names):
        table.add_column(name, justify="left" if index < 2 else "right", overflow="fold")
    return table


command = click.Command(
    "status",
    callback=_command,
    params=[address_option(), click.Option(["--json"], is_flag=True, help="Print JSON.")],
    help=HELP,
    context_settings={"max_content_width": 100},
)
