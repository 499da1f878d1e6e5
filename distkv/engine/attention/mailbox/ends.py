"""One end of a mailbox: where its lanes lie in memory that both ends reach, and what its own device keeps of it."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from distkv.engine.device.device import Device
from distkv.kernels.mailbox import Lane, MailStatus

LINE_BYTES = 128


class SharedMemory(Protocol):
    """See distkv.wire.links.memory.mailbox_memory."""

    view: memoryview
    query_bytes: int
    partial_bytes: int

    @property
    def queries_flag_at(self) -> int: ...

    @property
    def partials_flag_at(self) -> int: ...

    @property
    def halt_at(self) -> int: ...

    @property
    def queries_at(self) -> int: ...

    @property
    def partials_at(self) -> int: ...

    def halt(self) -> None: ...


class Outcome(NamedTuple):
    """What became of an end's mail, and in all so far, where the device has a clock: how long it has waited, and, at a
    creditor, computed between queries and partials."""

    status: MailStatus
    waited_s: float
    computed_s: float


class MailboxEnd:
    """The debtor's end or the creditor's. queries, partials: its lanes, good while this object lives. Made inside a
    stream of the device; used by one thread, but for `halt`.

    The memory is the device's to reach until this object is gone, so keep it until the device has done all that was
    launched.
    """

    def __init__(self, memory: SharedMemory, shared: Tensor, device: Device) -> None:
        """shared: the memory as the device reaches it, see Device.share."""
        self._memory, self._shared, self._device = memory, shared, device
        # Of this end's, and as far apart as what different programs write should be.
        (own,) = device.to_device(torch.zeros(4 * LINE_BYTES, dtype=torch.uint8))
        self._status, self._times = own[:8].view(torch.int64), own[3 * LINE_BYTES :][:16].view(torch.int64)

        def lane(flag_at: int, body_at: int, num_bytes: int, done_at: int) -> Lane:
            return Lane(
                flag=shared[flag_at : flag_at + 8].view(torch.int64),
                halt=shared[memory.halt_at : memory.halt_at + 8].view(torch.int64),
                body=shared[body_at : body_at + num_bytes].view(torch.int32),
                status=self._status,
                done=own[done_at : done_at + 4].view(torch.int32),
                times=self._times,
            )

        self.queries = lane(memory.queries_flag_at, memory.queries_at, memory.query_bytes, LINE_BYTES)
        self.partials = lane(memory.partials_flag_at, memory.partials_at, memory.partial_bytes, 2 * LINE_BYTES)

    def halt(self) -> None:
        """See MailboxMemory: from any thread."""
        self._memory.halt()

    def outcome(self) -> Outcome:
        """Of all that was launched in this stream, once it is done."""
        status, times = self._device.to_host(self._status, self._times).wait()
        waited_ns, computed_ns = times.tolist()
        return Outcome(MailStatus(int(status)), waited_ns / 1e9, computed_ns / 1e9)


def warm_up_mail(device: Device, heads: int, dim: int, dtype: torch.dtype) -> None:
    """Post and take once what mailboxes carry, inside a stream: a kernel that is loaded while another one waits for
    mail may have to wait for that first. heads, dim, dtype: of queries."""
    word, count = (torch.zeros(1, dtype=one, device=device.place) for one in (torch.int64, torch.int32))
    body = torch.zeros(heads * (dim + 1), dtype=torch.int32, device=device.place)
    lane = Lane(word.clone(), word.clone(), body, word, count, word.repeat(2))
    query = torch.zeros(heads, dim, dtype=dtype, device=device.place)
    partial = torch.zeros(heads, dim, device=device.place), torch.zeros(heads, device=device.place)
    for number, tensors in enumerate([(query,), partial], 1):
        device.backend.post(lane, number, *tensors)
        device.backend.take(lane, number, *tensors, limit_s=1.0)
