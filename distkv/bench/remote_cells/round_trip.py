"""How long queries take to a creditor that has nothing to attend to, and partials back."""

from __future__ import annotations

import torch

from distkv.bench.remote_cells.debtor import Linked
from distkv.bench.workloads.computing.creditor import BLOCK_TOKENS, SPAN
from distkv.engine.device.pool import KvPool
from distkv.engine.model.decoder import Model
from distkv.kernels import AttentionMetadata, BlockTable
from distkv.kernels.exchange import FrameStatus, MergeRun
from distkv.types import Transport
from distkv.wire.messages.common import Member
from distkv.wire.messages.data import AttendEntry, AttendPlan

QUERY_BYTES = 16384


class RoundTrips:
    """Over a link of its own, as steps have one; it ends with `close`."""

    def __init__(self, model: Model, member: Member, transport: Transport) -> None:
        config, heads = model.config, model.heads
        pool = KvPool(config, 1, BLOCK_TOKENS, model.dtype, None, model.device.backend.layout)
        layers = [pool.layer(layer) for layer in range(config.num_layers)]
        exchanges = model.device.backend.exchanges(layers, config.windows, 1.0, heads.queries, model.dtype)
        if exchanges is None:
            raise RuntimeError("there are no native kernels here, and so no direct exchange")
        self._exchanges, self._model = exchanges, model
        self.rows = -(-QUERY_BYTES // (heads.queries * heads.dim * model.dtype.itemsize))
        self._linked = Linked((member,), transport)
        self._creditor = self._linked.creditor(member.instance_id)
        self._q = torch.zeros(self.rows, heads.queries, heads.dim, dtype=model.dtype)
        self._positions = torch.zeros(self.rows, dtype=torch.int64)
        self._steps = 0

    def plan(self) -> list[float]:
        """Seconds of each layer of one plan."""
        model, rows = self._model, self.rows
        self._steps += 1
        entry = AttendEntry(request_id="r", span=SPAN, index=0, num_blocks=0, first_position=0, row=0, num_rows=rows)
        plan = AttendPlan(step_id=self._steps, num_rows=rows, entries=(entry,))
        self._creditor.begin(plan, self._positions, slice(0, rows), [set()])
        num_layers = model.config.num_layers
        asked = self._creditor.asked(num_layers, model.heads.queries, model.heads.dim, model.dtype)
        if asked is None:
            raise RuntimeError("the link to the creditor is broken")
        table = BlockTable((), (), 0, BLOCK_TOKENS)
        metadata = AttentionMetadata((range(rows),), (table,), self._positions)
        exchange = self._exchanges.exchange(metadata, rows, [MergeRun(0, rows, ((1, 0),))], [asked])
        took_s = []
        for layer in range(num_layers):
            (answer,) = exchange(layer, self._q).answers
            if answer.status is not FrameStatus.OK:
                raise RuntimeError(f"no partials came: {answer.status.name}")
            took_s.append(answer.answered_s - answer.asked_s)
        return took_s[1:]

    def close(self) -> None:
        """End the link."""
        self._linked.close()
