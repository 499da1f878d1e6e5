"""A debtor's side: queries are posted by its device, and partials taken where the merge reads them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from distkv.engine.attention.mailbox.ends import MailboxEnd, SharedMemory
from distkv.engine.attention.merging import Rows
from distkv.engine.device.device import Device
from distkv.kernels import Partial
from distkv.kernels.mail_table import addresses
from distkv.kernels.mailbox import MailStatus
from distkv.wire.messages.data import AttendEntry, AttendPlan

MAX_ROWS = 256
"""Of decodes in a plan; chunks of prompts travel by frames."""
MAX_BYTES = 16 * 2**20


class Posting:
    """What a CreditorLink posts by. Of one link, and of the thread that computes steps.

    A plan gets numbers for its layers that were never used on this mailbox, so what is late of an earlier one is never
    taken for it.
    """

    def __init__(
        self,
        memory: SharedMemory,
        shared: Tensor,
        device: Device,
        num_layers: int,
        heads: int,
        dim: int,
        dtype: torch.dtype,
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        """shared: see MailboxEnd. heads, dim, dtype: of queries. on_failure: called when a device waited in vain, or
        found what it did not wait for. Inside a stream of the device."""
        self._on_failure = on_failure
        self._end, self._device = MailboxEnd(memory, shared, device), device
        self._addresses = addresses(self._end.queries, self._end.partials)
        self._num_layers, self._heads, self._dim, self._dtype = num_layers, heads, dim, dtype
        self._query_bytes, self._partial_bytes = memory.query_bytes, memory.partial_bytes
        self._next, self._first = 1, 0
        self._rows: Rows = slice(0, 0)
        self._limit_s = self._waited_s = 0.0
        self._partial: Partial | None = None
        self._known: tuple[tuple[AttendEntry, ...], int] = ((), 0)
        self._takes_known = True

    def takes(self, plan: AttendPlan) -> bool:
        """Whether it is of decodes, and there is room for it."""
        entries, num_rows = self._known
        if plan.entries is not entries or plan.num_rows != num_rows:
            query_bytes = plan.num_rows * self._heads * self._dim * self._dtype.itemsize
            has_room = query_bytes <= self._query_bytes and self.partial_bytes(len(plan.entries)) <= self._partial_bytes
            self._takes_known = has_room and all(entry.num_rows <= 1 for entry in plan.entries)
            self._known = plan.entries, plan.num_rows
        return self._takes_known

    def begin(self, plan: AttendPlan, rows: Rows, limit_s: float) -> int:
        """The number of the first layer of a plan of decodes; 0 if it is to be sent by frames. rows: of the microbatch,
        those that the plan sends. limit_s: for which a layer's partials are waited for."""
        if not self.takes(plan):
            return 0
        self._rows, self._limit_s = rows, limit_s
        partial_rows = len(plan.entries)
        if self._partial is None or len(self._partial[0]) != partial_rows:
            place = self._device.place
            self._partial = (
                torch.zeros(partial_rows, self._heads, self._dim, dtype=torch.float32, device=place),
                torch.zeros(partial_rows, self._heads, dtype=torch.float32, device=place),
            )
        self._first = self._next
        self._next += self._num_layers
        return self._first

    def post(self, layer: int, q: Tensor) -> None:
        """The queries of a layer, [N, Hq, D] of all rows of the microbatch."""
        self._device.backend.post(self._end.queries, self._first + layer, q[self._rows].contiguous())

    def take(self, layer: int) -> Partial:
        """The partials of a layer, entry by entry, on the device, until the next layer's are taken: out float32
        [ΣR, Hq, D], lse float32 [ΣR, Hq]. If none come they are those of a layer before; `outcome` says so."""
        assert self._partial is not None
        self._device.backend.take(self._end.partials, self._first + layer, *self._partial, limit_s=self._limit_s)
        return self._partial

    def fields(self, plan: AttendPlan, first_partial: int) -> list[int]:
        """Of the plan that was begun, for a captured step, in place of `post` and `take`: see MailField. first_partial:
        where its partials go."""
        limit_ns = int(self._limit_s * 1e9)
        return [*self._addresses, self._first, plan.num_rows, len(plan.entries), first_partial, limit_ns]

    def partial_bytes(self, rows: int) -> int:
        """Of the partials of a layer."""
        return rows * self._heads * (self._dim + 1) * 4

    def halt(self) -> None:
        """Nothing will be posted or taken any more: the creditor need not wait. From any thread."""
        self._end.halt()

    def outcome(self) -> tuple[MailStatus, float]:
        """Of the layers of the plan, once the device has done them, and the seconds that it stood still for partials: 0
        where it has no clock."""
        outcome, before_s = self._end.outcome(), self._waited_s
        self._waited_s = outcome.waited_s
        if outcome.status in (MailStatus.LATE, MailStatus.SPOILT):
            self._on_failure()
        return outcome.status, outcome.waited_s - before_s


def mailbox_bytes(heads: int, dim: int, dtype: torch.dtype) -> tuple[int, int]:
    """Bytes of queries and of partials that a mailbox of such a model should have room for."""
    row, partial = heads * dim * dtype.itemsize, heads * (dim + 1) * 4
    rows = max(1, min(MAX_ROWS, MAX_BYTES // (row + partial)))
    return rows * row, rows * partial
