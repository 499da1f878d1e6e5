"""Where the KV of one request lies, and how to draw that."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from rich.text import Text

from distkv.wire.messages.to_client import SpanStatus, Status

STYLES = ("cyan", "magenta", "yellow", "green", "blue", "red")
BAR_CELLS = 40
FULL, EMPTY = "█", "░"


class Placement(msgspec.Struct, frozen=True):
    """The spans of a request in order, and the KV tokens that each instance's pool holds."""

    debtor: str
    spans: tuple[SpanStatus, ...]
    pool_tokens: dict[str, int]

    @property
    def num_tokens(self) -> int:
        """Tokens whose KV lies somewhere."""
        return sum(span.num_tokens for span in self.spans)

    def tokens_at(self, instance_id: str) -> int:
        """Of these, the ones at one instance."""
        return sum(span.num_tokens for span in self.spans if span.instance_id == instance_id)


def find(statuses: Sequence[Status], request_id: str) -> Placement | None:
    """The request's placement as the instances told it; None while, or after, nobody runs it."""
    pools = {one.instance.instance_id: one.instance.blocks.total * one.instance.block_tokens for one in statuses}
    for status in statuses:
        for request in status.requests:
            if request.request_id == request_id:
                return Placement(request.instance_id, request.spans, pools)
    return None


def draw(placement: Placement) -> list[Text]:
    """Lines: a bar per instance, the spans in order, and the whole request as one bar in the instances' colours."""
    style = {name: STYLES[index % len(STYLES)] for index, name in enumerate(placement.pool_tokens)}
    width = max(map(len, style), default=0)
    lines = []
    for name, pool in placement.pool_tokens.items():
        held = placement.tokens_at(name)
        cells = min(BAR_CELLS, -(-held * BAR_CELLS // max(pool, 1)))
        line = Text(f"  {name:<{width}}  ")
        line.append(FULL * cells, style[name])
        line.append(EMPTY * (BAR_CELLS - cells), "dim")
        line.append(f"  {held:>6,} of {pool:,} tokens" + (" (debtor)" if name == placement.debtor else ""))
        lines.append(line)
    lines.append(Text("  spans in order  ").append_text(_spans(placement, style)))
    lines.append(Text("  the request     ").append_text(_whole(placement, style)))
    return lines


def _spans(placement: Placement, style: dict[str, str]) -> Text:
    parts = [
        Text(f"{span.instance_id}[{span.first_token}..{span.first_token + span.num_tokens})", style[span.instance_id])
        for span in placement.spans
        if span.instance_id in style
    ]
    return Text(" ").join(parts)


def _whole(placement: Placement, style: dict[str, str]) -> Text:
    """One cell per 1/BAR_CELLS of the tokens, named by the last character of the instance that has most of it."""
    line, total = Text(), placement.num_tokens
    for cell in range(BAR_CELLS if total else 0):
        token = (2 * cell + 1) * total // (2 * BAR_CELLS)
        for span in placement.spans:
            if span.first_token <= token < span.first_token + span.num_tokens and span.instance_id in style:
                line.append(span.instance_id[-1], f"bold {style[span.instance_id]}")
                break
    return line
