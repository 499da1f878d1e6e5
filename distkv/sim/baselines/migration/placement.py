"""Requests begin where most room is, and migrate as instances are paired, again and again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from distkv.sim.baselines.batching.instance import BatchingInstance
from distkv.sim.baselines.batching.served import Served
from distkv.sim.baselines.cluster import BaselineCluster
from distkv.sim.baselines.migration.live import Migration
from distkv.sim.baselines.migration.pairing import Load, pairs
from distkv.sim.timed.agenda import Action

PERIOD_S = 0.05
"""Between two pairings (Llumnix's --polling-interval)."""


class Migrating:
    """migrations: under way, by the instance that is left."""

    def __init__(self, cluster: BaselineCluster) -> None:
        self.migrations: dict[BatchingInstance, Migration] = {}
        self._cluster = cluster
        self._pairs: dict[BatchingInstance, BatchingInstance] = {}
        if len(cluster.instances) > 1:
            cluster.agenda.after(PERIOD_S, self._pair)

    def choose(self, one: Served) -> BatchingInstance | None:
        """Where a request begins."""
        return self._cluster.dispatched(one, self._cluster.instances)

    def lost(self, instance: BatchingInstance, held: Sequence[Served]) -> Iterable[Served]:
        """All that it had, and who had stopped to leave it. Who was on the way to it goes on where it was."""
        self._pairs = {source: to for source, to in self._pairs.items() if instance not in (source, to)}
        under_way = [one for one in self.migrations.values() if instance in (one.source, one.target)]
        stopped = [migration.one for migration in under_way if migration.abort()]
        return [*held, *stopped]

    def drop(self, one: Served) -> None:
        """A request is over before its end; one that is migrating is over when it arrives."""
        self._cluster[one.at].drop(one)

    def _pair(self) -> None:
        """Who is short of memory sends requests away until it is no longer paired."""
        self._cluster.agenda.after(PERIOD_S, self._pair)
        instances = self._cluster.ready if self._cluster.has_gmanager else []
        for instance in instances:
            instance.settle()
        self._pairs = {
            instances[source]: instances[target]
            for source, target in pairs([_load(index, one) for index, one in enumerate(instances)])
        }
        for source in self._pairs:
            if source not in self.migrations:
                self._migrate(source)

    def _migrate(self, source: BatchingInstance) -> None:
        """The shortest of its requests goes next."""
        target = self._pairs.get(source)
        able = [one for one in source.running if one.generated and one.is_decoding]
        if target is None or not able:
            return
        one = min(able, key=lambda one: (one.length, one.order))
        self.migrations[source] = migration = Migration(one, source, target, self._copy, self._over)
        self._cluster.agenda.after(2 * self._cluster.spec.message_s, migration.begin)

    def _over(self, migration: Migration) -> None:
        source, counters = migration.source, migration.source.counters
        del self.migrations[source]
        counters.kv_bytes += migration.blocks * self._cluster.block_bytes
        if migration.moved:
            counters.moved_blocks += migration.blocks
            self._migrate(source)

    def _copy(self, source: BatchingInstance, target: BatchingInstance, blocks: int, done: Action) -> None:
        """It is agreed on, and then read."""
        cluster = self._cluster

        def agreed() -> None:
            cluster.links.read(target.name, source.name, blocks * cluster.block_bytes, done)

        cluster.agenda.after(2 * cluster.spec.message_s, agreed)


def _load(index: int, one: BatchingInstance) -> Load:
    first = one.queue.first
    return Load(
        instance=index,
        free_blocks=one.free - one.watermark_blocks,
        first_waiting_blocks=one.blocks_for(first.length) if first is not None else 0,
        running=len(one.running) + len(one.coming),
        preempted=first is not None and first.lives > 0,
    )
