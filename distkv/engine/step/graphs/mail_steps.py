"""Steps of decodes with keys at creditors that share mailboxes: one graph each, exchange and all.

Which creditors there are, where their mailboxes lie and which rows each is asked with stands in a table on the device
(`kernels.mail_table`). So the host has no part in a layer: it writes the table, and replays. Plans are kept as long as
the same sequences have the same spans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from distkv.engine.attention.creditor_link import CreditorLink, Peers
from distkv.engine.device.pool import KvPool
from distkv.engine.model.decoder import Model
from distkv.engine.step.batch import PlannedSeq
from distkv.engine.step.graphs.decode import DecodeGraphs, Decodes
from distkv.engine.step.graphs.exchange_tensors import MOST_CREDITORS, MOST_PARTIALS
from distkv.engine.step.graphs.exchanges import ExchangeGraphs
from distkv.errors import LinkError
from distkv.kernels.mail_table import MailField
from distkv.wire.messages.data import AttendEntry, AttendPlan
from distkv.wire.messages.to_worker import RemoteSpan

_NO_ROWS = slice(0, 0)
"""Of a microbatch: the device finds those of each creditor in the table."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """Of one creditor. plan: but for its step. rows: of the step, those of the plan; owners: that of each entry;
    first_partial: where its partials begin among those of all."""

    plan: AttendPlan
    rows: NDArray[np.int64]
    owners: list[int]
    first_partial: int


@dataclass(frozen=True, slots=True)
class _Plans:
    """Of the sequences of a step. asked: by creditor. parts: int64 [MOST_PARTIALS, N], where the partials of each row
    are among those of all creditors, one after another; -1 for none."""

    names: list[str]
    spans: list[tuple[RemoteSpan, ...]]
    asked: dict[str, _Asked]
    parts: NDArray[np.int64]


class MailSteps:
    """Makes steps of decodes that are one graph, exchange with creditors included. For one thread and one stream."""

    def __init__(self, model: Model, pool: KvPool, peers: Peers, decodes: DecodeGraphs, graphs: ExchangeGraphs) -> None:
        """decodes: whose block tables these share. graphs: what is captured."""
        self._model, self._pool, self._peers, self._decodes = model, pool, peers, decodes
        self._graphs = graphs
        self._plans: _Plans | None = None

    def decodes(self, step_id: int, planned: Sequence[PlannedSeq]) -> Decodes | None:
        """The step, with its plans sent and its numbers on their way to the device; None if no graph computes such a
        step, and nothing was sent: it has no keys elsewhere, rows whose next token is not wanted, too many partials of
        a row, layers with windows, creditors that are asked by frames or cannot be reached, or what `DecodeGraphs`
        computes neither."""
        steps = [one.step for one in planned]
        spans = [step.remote for step in steps]
        if not any(spans) or self._model.config.widest_window is not None:
            return None
        for one in planned:
            step = one.step
            if len(one.tokens) != 1 or step.sample is None or step.prompt_logprobs is not None:
                return None
        names = [step.request_id for step in steps]
        plans = self._planned(names, spans)
        links = None if plans is None else self._links(plans)
        taken = None if links is None else self._decodes.tables.take(names, [step.local for step in steps])
        if plans is None or links is None or taken is None:
            return None
        rows = np.empty((4, len(planned)), np.int64)
        rows[0] = [one.tokens[0] for one in planned]
        rows[1] = [step.start for step in steps]
        blocks, rows[3] = np.divmod(rows[1], self._pool.block_tokens)
        slots = self._decodes.tables.slots(taken, blocks)
        captured = None if slots is None else self._graphs.by_mail(len(planned))
        if slots is None or captured is None:
            return None
        rows[2] = slots
        tensors = captured.tensors
        tensors.divide(taken, rows[1] + 1 - taken.first_blocks * self._pool.block_tokens)
        numbers, mail = tensors.blank()
        num_layers = self._model.config.num_layers
        for line, (asked, link) in zip(mail, zip(plans.asked.values(), links, strict=True), strict=False):
            plan = msgspec.structs.replace(asked.plan, step_id=step_id)
            lost = [planned[row].lost for row in asked.owners]
            link.begin(plan, rows[1, asked.rows].data.cast("B"), _NO_ROWS, lost)
            if link.posts:
                line[: len(MailField)] = link.mail_fields(asked.first_partial, num_layers)
                line[len(MailField) :][: len(asked.rows)] = asked.rows
        tensors.write_all(numbers, rows, plans.parts)
        return Decodes(tensors.numbers[0, : len(planned)], None, captured.captured, links)

    def _planned(self, names: list[str], spans: list[tuple[RemoteSpan, ...]]) -> _Plans | None:
        """None if a row has too many partials, or the step too many creditors."""
        plans = self._plans
        if plans is not None and plans.names == names and plans.spans == spans:
            return plans
        tokens = self._pool.block_tokens
        entries: dict[str, list[AttendEntry]] = {}
        rows: dict[str, list[int]] = {}
        owners: dict[str, list[int]] = {}
        sources: list[list[tuple[str, int]]] = []
        for row, (name, of_row) in enumerate(zip(names, spans, strict=True)):
            sources.append([])
            for span in of_row:
                creditor = span.instance_id
                theirs = rows.setdefault(creditor, [])
                if not theirs or theirs[-1] != row:
                    theirs.append(row)
                owners.setdefault(creditor, []).append(row)
                listed = entries.setdefault(creditor, [])
                sources[-1].append((creditor, len(listed)))
                listed.append(
                    AttendEntry(
                        request_id=name,
                        span=span.span,
                        index=span.index,
                        num_blocks=span.num_blocks,
                        first_position=span.first_block * tokens,
                        row=len(theirs) - 1,
                        num_rows=1,
                    )
                )
        if len(entries) > MOST_CREDITORS or max(map(len, sources)) > MOST_PARTIALS:
            return None
        asked, firsts = {}, {}
        end = 0
        for creditor, listed in entries.items():
            plan = AttendPlan(step_id=0, num_rows=len(rows[creditor]), entries=tuple(listed))
            asked[creditor] = _Asked(plan, np.array(rows[creditor]), owners[creditor], end)
            firsts[creditor], end = end, end + len(listed)
        parts = np.full((MOST_PARTIALS, len(names)), -1)
        for row, of_row_sources in enumerate(sources):
            for place, (creditor, entry) in enumerate(of_row_sources):
                parts[place, row] = firsts[creditor] + entry
        self._plans = _Plans(names, spans, asked, parts)
        return self._plans

    def _links(self, plans: _Plans) -> list[CreditorLink] | None:
        """In the order of the plans; None unless all are there and can post them."""
        links = []
        for creditor, asked in plans.asked.items():
            try:
                link = self._peers.creditor(creditor)
            except LinkError:
                return None
            if not link.may_post(asked.plan):
                return None
            links.append(link)
        return links
