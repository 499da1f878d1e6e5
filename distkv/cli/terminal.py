"""Tables of a cluster's status, and signals, as the commands share them."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator, Sequence
from types import FrameType

from rich.console import Group
from rich.table import Table
from rich.text import Text

from distkv.wire.messages.to_client import Status

_STATE_STYLE = {"ready": "green", "starting": "yellow", "draining": "yellow", "unreachable": "red", "dead": "red"}
MAX_REQUESTS = 20


def status_tables(statuses: Sequence[Status]) -> Group:
    """The instances, and below them the live requests with the place of each span."""
    instances = _table("id", "state", "rBlocks", "free", "local", "lent", "reserved", "borrowed", "running", "waiting")
    for one in (status.instance for status in statuses):
        blocks = one.blocks
        counts = (blocks.total, blocks.free, blocks.local, blocks.lent, blocks.reserved, one.borrowed_blocks)
        state = Text(one.state, style=_STATE_STYLE.get(one.state, ""))
        instances.add_row(one.instance_id, state, *map(str, (*counts, one.running, one.waiting)))
    requests = [request for status in statuses for request in status.requests]
    if not requests:
        return Group(instances)
    table = _table("request", "at", "tokens", "KV lies at")
    table.columns[-1].justify = "left"
    for request in requests[:MAX_REQUESTS]:
        spans = ", ".join(
            f"{span.instance_id}[{span.first_token}..{span.first_token + span.num_tokens})" for span in request.spans
        )
        table.add_row(request.request_id, request.instance_id, str(request.num_tokens), spans)
    if len(requests) > MAX_REQUESTS:
        table.caption = f"and {len(requests) - MAX_REQUESTS} more"
    return Group(instances, "", table)


def _table(*names: str) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0))
    for index, name in enumerate(names):
        table.add_column(name, justify="left" if index < 2 else "right", overflow="fold")
    return table


@contextlib.contextmanager
def signals_interrupt() -> Iterator[None]:
    """Within, SIGTERM and SIGINT raise KeyboardInterrupt in the main thread, also where SIGINT was ignored before."""

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {signum: signal.signal(signum, interrupt) for signum in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
