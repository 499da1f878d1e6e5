"""vLLM side by side: requests stay where they begin, on instances that batch by vLLM's rules (001 §7.1)."""

from __future__ import annotations

from distkv.sim.baselines.batching.instance import BatchingInstance
from distkv.sim.baselines.batching.served import Served
from distkv.sim.baselines.cluster import BaselineCluster
from distkv.sim.baselines.dispatch import dispatched


class Staying:
    """Each request goes where `AdviceSettings.dispatch` of the spec says, and that is all."""

    def __init__(self, cluster: BaselineCluster) -> None:
        self._cluster = cluster

    def choose(self, one: Served) -> BatchingInstance:
        """Where a request begins, and ends."""
        cluster = self._cluster
        return dispatched(one, cluster.instances, cluster.spec.advice.dispatch, cluster.random)

    def drop(self, one: Served) -> None:
        """A request is over before its end."""
        self._cluster[one.at].drop(one)
