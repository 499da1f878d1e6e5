"""DistAttention (000 §4.2, 001 §4): the request's instance has some of its rBlocks, creditors have the rest. Queries go
to them, partials come back."""

from __future__ import annotations

import time
from collections.abc import Sequence

from distkv.bench.remote_cells.debtor import Linked
from distkv.bench.split_attention.split import BLOCK_TOKENS, DTYPE, Share, Split
from distkv.bench.split_attention.ways import OUT_DTYPES, Link, empty_outputs
from distkv.bench.workloads.computing.creditor import SPAN
from distkv.kernels import Backend
from distkv.kernels.exchange import MergeRun
from distkv.wire.messages.common import Member
from distkv.wire.messages.data import AttendEntry, AttendPlan


class Debtor:
    """A Way of the process that has the first share; creditors serve as workers do."""

    def __init__(self, split: Split, share: Share, backend: Backend, creditors: Sequence[Member], link: Link) -> None:
        """creditors: that have the shares behind the first, in order."""
        config = share.config
        layers = [share.pool.layer(layer) for layer in range(split.layers)]
        exchanges = backend.exchanges(layers, config.windows, config.scale, split.heads, DTYPE)
        if exchanges is None:
            raise RuntimeError("there are no native kernels here, and so no direct exchange")
        self._split, self._share, self._exchanges = split, share, exchanges
        self._linked = Linked(creditors, "shm" if link == "host" else "tcp", OUT_DTYPES[link])
        self._links = [self._linked.creditor(member.instance_id) for member in creditors]
        self._queries, self._steps = split.queries(), 0
        self.outputs = empty_outputs(split.layers, split.rows, split.heads, split.dim)
        self.sent_bytes = 0

    def step(self, layers: int) -> float:
        """See Way."""
        split, rows = self._split, self._split.rows
        positions = split.positions(rows)
        self._steps += 1
        before_bytes = self._linked.counters.query_bytes
        started_s = time.perf_counter()
        asked = []
        for creditor, link in enumerate(self._links, 1):
            blocks = split.blocks_of(creditor)
            entry = AttendEntry(
                request_id="r",
                span=SPAN,
                index=0,
                num_blocks=len(blocks),
                first_position=blocks.start * BLOCK_TOKENS,
                row=0,
                num_rows=rows,
            )
            plan = AttendPlan(step_id=self._steps, num_rows=rows, entries=(entry,))
            link.begin(plan, positions, slice(0, rows), [set()])
            one = link.asked(split.layers, split.heads, split.dim, DTYPE)
            if one is None:
                raise RuntimeError("the link to a creditor is broken")
            asked.append(one)
        run = MergeRun(0, rows, tuple((source, 0) for source in range(split.processes)))
        exchange = self._exchanges.exchange(self._share.metadata, rows, [run], asked)
        for layer in range(layers):
            q = self._queries[layer]
            done = exchange(layer, q)
            for link, answer in zip(self._links, done.answers, strict=True):
                link.answered(layer, answer)
            if done.merged is None:
                raise RuntimeError(f"no partials came: {[answer.status.name for answer in done.answers]}")
            self.outputs[layer] = done.merged
        took_s = time.perf_counter() - started_s
        self.sent_bytes = self._linked.counters.query_bytes - before_bytes
        return took_s
