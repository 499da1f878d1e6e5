"""One creditor during one step: one plan, then per layer one question and one answer; at most one failure."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from distkv.engine.remote import CreditorLink
from distkv.errors import LinkError
from distkv.kernels import Partial
from distkv.wire.messages.data import AttendPlan


@dataclass(slots=True)
class Exchange:
    """Asks a creditor for the sequences of a batch that have spans there.

    rows: which rows of the batch travel, a slice where they follow each other. losers: per entry of the plan, the
    `lost` set of its sequence, into which the creditor's id goes when the entry is stale or the link fails.
    """

    creditor_id: str
    link: CreditorLink
    plan: AttendPlan
    rows: slice | Tensor
    losers: list[set[str]]
    _failed: bool = False
    _answer: list[Partial] = field(default_factory=list)

    @property
    def is_open(self) -> bool:
        """Whether there is somebody to ask, and a sequence that still counts."""
        return not self._failed and any(not lost for lost in self.losers)

    def open(self, positions: Tensor) -> None:
        """Send the plan. positions: int64 [N], of all rows of the batch."""
        try:
            self.link.plan(self.plan, positions[self.rows])
        except LinkError:
            self._fail()

    def send(self, layer: int, q: Tensor) -> bool:
        """Send the queries of a layer; q [N, Hq, D]: all rows of the batch. True: an answer is to be collected."""
        if not self.is_open:
            return False
        try:
            self.link.send(layer, q[self.rows])
        except LinkError:
            self._fail()
        return not self._failed

    def collect(self, layer: int) -> None:
        """Wait for the answer; `partial` then has it."""
        try:
            out, lse, stale = self.link.collect(layer)
        except LinkError:
            self._fail()
            return
        for index in stale:
            self.losers[index].add(self.creditor_id)
        sizes = [entry.num_rows for entry in self.plan.entries]
        self._answer = list(zip(torch.split(out, sizes), torch.split(lse, sizes), strict=True))

    def partial(self, entry: int) -> Partial:
        """The layer's partial of one entry."""
        return self._answer[entry]

    def _fail(self) -> None:
        self._failed = True
        for lost in self.losers:
            lost.add(self.creditor_id)
