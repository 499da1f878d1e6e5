"""One creditor during one step: one plan, then per layer one question and one answer; at most one failure."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from distkv.engine.attention.remote import CreditorLink
from distkv.errors import LinkError
from distkv.kernels import Partial, empty_partial
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

    @property
    def is_open(self) -> bool:
        """Whether there is somebody to ask, and a sequence that still counts."""
        return not self._failed and any(not lost for lost in self.losers)

    @property
    def answer_rows(self) -> int:
        """Rows of an answer: it goes entry by entry."""
        return sum(entry.num_rows for entry in self.plan.entries)

    def first_row(self, entry: int) -> int:
        """Of the answer to one entry."""
        return sum(before.num_rows for before in self.plan.entries[:entry])

    def open(self, positions: Tensor) -> None:
        """Send the plan. positions: int64 [R], of the rows that travel; on the host."""
        try:
            self.link.plan(self.plan, positions)
        except LinkError:
            self._fail()

    def send(self, layer: int, q: Tensor) -> bool:
        """Send the queries of a layer, [R, Hq, D], on the host. True: an answer is to be collected."""
        try:
            self.link.send(layer, q)
        except LinkError:
            self._fail()
        return not self._failed

    def collect(self, layer: int) -> Partial | None:
        """Wait for the answer, on the host; None when there is none, and the sequences are lost."""
        try:
            out, lse, stale = self.link.collect(layer)
        except LinkError:
            self._fail()
            return None
        for index in stale:
            self.losers[index].add(self.creditor_id)
        return out, lse

    def no_answer(self, q: Tensor) -> Partial:
        """What stands for an answer that will not come, where q [N, Hq, D] lies: nothing of it counts."""
        out, lse = empty_partial(self.answer_rows, *q.shape[1:])
        return out.to(q.device), lse.to(q.device)

    def _fail(self) -> None:
        self._failed = True
        for lost in self.losers:
            lost.add(self.creditor_id)
