"""Some instances compute prompts, the others decode (DistServe, OSDI 2024; Splitwise, ISCA 2024).

A request gets its first token where its prompt is computed. Then it waits at an instance that decodes until that has
memory for it, which reads its keys and values over the link, once (a pull, as in 004 §4.3); until they have arrived,
they fill memory where they came from. Who is preempted there is computed again there.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from distkv.sim.baselines.batching.instance import BatchingInstance
from distkv.sim.baselines.batching.served import Served
from distkv.sim.baselines.cluster import BaselineCluster
from distkv.sim.baselines.dispatch import dispatched

SHARES = (1 / 8, 1 / 4, 1 / 2, 3 / 4)
"""Of the instances, that compute prompts: what is tried when nobody says how many."""


def splits(instances: int) -> list[int]:
    """How many instances might compute prompts; at least one does, and one decodes."""
    return sorted({max(1, min(instances - 1, round(share * instances))) for share in SHARES})


class PrefillDecode:
    """The first of `prefills` of N instances is i0; they are spread, so that hosts have both kinds."""

    def __init__(self, prefills: int, cluster: BaselineCluster) -> None:
        instances = cluster.instances
        chosen = [
            (index + 1) * prefills // len(instances) > index * prefills // len(instances)
            for index in range(len(instances))
        ]
        self.prefilling = [one for one, is_chosen in zip(instances, reversed(chosen), strict=True) if is_chosen]
        self.decoding = [one for one in instances if one not in self.prefilling]
        self._cluster = cluster
        self._left_at: dict[Served, BatchingInstance] = {}
        for instance in self.prefilling:
            instance.prefilled = partial(self._prefilled, instance)

    def choose(self, one: Served) -> BatchingInstance:
        """The one with the fewest tokens of prompts to compute."""
        return min(self.prefilling, key=_tokens_to_compute)

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
        self._left_at[one] = source
        cluster, spec = self._cluster, self._cluster.spec
        for instance in self.decoding:
            instance.settle()
        target = dispatched(one, self._near(source), spec.advice.dispatch, cluster.random)
        target.elsewhere[one] = partial(self._read, one, source, target)
        cluster.send(one, target, 2)

    def _near(self, source: BatchingInstance) -> Sequence[BatchingInstance]:
        """Instances that decode on the same host, if there are any: links there are faster."""
        kind = self._cluster.links.kind
        return [one for one in self.decoding if kind(source.name, one.name) == "host"] or self.decoding

    def _read(self, one: Served, source: BatchingInstance, target: BatchingInstance) -> None:
        del self._left_at[one]
        cluster, blocks = self._cluster, source.blocks_for(one.computed)
        num_bytes = blocks * cluster.block_bytes

        def arrived() -> None:
            target.counters.moved_blocks += blocks
            target.counters.kv_bytes += num_bytes
            target.arrived(one)
            source.release(one)

        cluster.links.read(target.name, source.name, num_bytes, arrived)


def _tokens_to_compute(instance: BatchingInstance) -> int:
    return instance.queue.tokens + sum(one.length - one.computed for one in instance.running)
