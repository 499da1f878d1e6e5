"""The worker's transfers: checksums rBlocks, pulls them from peers and verifies them (004 §4.1).

They run beside the steps: rBlocks leave and arrive while the next chunk is being computed. One thread computes
checksums and sends all results, so that they leave in the order in which they came about; each source is pulled from
in a thread of its own.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator

import structlog
import xxhash

from distkv.actors.worker.peer_links import PeerLinks
from distkv.actors.worker.source_threads import SourceThreads
from distkv.engine.attention.spans import SpanRegistry
from distkv.errors import LinkError, WireError
from distkv.log import about
from distkv.wire.links import Pool
from distkv.wire.messages.common import clipped
from distkv.wire.messages.counters import Counters
from distkv.wire.messages.envelope import Envelope, ToWorker
from distkv.wire.messages.from_worker import Checksummed, Linked, Pulled, Revoked
from distkv.wire.messages.to_worker import Checksum, Link, Pull
from distkv.wire.worker_pipe import ResultWriter


class Transfers:
    """`run` is the thread that sends results; the other methods may be called from any."""

    def __init__(
        self, pipe_address: str, peers: PeerLinks, registry: SpanRegistry, memory: Pool, read_timeout_s: float
    ) -> None:
        self.counters = Counters()
        self._pipe_address = pipe_address
        self._peers = peers
        self._registry = registry
        self._memory = memory
        self._read_timeout_s = read_timeout_s
        self._lock = threading.Lock()
        self._pulls = SourceThreads[tuple[Pull, str]](self._pull)
        self._queue: queue.SimpleQueue[Envelope[ToWorker] | tuple[Pulled | Revoked | Linked, str] | BaseException]
        self._queue = queue.SimpleQueue()

    def put(self, envelope: Envelope[ToWorker]) -> None:
        """Queue a Checksum, a Pull or a Link."""
        match envelope.body:
            case Pull() as pull:
                self._pulls.put(pull.source_id, (pull, envelope.id))
            case Link(instance_id=peer, incarnation=incarnation):
                self._peers.prepare(peer, incarnation, self._link_reporter(peer, incarnation, envelope.id))
            case _:
                self._queue.put(envelope)

    def reporter(self, revoked: Revoked, cause: str) -> Callable[[], None]:
        """What to call when the last reader is done: `revoked` is then sent, after the ends of all pulls before."""
        return lambda: self._queue.put((revoked, cause))

    def run(self) -> None:
        """Work off the queue for ever. Raises what a pull failed of, if that was no fault of its source."""
        with ResultWriter(self._pipe_address) as results:
            while True:
                item = self._queue.get()
                if isinstance(item, BaseException):
                    raise item
                if isinstance(item, tuple):
                    results.send(*item)
                    continue
                with about(cause=item.id):
                    match item.body:
                        case Checksum() as wanted:
                            checksums = tuple(self._checksums(wanted.slots))
                            results.send(Checksummed(checksum_id=wanted.checksum_id, checksums=checksums), item.id)
                        case other:
                            raise AssertionError(f"{type(other).__name__} is no transfer")

    def _link_reporter(self, peer: str, incarnation: int, cause: str) -> Callable[[str], None]:
        def report(problem: str) -> None:
            self._queue.put((Linked(instance_id=peer, incarnation=incarnation, problem=clipped(problem)), cause))

        return report

    def _pull(self, job: tuple[Pull, str]) -> None:
        """Read the blocks into the own pool, in the source's thread."""
        pull, cause = job
        try:
            with about(cause=cause):
                if pull.span is None:
                    self._queue.put((self._read(pull), cause))
                    return
                with self._registry.pin(pull.span) as slots:
                    gone = Pulled(pull_id=pull.pull_id, problem="the span is gone")
                    # Within the pin: `Revoked` comes after it.
                    self._queue.put((gone if slots is None else self._read(pull), cause))
        except BaseException as error:
            self._queue.put(error)

    def _read(self, pull: Pull) -> Pulled:
        """The blocks count only when every one of them matches its checksum."""
        wrong = 0
        try:
            link = self._peers.source(pull.source_id, pull.source_incarnation)
            for part in self._batches(len(pull.slots)):
                with self._memory.writing(pull.slots[part]) as views:
                    link.read(pull.source_slots[part], views, self._read_timeout_s)
                    found = self._sums(views)
                wrong += sum(sum_ != expected for sum_, expected in zip(found, pull.checksums[part], strict=True))
        except (LinkError, WireError) as error:
            self._peers.drop_source(pull.source_id)
            return Pulled(pull_id=pull.pull_id, problem=clipped(str(error)))
        with self._lock:
            self.counters.kv_bytes += len(pull.slots) * self._memory.slot_bytes
            self.counters.checksum_refusals += wrong
        if wrong:
            structlog.get_logger().error("checksums do not match", source=pull.source_id, blocks=wrong)
            return Pulled(pull_id=pull.pull_id, problem=f"{wrong} of {len(pull.slots)} checksums do not match")
        return Pulled(pull_id=pull.pull_id)

    def _checksums(self, slots: tuple[int, ...]) -> Iterator[int]:
        for part in self._batches(len(slots)):
            with self._memory.reading(slots[part]) as views:
                yield from self._sums(views)

    def _sums(self, views: list[memoryview]) -> list[int]:
        """xxh3 of each slot in views of whole slots."""
        size = self._memory.slot_bytes
        return [
            xxhash.xxh3_64_intdigest(view[start : start + size])
            for view in views
            for start in range(0, view.nbytes, size)
        ]

    def _batches(self, num_slots: int) -> Iterator[slice]:
        step = self._memory.batch_slots
        return (slice(first, first + step) for first in range(0, num_slots, step))
