"""The worker's transfers: checksums rBlocks, pulls them from peers and verifies them (004 §4.1).

They run beside the steps: rBlocks leave and arrive while the next chunk is being computed. What is small and waits for
nobody is done by the thread that has the command. Else one thread computes checksums, and each source is pulled from in
a thread of its own, many pulls at once. Whoever has a result sends it.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from distkv.actors.worker.links.peer_links import PeerLinks
from distkv.actors.worker.pulls.at_once import PullsAtOnce, most_blocks
from distkv.actors.worker.pulls.batch import checksums_of_slots
from distkv.actors.worker.pulls.pull_job import PullJob
from distkv.actors.worker.pulls.pull_queue import PullQueue
from distkv.actors.worker.pulls.source_threads import SourceThreads
from distkv.checksums import pack
from distkv.engine.attention.spans import SpanRegistry
from distkv.wire.links import Pool
from distkv.wire.messages.common import clipped
from distkv.wire.messages.counters import Counters
from distkv.wire.messages.envelope import Envelope, ToWorker
from distkv.wire.messages.from_worker import Checksummed, Linked, Pulled, Revoked
from distkv.wire.messages.to_worker import Checksum, Link, Pull
from distkv.wire.worker_pipe import WorkerEnd


class Transfers:
    """`run` is the thread that computes checksums, `put` is for the one that reads commands; the other methods may be
    called from any."""

    def __init__(
        self, results: WorkerEnd, peers: PeerLinks, registry: SpanRegistry, memory: Pool, read_timeout_s: float
    ) -> None:
        self.counters = Counters()
        self._results = results
        self._peers = peers
        self._memory = memory
        self._most_blocks = most_blocks(memory)
        self._lock = threading.Lock()
        self._pulls = SourceThreads[PullJob](
            lambda: PullQueue(peers, registry, memory, read_timeout_s, self, self._count, self._queue.put)
        )
        self._at_once = PullsAtOnce(peers, registry, memory, self, self._count)
        self._queue: queue.SimpleQueue[Envelope[ToWorker] | BaseException] = queue.SimpleQueue()

    def put(self, envelope: Envelope[ToWorker]) -> None:
        """Carry out a Checksum, a Pull or a Link, or queue it."""
        match envelope.body:
            case Pull() as pull:
                if self._pulls.is_busy(pull.source_id) or not self._at_once.pull(pull, envelope.id):
                    self._pull(PullJob(pull, envelope.id))
            case Checksum() as wanted if len(wanted.slots) <= self._most_blocks:
                self._checksum(wanted, envelope.id)
            case Link(instance_id=peer, incarnation=incarnation):
                self._peers.prepare(peer, incarnation, self._link_reporter(peer, incarnation, envelope.id))
            case _:
                self._queue.put(envelope)

    def _pull(self, job: PullJob) -> None:
        try:
            self._pulls.put(job.pull.source_id, job)
        except RuntimeError as error:
            job.fail(str(error))
            job.end(self)

    def pulled(self, pulled: Pulled, cause: str) -> None:
        """See Ends."""
        self._results.send(pulled, cause)

    def reporter(self, revoked: Revoked, cause: str) -> Callable[[], None]:
        """What to call when the last reader is done: `revoked` is then sent, after the ends of all pulls before."""
        return lambda: self._results.send(revoked, cause)

    def run(self) -> None:
        """Work off the queue for ever. Raises what a pull failed of, if that was no fault of its source."""
        while True:
            item = self._queue.get()
            if isinstance(item, BaseException):
                raise item
            match item.body:
                case Checksum() as wanted:
                    self._checksum(wanted, item.id)
                case other:
                    raise AssertionError(f"{type(other).__name__} is no transfer")

    def _checksum(self, wanted: Checksum, cause: str) -> None:
        checksums = pack(checksums_of_slots(self._memory, wanted.slots))
        self._results.send(Checksummed(checksum_id=wanted.checksum_id, checksums=checksums), cause)

    def _count(self, num_bytes: int, refused: int) -> None:
        with self._lock:
            self.counters.kv_bytes += num_bytes
            self.counters.checksum_refusals += refused

    def _link_reporter(self, peer: str, incarnation: int, cause: str) -> Callable[[str], None]:
        def report(problem: str) -> None:
            self._results.send(Linked(instance_id=peer, incarnation=incarnation, problem=clipped(problem)), cause)

        return report
