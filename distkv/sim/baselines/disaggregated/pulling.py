"""Where it is to decode, a request's keys and values are read from where its prompt was computed.

It waits at an instance that decodes until that has memory for it and reads its keys and values over the link, once (a
pull, as in 004 §4.3); until they have arrived, they fill memory where they came from. Who is preempted where it decodes
is computed again there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from distkv.sim.baselines.batching.instance import BatchingInstance
from distkv.sim.baselines.batching.served import Served
from distkv.sim.baselines.cluster import NO_INSTANCE, BaselineCluster
from distkv.sim.baselines.disaggregated.divided import Divided


@dataclass(slots=True, eq=False)
class Read:
    """Of the keys and values of one request, under way."""

    source: BatchingInstance
    target: BatchingInstance


class Pulling:
    """prefills: instances that compute prompts."""

    def __init__(self, prefills: int, cluster: BaselineCluster) -> None:
        self.divided = Divided(prefills, cluster)
        self._cluster = cluster
        self._left_at: dict[Served, BatchingInstance] = {}
        self._reads: dict[Served, Read] = {}
        for instance in self.divided.prefilling:
            instance.prefilled = partial(self._prefilled, instance)

    def choose(self, one: Served) -> BatchingInstance | None:
        """Where least is to be computed."""
        return self.divided.least_to_compute()

    def lost(self, instance: BatchingInstance, held: Sequence[Served]) -> Iterable[Served]:
        """Who had nothing elsewhere. What is still where its prompt was computed is read by another instance; what was
        there and nowhere else is computed again where it is to decode."""
        for one in [one for one, source in self._left_at.items() if source is instance]:
            del self._left_at[one]
            one.computed = 0
            self._cluster[one.at].elsewhere.pop(one, None)
        for one, read in [(one, read) for one, read in self._reads.items() if instance in (read.source, read.target)]:
            del self._reads[one]
            self._interrupted(one, read)
        kept = [one for one in held if one in self._left_at]
        for one in kept:
            self._send_on(one, self._left_at[one])
        return [one for one in held if one not in kept]

    def _interrupted(self, one: Served, read: Read) -> None:
        if read.source.alive:
            self._send_on(one, read.source)
        else:
            one.computed = 0
            read.target.release(one)
            if not one.is_over:
                read.target.queue.put_back(one)
                read.target.wake()

    def drop(self, one: Served) -> None:
        """A request is over before its end; one that is being read is over when it arrives."""
        self._cluster[one.at].drop(one)
        if (source := self._left_at.pop(one, None)) is not None:
            source.release(one)

    def _prefilled(self, source: BatchingInstance, one: Served) -> None:
        """It goes on elsewhere, as soon as there is memory."""
        if one.is_over:
            return
        source.take_out(one)
        self.divided.passage(one).computed_s = self._cluster.agenda.now()
        self._send_on(one, source)

    def _send_on(self, one: Served, source: BatchingInstance) -> None:
        """To an instance that decodes, which reads it from where it lies."""
        for instance in self.divided.decoding:
            instance.settle()
        target = self._cluster.dispatched(one, self.divided.near(source))
        if one.is_over or target is None:
            self._left_at.pop(one, None)
            source.release(one)
            if not one.is_over:
                self._cluster.end(one, NO_INSTANCE)
            return
        self._left_at[one] = source
        target.elsewhere[one] = partial(self._read, one, source, target)
        self._cluster.send(one, target, 2)

    def _read(self, one: Served, source: BatchingInstance, target: BatchingInstance) -> None:
        del self._left_at[one]
        cluster, blocks = self._cluster, source.blocks_for(one.computed)
        num_bytes = blocks * cluster.block_bytes
        read = self._reads[one] = Read(source, target)
        passage = self.divided.passage(one)
        passage.granted_s = cluster.agenda.now()

        def arrived() -> None:
            if self._reads.get(one) is not read:
                return  # one of the two has died
            del self._reads[one]
            target.counters.moved_blocks += blocks
            target.counters.kv_bytes += num_bytes
            passage.here_s = cluster.agenda.now()
            target.arrived(one)
            source.release(one)

        cluster.links.read(target.name, source.name, num_bytes, arrived)
