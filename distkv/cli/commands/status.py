"""`distkv status`: what every instance of a cluster does now."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from distkv.cli.live.dashboard import NO_NUMBER, STATE_STYLE
from distkv.cli.live.terminal import output_console
from distkv.cli.options import address_option
from distkv.cli.signals import signals_interrupt
from distkv.client.blocking import Client
from distkv.client.views.cluster_status import by_place, remote_share
from distkv.log.printable import printable
from distkv.wire.messages.to_client import ClusterState, RequestStatus, Status
from distkv.wording import counted

MAX_REQUESTS = 20
MAX_DEBTS = 20
MAX_PLANS = 10
HELP = """Show the instances of a cluster, their KV memory, who owes whom, and where the KV of each request lies. Every
instance is asked; one that does not answer within a second is shown as unreachable, without numbers. Where output is no
terminal, lines are as long as they need to be.

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
            output_console().print(status_tables(client.statuses(), client.cluster()))
    return 0


def status_tables(statuses: Sequence[Status], cluster: ClusterState | None = None) -> Group:
    """The instances, who owes whom, what was planned, and the live requests with the place of each span."""
    instances = _table("id", "state", "rBlocks", "free", "local", "lent", "reserved", "borrowed", "running", "waiting")
    for one in (status.instance for status in statuses):
        blocks = one.blocks
        counts = (blocks.total, blocks.free, blocks.local, blocks.lent, blocks.reserved, one.borrowed_blocks)
        numbers = [str(number) if one.answers else NO_NUMBER for number in (*counts, one.running, one.waiting)]
        state = Text(printable(one.state), style=STATE_STYLE.get(one.state, ""))
        instances.add_row(Text(printable(one.instance_id)), state, *numbers)
    parts: list[RenderableType] = [instances]
    if cluster is not None and cluster.debts:
        parts += ["", _debts(cluster)]
    if cluster is not None and cluster.plans:
        parts += ["", _plans(cluster)]
    if cluster is not None and cluster.runs:
        parts += ["", _runs(cluster)]
    requests = by_place(statuses)
    return Group(*parts, "", _requests(requests)) if requests else Group(*parts)


def _debts(cluster: ClusterState) -> Table:
    """Who owes whom, as the gManager knows it."""
    table = _table("debtor", "creditor", "rBlocks")
    for debt in cluster.debts[:MAX_DEBTS]:
        names = (debt.debtor_id, debt.creditor_id, str(debt.num_blocks))
        table.add_row(*(Text(printable(name)) for name in names))
    if cluster.num_debts > MAX_DEBTS:
        table.caption = f"and {cluster.num_debts - MAX_DEBTS} more; rBlocks lent in all: {cluster.lent_blocks:,}"
    return table


def _plans(cluster: ClusterState) -> Table:
    """The moves that were planned last, with what they were to bring and what they brought."""
    table = _table("planned", "from", "to", "rBlocks", "ago", "predicted", "achieved")
    for plan in cluster.plans[:MAX_PLANS]:
        achieved = plan.achieved_tokens_per_s
        source = "creditors" if plan.destination == plan.debtor_id else plan.debtor_id
        names = (plan.request_id, source, plan.destination, str(plan.num_blocks), f"{plan.ago_s:.1f} s")
        predicted = f"{plan.predicted_tokens_per_s:+.1f} tokens/s"
        brought = "not yet" if achieved is None else f"{achieved:+.1f} tokens/s"
        brought = f"dropped: {plan.dropped}" if plan.dropped else brought
        table.add_row(*(Text(printable(name)) for name in (*names, predicted, brought)))
    if cluster.num_plans > MAX_PLANS:
        table.caption = f"the newest of {cluster.num_plans}"
    return table


def _runs(cluster: ClusterState) -> Table:
    """The cycles of debts that were swapped last."""
    table = _table("swapped", "ago", "to come home", "came home")
    for run in cluster.runs[:MAX_PLANS]:
        home = "not yet" if run.home_blocks is None else counted(run.home_blocks, "rBlock")
        home += f": {run.why}" if run.why else ""
        row = (run.members, f"{run.ago_s:.1f} s", counted(run.predicted_blocks, "rBlock"), home)
        table.add_row(*(Text(printable(one)) for one in row))
    if cluster.num_runs > MAX_PLANS:
        table.caption = f"the newest of {cluster.num_runs}"
    return table


def _requests(requests: Sequence[RequestStatus]) -> Table:
    table = _table("request", "at", "tokens", "remote", "KV lies at")
    table.columns[-1].justify = "left"
    for request in requests[:MAX_REQUESTS]:
        places = (
            f"{span.instance_id}[{span.first_token}..{span.first_token + span.num_tokens})" for span in request.spans
        )
        spans = ", ".join(places) or "nowhere yet"
        share = f"{remote_share(request):.0%}"
        names = (request.request_id, request.instance_id, str(request.num_tokens), share, spans)
        table.add_row(*(Text(printable(name)) for name in names))
    if len(requests) > MAX_REQUESTS:
        table.caption = f"and {len(requests) - MAX_REQUESTS} more"
    return table


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
