"""Pulls of few rBlocks out of memory that is mapped here, by the thread that has the command: to copy and verify some
hundred kilobytes takes less time than another thread takes to wake, beside steps that have the core and its caches."""

from __future__ import annotations

from distkv.actors.worker.links.peer_links import PeerLinks
from distkv.actors.worker.pulls.batch import checks
from distkv.actors.worker.pulls.pull_job import Ends
from distkv.actors.worker.pulls.pull_queue import Count
from distkv.checksums import pack
from distkv.engine.attention.spans import SpanRegistry
from distkv.errors import LinkError, WireError
from distkv.wire.links import Pool, TensorLink
from distkv.wire.links.memory.pool_memory import slots_problem
from distkv.wire.messages.from_worker import Pulled
from distkv.wire.messages.to_worker import Pull

MOST_BYTES = 2**20
"""Of a pull or of slots to be checksummed: no command that follows waits for more than about as many microseconds as
kilobytes."""


def most_blocks(pool: Pool) -> int:
    """rBlocks that are worked on at once: none where a device would be waited for."""
    return 0 if pool.mappable is None else MOST_BYTES // pool.slot_bytes


class PullsAtOnce:
    """Used by the thread that reads commands. Only what goes well is done here: whoever pulls after that begins anew,
    and finds what is wrong."""

    def __init__(
        self,
        peers: PeerLinks,
        registry: SpanRegistry,
        pool: Pool,
        ends: Ends,
        count: Count,
    ) -> None:
        self._peers, self._registry, self._pool, self._ends, self._count = peers, registry, pool, ends, count
        self._most_blocks, self._address = most_blocks(pool), pool.region.address

    def pull(self, pull: Pull, cause: str) -> bool:
        """Do it and say so, while nobody else pulls from that source; False, with nothing said, where it is too much,
        there is no link yet, the source's memory is not mapped, or anything is wrong."""
        if not 0 < len(pull.slots) <= self._most_blocks:
            return False
        link = self._peers.open_source(pull.source_id, pull.source_incarnation)
        if link is None:
            return False
        if pull.span is None:
            return self._read(pull, link, cause)
        with self._registry.pin(pull.span) as slots:
            return slots is not None and self._read(pull, link, cause)

    def _read(self, pull: Pull, link: TensorLink, cause: str) -> bool:
        if not checks(link) or slots_problem(pull.slots, self._pool.num_slots):
            return False
        base, size = self._address, self._pool.slot_bytes
        try:
            found = link.copy_checked(pull.source_slots, [base + slot * size for slot in pull.slots])
        except (LinkError, WireError, ValueError):
            return False
        if found is None or pack(found) != pull.checksums:
            return False
        self._count(len(pull.slots) * self._pool.slot_bytes, 0)
        self._ends.pulled(Pulled(pull_id=pull.pull_id), cause)
        return True
