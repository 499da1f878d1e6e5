"""The tensor link between GPUs of a host: frames by a Unix socket, reads by kernels from the peer's mapped pool."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from distkv.engine.device.device import Device, ThreadStreams
from distkv.engine.device.shared_memory.memory import MappedMemory
from distkv.errors import MalformedMessage
from distkv.wire.links import BlockRead, Part
from distkv.wire.links.memory.addressed import Addressed
from distkv.wire.links.memory.mapped_copy import copy_runs
from distkv.wire.links.memory.pool_memory import slots_problem
from distkv.wire.links.memory.runs import Destination, Runs, runs_of
from distkv.wire.links.streams.frames import FrameSocket
from distkv.wire.links.transports.mapped_read import PIECE_BYTES, Copy, MappedRead
from distkv.wire.links.transports.stream_link import StreamLink


class PeerReads:
    """Copies out of pools of peers, by kernels of the own device. rows: the own pool, uint8 [num_slots, slot_bytes]."""

    def __init__(self, device: Device, rows: Tensor) -> None:
        self._device, self._rows = device, rows
        self._streams = ThreadStreams(device)

    @property
    def num_slots(self) -> int:
        """Of the own pool."""
        return len(self._rows)

    def into_pool(self, peer: MappedMemory, slots: Sequence[int], own_slots: Sequence[int]) -> list[Copy]:
        """The pieces of a read into these slots of the own pool."""
        most = max(1, PIECE_BYTES // self._rows.shape[1])
        cuts = [slice(first, first + most) for first in range(0, len(slots), most)]
        return [partial(self._place, peer, slots[cut], own_slots[cut]) for cut in cuts]

    def into_host(
        self, peer: MappedMemory, num_slots: int, slots: Sequence[int], into: Destination, part: Part | None
    ) -> list[Copy]:
        """The pieces of a read of these slots, or that part of each, of a pool of so many, into memory of the host."""
        first_byte, size = part or (0, self._rows.shape[1])
        runs = runs_of(range(len(slots)), size, into)
        copies: list[Copy] = []
        for piece in runs.pieces(max(1, PIECE_BYTES // size) * size):
            first = int(piece.remote[0])
            wanted = slots[first // size : (first + piece.num_bytes) // size]
            staged = Runs(piece.remote - first, piece.local, piece.sizes, piece.memory)
            copies.append(partial(self._fetch, peer, num_slots, wanted, (first_byte, size), staged))
        return copies

    def bytes_at(self, peer: MappedMemory, first: int, count: int) -> bytes:
        """These bytes of it, read as rBlocks are. Raises ValueError once it is closed."""
        with peer.in_use() as memory, self._streams.current():
            (host,) = self._device.to_host(self._gathered(memory[first : first + count].view(1, count), [0])).wait()
        return bytes(host.numpy().data)

    def _place(self, peer: MappedMemory, slots: Sequence[int], own_slots: Sequence[int]) -> None:
        device, rows = self._device, self._rows
        with peer.in_use() as memory, self._streams.current():
            source = memory[: memory.nbytes // rows.shape[1] * rows.shape[1]].view(-1, rows.shape[1])
            from_there, to_here = device.to_device(_index(slots), _index(own_slots))
            device.backend.copy_blocks(source, from_there, rows, to_here)
            device.synchronize()

    def _fetch(self, peer: MappedMemory, num_slots: int, slots: Sequence[int], part: Part, staged: Runs) -> None:
        first_byte, size = part
        with peer.in_use() as memory, self._streams.current():
            rows = memory[: num_slots * self._rows.shape[1]].view(num_slots, -1)[:, first_byte : first_byte + size]
            (host,) = self._device.to_host(self._gathered(rows, slots)).wait()
        copy_runs(Addressed(host.view(-1).numpy().data), staged)

    def _gathered(self, rows: Tensor, slots: Sequence[int]) -> Tensor:
        (index,) = self._device.to_device(_index(slots))
        return self._device.backend.gather_blocks(rows, index)


class MappedLink(StreamLink):
    """A TensorLink that reads without the peer, also while that is stopped. Kernels of a read run in calls of who waits
    for it, and are done when these return; so none reads what is not mapped any more, or writes late."""

    def __init__(
        self,
        frames: FrameSocket,
        slot_bytes: int,
        num_slots: int,
        transport: str,
        peer: MappedMemory,
        reads: PeerReads,
    ) -> None:
        """peer: the memory that its pool begins; the link's own, unmapped with its end."""
        super().__init__(frames, slot_bytes, num_slots, transport)
        self._memory, self._copies = peer, reads

    def read_blocks(self, slots: Sequence[int], into: Destination, part: Part | None = None) -> BlockRead:
        self._check_read(slots, into, part)
        self._frames.check_alive()
        return MappedRead(self._copies.into_host(self._memory, self.num_slots, slots, into, part), self._frames)

    def read_into_pool(self, slots: Sequence[int], own_slots: Sequence[int]) -> BlockRead | None:
        """See PlacingLink."""
        if problem := slots_problem(slots, self.num_slots) or slots_problem(own_slots, self._copies.num_slots):
            raise MalformedMessage(problem)
        self._frames.check_alive()
        return MappedRead(self._copies.into_pool(self._memory, slots, own_slots), self._frames)

    def close(self) -> None:
        super().close()
        self._memory.close()

    def abort(self) -> None:
        super().abort()
        self._memory.close()


def _index(slots: Sequence[int]) -> Tensor:
    return torch.tensor(slots, dtype=torch.int64)
