"""The worker's transfer thread: seals rBlocks, pulls them from peers and verifies them (004 §4.1).

It runs beside the steps: rBlocks leave and arrive while the next chunk is being computed.
"""

from __future__ import annotations

import queue
from collections.abc import Callable

import structlog
import xxhash

from distkv.actors.peer_links import PeerLinks
from distkv.engine.serve import SpanRegistry
from distkv.errors import LinkError, WireError
from distkv.log import about
from distkv.wire.links import PoolMemory
from distkv.wire.messages.common import SpanRef
from distkv.wire.messages.envelope import Envelope
from distkv.wire.messages.from_worker import Pulled, Revoked, Sealed
from distkv.wire.messages.to_worker import Pull, Seal
from distkv.wire.worker_pipe import ResultWriter


class Transfers:
    """`run` is the thread; the other methods may be called from any."""

    def __init__(
        self, pipe_address: str, peers: PeerLinks, registry: SpanRegistry, memory: PoolMemory, read_timeout_s: float
    ) -> None:
        self.kv_bytes = 0
        self.checksum_refusals = 0
        self._pipe_address = pipe_address
        self._peers = peers
        self._registry = registry
        self._memory = memory
        self._read_timeout_s = read_timeout_s
        self._queue: queue.SimpleQueue[Envelope | tuple[SpanRef, str]] = queue.SimpleQueue()

    def put(self, envelope: Envelope) -> None:
        """Queue a Seal or a Pull."""
        self._queue.put(envelope)

    def reporter(self, span: SpanRef, cause: str) -> Callable[[], None]:
        """What to call when a span's last reader is done: `Revoked` is then sent by this thread."""
        return lambda: self._queue.put((span, cause))

    def run(self) -> None:
        """Work off the queue for ever."""
        with ResultWriter(self._pipe_address) as results:
            while True:
                item = self._queue.get()
                if isinstance(item, tuple):
                    span, cause = item
                    results.send(Revoked(span=span), cause)
                    continue
                with about(cause=item.id):
                    match item.body:
                        case Seal() as seal:
                            checksums = tuple(self._checksum(slot) for slot in seal.slots)
                            results.send(Sealed(seal_id=seal.seal_id, checksums=checksums), item.id)
                        case Pull() as pull:
                            results.send(self._pull(pull), item.id)
                        case other:
                            raise AssertionError(f"{type(other).__name__} is no transfer")

    def _pull(self, pull: Pull) -> Pulled:
        """Read the blocks into the own pool. They count only when every one of them matches its checksum."""
        if pull.span is None:
            return self._read(pull)
        with self._registry.pin(pull.span) as slots:
            if slots is None:
                return Pulled(pull_id=pull.pull_id, problem="the span is gone")
            return self._read(pull)

    def _read(self, pull: Pull) -> Pulled:
        try:
            link = self._peers.source(pull.source_id, pull.source_incarnation)
            link.read(pull.source_slots, self._views(pull.slots), self._read_timeout_s)
        except (LinkError, WireError) as error:
            self._peers.drop_source(pull.source_id)
            return Pulled(pull_id=pull.pull_id, problem=str(error))
        self.kv_bytes += len(pull.slots) * self._memory.slot_bytes
        wrong = [slot for slot, sum_ in zip(pull.slots, pull.checksums, strict=True) if self._checksum(slot) != sum_]
        if wrong:
            self.checksum_refusals += len(wrong)
            structlog.get_logger().error("checksums do not match", source=pull.source_id, blocks=len(wrong))
            return Pulled(pull_id=pull.pull_id, problem=f"{len(wrong)} of {len(pull.slots)} checksums do not match")
        return Pulled(pull_id=pull.pull_id)

    def _checksum(self, slot: int) -> int:
        size = self._memory.slot_bytes
        return xxhash.xxh3_64_intdigest(self._memory.view[slot * size : (slot + 1) * size])

    def _views(self, slots: tuple[int, ...]) -> list[memoryview]:
        """One view per run of neighbouring slots, so that a read of a run is one copy."""
        size = self._memory.slot_bytes
        views: list[memoryview] = []
        first = 0
        for index in range(1, len(slots) + 1):
            if index == len(slots) or slots[index] != slots[index - 1] + 1:
                views.append(self._memory.view[slots[first] * size : (slots[index - 1] + 1) * size])
                first = index
        return views
