"""`distkv explain`: why the KV of a request lies where it lies."""

from __future__ import annotations

import json
import re
from typing import Any

import click
import msgspec

from distkv.cli.options import address_option
from distkv.cli.signals import signals_interrupt
from distkv.client.blocking import Client
from distkv.client.views.explaining import Explanation, without_http_prefix
from distkv.errors import RequestUnknown
from distkv.log.printable import printable

MAX_NAMED = 4
OUTPUT = re.compile(r"(.*-[0-9a-f]{8})(-\d+)?(-again)?(~[0-9a-f]{16})?", re.DOTALL)
"""A request that an HTTP request was made into: one of its outputs. The first group is what all of them have."""
HELP = """Say why the rBlocks of a request lie where they lie: which instance serves it and why, what it has borrowed
when, from whom and for what, what came home, what was lost or preempted, and what its next decision depends on. REQUEST
is the id in `distkv status`, or that of an HTTP response. Of a request that has not ended the beginning is enough, if
no other's id begins so. Instances remember the requests they serve, and the newest that ended. Prompts and outputs are
never shown.

\b
Examples:
  distkv explain req-7
  distkv explain chatcmpl-1f2e3d4c --json
  distkv explain 1f2e
"""


def _command(**options: Any) -> int:
    with signals_interrupt(), Client(options["address"]) as client:
        explanation = _explanation(client, options["request"])
    sentences = explanation.sentences()
    if options["json"]:
        click.echo(json.dumps({"sentences": sentences, **msgspec.to_builtins(explanation)}, indent=2))
    else:
        for sentence in sentences:
            click.echo(printable(sentence))
    return 0


def _explanation(client: Client, name: str) -> Explanation:
    """Of the request of this name, or else of the only live one whose name begins so."""
    try:
        return client.explain(name)
    except RequestUnknown:
        begun = _beginning(client, name)
        if begun is None:
            raise
        return client.explain(begun)


def _beginning(client: Client, prefix: str) -> str | None:
    """The id of the live request that begins with `prefix`, of those that the instances list in their status; where
    several outputs of one HTTP request do, what their ids have in common. None if none does.

    Raises ClickException if several requests do.
    """
    prefix = without_http_prefix(prefix)
    ids = [request.request_id for status in client.statuses() for request in status.requests]
    found: dict[str, list[str]] = {}
    for one in sorted({one for one in ids if prefix and one.startswith(prefix)}):
        output = OUTPUT.fullmatch(one)
        found.setdefault(output[1] if output else one, []).append(one)
    if len(found) > 1:
        more = f" and {len(found) - MAX_NAMED} more" if len(found) > MAX_NAMED else ""
        told = f"begin with {prefix}: {', '.join(list(found)[:MAX_NAMED])}{more}"
        raise click.ClickException(f"the ids of {len(found)} requests {printable(told)}")
    for common, outputs in found.items():
        return outputs[0] if len(outputs) == 1 else common
    return None


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
