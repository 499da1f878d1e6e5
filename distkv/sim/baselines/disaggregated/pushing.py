"""Where a request is to decode, memory is taken for its prompt before anybody computes that (a push, 004 §4.3).

It waits at an instance that decodes until that has memory for all of the prompt. Then it goes where prompts are
computed, and each layer's keys and values travel while the next one is computed: at the end those of one layer are
left, if the link keeps up, which is taken for granted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from distkv.sim.baselines.batching.instance import BatchingInstance
from distkv.sim.baselines.batching.served import Served
from distkv.sim.baselines.cluster import NO_INSTANCE, BaselineCluster
from distkv.sim.baselines.disaggregated.divided import Divided


@dataclass(slots=True, eq=False)
class Push:
    """Of one request's keys and values: memory is taken at `target`, and `source` computes them."""

    source: BatchingInstance
    target: BatchingInstance


class Pushing:
    """prefills: instances that compute prompts. pushes: of requests that memory was taken for, until they are there."""

    def __init__(self, prefills: int, cluster: BaselineCluster) -> None:
        self.divided = Divided(prefills, cluster)
        self._cluster = cluster
        self.pushes: dict[Served, Push] = {}
        for instance in self.divided.prefilling:
            instance.prefilled = partial(self._prefilled, instance)
            instance.ended = partial(self._ended_there, instance.ended)

    def choose(self, one: Served) -> BatchingInstance | None:
        """Where it is to decode; it waits there for memory."""
        target = self._cluster.dispatched(one, self.divided.decoding)
        if target is not None:
            target.elsewhere[one] = partial(self._granted, one, target)
        return target

    def lost(self, instance: BatchingInstance, held: Sequence[Served]) -> Iterable[Served]:
        """Who was there, and whose memory was taken there: nothing of a push is kept. Whose prompt is computed in a
        step under way elsewhere is lost when that has ended."""
        lost = dict.fromkeys(held)
        for one, push in [(one, push) for one, push in self.pushes.items() if instance in (push.source, push.target)]:
            del self.pushes[one]
            if instance is push.source:
                push.target.release(one)
            elif one in push.source.running:
                push.source.drop(one)
                push.source.between_steps(partial(self._cluster.lose, one))
                continue
            elif one in push.source.leaving:
                push.source.release(one)
            else:
                push.source.drop(one)
            lost[one] = None
        return lost

    def drop(self, one: Served) -> None:
        """A request is over before its end; whose prompt has been computed is over when it arrives."""
        push = self.pushes.get(one)
        if push is None:
            self._cluster[one.at].drop(one)
        elif one not in push.source.leaving:
            del self.pushes[one]
            push.source.drop(one)
            push.target.release(one)

    def _granted(self, one: Served, target: BatchingInstance) -> None:
        """There is memory for it: its prompt can be computed."""
        source = self.divided.least_to_compute()
        if source is None:
            target.release(one)
            if not one.is_over:
                self._cluster.end(one, NO_INSTANCE)
            return
        self.divided.passage(one).granted_s = self._cluster.agenda.now()
        self.pushes[one] = Push(source, target)
        self._cluster.send(one, source, 2)

    def _prefilled(self, source: BatchingInstance, one: Served) -> None:
        """What is left of it travels, and it goes on there."""
        push = self.pushes.get(one)
        if push is None or one.is_over:
            return
        source.take_out(one)
        cluster, target = self._cluster, push.target
        passage, blocks = self.divided.passage(one), source.blocks_for(one.computed)
        passage.computed_s = cluster.agenda.now()
        one.at = target.name

        def arrived() -> None:
            if self.pushes.get(one) is not push:
                return  # one of the two has died
            del self.pushes[one]
            passage.here_s = cluster.agenda.now()
            target.counters.moved_blocks += blocks
            target.counters.kv_bytes += blocks * cluster.block_bytes
            target.arrived(one)
            source.release(one)

        last_bytes = blocks * cluster.block_bytes // cluster.spec.profile.layers
        cluster.links.read(target.name, source.name, last_bytes, arrived)

    def _ended_there(self, ended: Callable[[Served], None], one: Served) -> None:
        """Its first token was its last: what was kept for it where it was to decode is free."""
        if (push := self.pushes.pop(one, None)) is not None:
            push.target.release(one)
        ended(one)
