"""The view of a running cluster: pure functions from the statuses of its instances to what a terminal shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from distkv.cli.live.samples import Loan, Sample, loans, rates
from distkv.client.views.cluster_status import by_place, mean_gains, remote_share
from distkv.log.printable import printable
from distkv.wire.messages.to_client import ClusterState, InstanceStatus, RequestStatus, SlotCounts
from distkv.wording import counted

STATE_STYLE = {
    "ready": "green",
    "starting": "yellow",
    "draining": "yellow",
    "unreachable": "red",
    "dead": "red",
    "left": "dim",
}
# Slots of a pool, in the order of the bar: state, style, sign, sign where only ASCII can be shown.
SLOTS = (
    ("local", "cyan", "█", "#"),
    ("lent", "magenta", "▓", "%"),
    ("reserved", "yellow", "▒", "+"),
    ("free", "dim", "·", "."),
)
WIDEST, WIDE, MEDIUM = 96, 72, 48
LEGEND_FROM_LINES = 12
BAR_CELLS = (8, 24)
ID_CELLS = 20
ANY_WIDTH = 1_000_000
"""Of what is no terminal: wider than all that is shown."""
NO_NUMBER = "-"
"""Of an instance that does not answer: its last numbers would look like memory that is there."""
GAP = "   "
T = TypeVar("T")


class View(msgspec.Struct, frozen=True):
    """What a live view shows. before: an earlier sample, for throughput. notes: sentences about what is wrong.
    cluster: what the gManager says, if one does."""

    title: str
    now: Sample
    before: Sample | None = None
    notes: tuple[str, ...] = ()
    cluster: ClusterState | None = None


def render(view: View, *, width: int | None, height: int | None = None, ascii_only: bool = False) -> Group:
    """Instances, loans and requests within `width` cells and `height` lines; None shows all of them, and nothing cut
    (on a console of ANY_WIDTH)."""
    line_cells = WIDEST if width is None else width
    width = ANY_WIDTH if width is None else width
    style = Style(width, ascii_only)
    heads = [style.line(view.title, "bold"), *(style.line(note, "red") for note in view.notes)]
    parts: list[RenderableType] = [*heads, *map(style.line, _packed(_totals(view), line_cells))]
    instances = [status.instance for status in view.now.statuses]
    requests = by_place(view.now.statuses)
    left = height - len(parts) if height is not None else 10**6

    def section(rows: Sequence[T], most: int, draw: Callable[[Sequence[T], Style], Sequence[RenderableType]]) -> int:
        """Draw the first rows that have room, below an empty line and a head; returns the lines that are left."""
        if not rows or left < 3:
            return left
        shown = rows if len(rows) <= most else rows[: max(1, most - 1)]
        more = len(rows) - len(shown)
        rest = [style.line(f"and {more} more", "dim")] if more and most > 1 else []
        parts.extend(["", *draw(shown, style), *rest])
        return left - 2 - len(shown) - len(rest)

    if width < WIDE and left >= LEGEND_FROM_LINES:
        parts.append(_legend(style))
        left -= 1
    left = section(instances, max(1, min(left - 2, left // 2)), _instances)
    left = section(loans(view.now.statuses, view.cluster), max(1, (left - 4) // 3), _loans)
    left = section(requests, left - 2, _requests)
    return Group(*parts)


class Style(msgspec.Struct, frozen=True):
    """What a terminal can show."""

    width: int
    ascii_only: bool

    @property
    def overflow(self) -> Literal["crop", "ellipsis"]:
        return "crop" if self.ascii_only else "ellipsis"

    def most(self, cells: int) -> int:
        """Of a column of names that is not to have more cells than these."""
        return ANY_WIDTH if self.width == ANY_WIDTH else cells

    def line(self, text: str, style: str = "") -> Text:
        return Text(printable(text), style=style, no_wrap=True, overflow=self.overflow)

    def table(self, *, heads: bool = True) -> Table:
        return Table(box=None, padding=(0, 1, 0, 0), header_style="bold", show_header=heads)


def _legend(style: Style) -> Text:
    """What the signs of the bars mean, where no columns beside them do."""
    parts = ((f"{plain if style.ascii_only else sign} {name}  ", colour) for name, colour, sign, plain in SLOTS)
    return Text.assemble("rBlocks of a pool: ", *parts, no_wrap=True, overflow=style.overflow)


def _totals(view: View) -> list[str]:
    instances = [status.instance for status in view.now.statuses if status.instance.answers]
    rate = rates(view.before, view.now) if view.before is not None else None
    speed = "-, generated -" if rate is None else f"{rate.prompt:,.0f}, generated {rate.generated:,.1f}"
    running, waiting = sum(one.running for one in instances), sum(one.waiting for one in instances)
    return [f"tokens/s: prompt {speed}", f"requests: {running} running, {waiting} waiting", *_planned(view.cluster)]


def _packed(texts: Sequence[str], width: int) -> list[str]:
    """As many in each line as `width` has room for."""
    lines: list[str] = []
    for text in texts:
        if lines and len(lines[-1]) + len(GAP) + len(text) <= width:
            lines[-1] += GAP + text
        else:
            lines.append(text)
    return lines


def _planned(cluster: ClusterState | None) -> list[str]:
    """How many moves were planned, and what the newest were to bring and brought on average; how many cycles of debts
    were swapped, and of the newest how much came home."""
    lines: list[str] = []
    if cluster is not None and cluster.num_plans:
        gains = mean_gains(cluster)
        told = f" ({gains.predicted:+.1f} tokens/s each predicted, {gains.achieved:+.1f} achieved)" if gains else ""
        lines.append(f"moves planned: {cluster.num_plans}{told}")
    if cluster is not None and cluster.num_runs:
        ended = [run for run in cluster.runs if run.home_blocks is not None]
        home, predicted = sum(run.home_blocks or 0 for run in ended), sum(run.predicted_blocks for run in ended)
        told = f" ({home:,} of {counted(predicted, 'rBlock')} came home)" if ended else ""
        lines.append(f"cycles of debts swapped: {cluster.num_runs}{told}")
    return lines


def _instances(instances: Sequence[InstanceStatus], style: Style) -> list[RenderableType]:
    table, width = style.table(), style.width
    id_cells = style.most(max(8, min(ID_CELLS, width - 66)))
    table.add_column("id", no_wrap=True, overflow=style.overflow, max_width=id_cells)
    table.add_column("state", no_wrap=True)
    table.add_column("pool in use", no_wrap=True)
    wide = ("free", "local", "lent", *(["reserved"] if width >= WIDEST else []), "borrowed")
    counts = wide if width >= WIDE else ("free",) if width >= MEDIUM else ()
    signs = {name: (plain if style.ascii_only else sign, colour) for name, colour, sign, plain in SLOTS}
    for name in counts:
        # The signs of the bar are explained where they cost no line.
        table.add_column(Text.assemble(signs.get(name, ""), name), justify="right", no_wrap=True)
    for name in ("run", "wait") if width >= MEDIUM else ():
        table.add_column(name, justify="right", no_wrap=True)
    names = min(max(len(printable(one.instance_id)) for one in instances), id_cells)
    least, most = BAR_CELLS
    cells = max(least, min(most, width - 60 - names)) if width >= WIDE else least
    for one in instances:
        numbers = [*(_count(one, name) for name in counts), *((one.running, one.waiting) if width >= MEDIUM else ())]
        state = Text(printable(one.state), style=STATE_STYLE.get(one.state, ""))
        bar = pool_bar(one.blocks, cells, style.ascii_only) if one.answers else Text(NO_NUMBER)
        shown = [str(number) if one.answers else NO_NUMBER for number in numbers]
        table.add_row(Text(printable(one.instance_id)), state, bar, *shown)
    return [table]


def _count(instance: InstanceStatus, name: str) -> int:
    return instance.borrowed_blocks if name == "borrowed" else int(getattr(instance.blocks, name))


def pool_bar(blocks: SlotCounts, cells: int, ascii_only: bool = False) -> Text:
    """The slots of a pool by state as a bar of `cells`, and the share in use."""
    bar, end, drawn = Text(no_wrap=True), 0, 0
    total = max(blocks.total, 1)
    for name, style, sign, plain in SLOTS:
        end += getattr(blocks, name)
        reach = min(cells, round(end * cells / total))
        bar.append((plain if ascii_only else sign) * (reach - drawn), style)
        drawn = max(drawn, reach)
    used = (blocks.total - blocks.free) / total if blocks.total else 0.0
    return bar.append(" " * (cells - drawn) + f" {used:4.0%}")


def _loans(lent: Sequence[Loan], style: Style) -> list[RenderableType]:
    table = style.table(heads=False)
    for column in range(4):
        table.add_column(justify="right" if column else "left", no_wrap=True)
    arrow = "->" if style.ascii_only else "→"
    for one in lent:
        table.add_row(
            Text(printable(f"{one.creditor} {arrow} {one.debtor}")),
            counted(one.blocks, "rBlock"),
            counted(one.tokens, "token"),
            counted(one.requests, "request"),
        )
    return [style.line(f"loans, from creditor {arrow} to debtor", "bold"), table]


def _requests(requests: Sequence[RequestStatus], style: Style) -> list[RenderableType]:
    table = style.table()
    table.add_column("request", no_wrap=True, overflow=style.overflow, max_width=style.most(max(8, style.width // 4)))
    table.add_column("at", no_wrap=True, overflow=style.overflow, max_width=style.most(ID_CELLS))
    table.add_column("tokens", justify="right", no_wrap=True)
    if style.width >= MEDIUM:
        table.add_column("remote", justify="right", no_wrap=True)
    table.add_column("KV lies at (tokens)", no_wrap=True, overflow=style.overflow)
    for request in requests:
        spans = ", ".join(f"{span.instance_id} {span.num_tokens:,}" for span in request.spans) or "nowhere yet"
        share = [f"{remote_share(request):.0%}"] if style.width >= MEDIUM else []
        names = (request.request_id, request.instance_id, f"{request.num_tokens:,}", *share, spans)
        table.add_row(*(Text(printable(name)) for name in names))
    return [table]
