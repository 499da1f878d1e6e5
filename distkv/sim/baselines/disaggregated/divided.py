"""Who computes prompts and who decodes, and when a request got from one to the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from distkv.sim.baselines.batching.instance import BatchingInstance
from distkv.sim.baselines.batching.served import Served
from distkv.sim.baselines.cluster import BaselineCluster
from distkv.sim.baselines.dispatch import fewest_requests

SHARES = (1 / 8, 1 / 4, 1 / 2, 3 / 4)
"""Of the instances, that compute prompts: what is tried when nobody says how many."""


def splits(instances: int) -> list[int]:
    """How many instances might compute prompts; at least one does, and one decodes."""
    return sorted({max(1, min(instances - 1, round(share * instances))) for share in SHARES})


@dataclass(slots=True)
class Passage:
    """When the prompt of a request had been computed, memory was there for it where it is to decode, and its keys and
    values were; None while that is not so."""

    computed_s: float | None = None
    granted_s: float | None = None
    here_s: float | None = None


class Divided:
    """The first of `prefills` of N instances is i0; they are spread, so that hosts have both kinds. passages: of all
    requests that have begun to get from one kind to the other."""

    def __init__(self, prefills: int, cluster: BaselineCluster) -> None:
        instances = cluster.instances
        chosen = [
            (index + 1) * prefills // len(instances) > index * prefills // len(instances)
            for index in range(len(instances))
        ]
        self.prefilling = [one for one, is_chosen in zip(instances, reversed(chosen), strict=True) if is_chosen]
        self.decoding = [one for one in instances if one not in self.prefilling]
        self.passages: dict[Served, Passage] = {}
        self._cluster = cluster

    def least_to_compute(self) -> BatchingInstance | None:
        """The one with the fewest tokens of prompts to compute; without a gManager, with the fewest requests; None if
        none is there."""
        living = [instance for instance in self.prefilling if instance.alive]
        if not living:
            return None
        return min(living, key=_tokens_to_compute) if self._cluster.has_gmanager else fewest_requests(living)

    def near(self, source: BatchingInstance) -> Sequence[BatchingInstance]:
        """Instances that decode on the same host, if there are any: links there are faster."""
        kind = self._cluster.links.kind
        living = [one for one in self.decoding if one.alive]
        return [one for one in living if kind(source.name, one.name) == "host"] or living

    def passage(self, one: Served) -> Passage:
        """That of a request, begun if it had not."""
        return self.passages.setdefault(one, Passage())


def _tokens_to_compute(instance: BatchingInstance) -> int:
    return instance.queue.tokens + sum(one.length - one.computed for one in instance.running)
