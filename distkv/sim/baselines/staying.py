"""vLLM side by side: requests stay where they begin, on instances that batch by vLLM's rules (001 §7.1)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from distkv.sim.baselines.batching.instance import BatchingInstance
from distkv.sim.baselines.batching.served import Served
from distkv.sim.baselines.cluster import BaselineCluster


class Staying:
    """Each request goes where `AdviceSettings.dispatch` of the spec says, and that is all."""

    def __init__(self, cluster: BaselineCluster) -> None:
        self._cluster = cluster

    def choose(self, one: Served) -> BatchingInstance | None:
        """Where a request begins, and ends."""
        return self._cluster.dispatched(one, self._cluster.instances)

    def lost(self, instance: BatchingInstance, held: Sequence[Served]) -> Iterable[Served]:
        """All that it had."""
        return held

    def drop(self, one: Served) -> None:
        """A request is over before its end."""
        self._cluster[one.at].drop(one)
