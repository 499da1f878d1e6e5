"""Where a request begins among instances that batch for themselves."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import assert_never

from distkv.sim.baselines.batching.instance import BatchingInstance
from distkv.sim.baselines.batching.served import Served
from distkv.types import DispatchName


def dispatched(
    one: Served, instances: Sequence[BatchingInstance], dispatch: DispatchName, random: Random
) -> BatchingInstance:
    """predicted: the one with most room for each request, as Llumnix dispatches. least-loaded and random: as a gManager
    with that setting."""
    match dispatch:
        case "predicted":
            return max(instances, key=room_for_each)
        case "least-loaded":
            return min(instances, key=lambda instance: _load(one, instance))
        case "random":
            return random.choice(instances)
        case _:
            assert_never(dispatch)


def fewest_requests(instances: Sequence[BatchingInstance]) -> BatchingInstance:
    """What clients know of themselves: where they go while no gManager answers."""
    return min(instances, key=lambda one: len(one.running) + len(one.coming) + len(one.queue) + one.queue.num_on_way)


def room_for_each(instance: BatchingInstance) -> float:
    """rBlocks that are left for each request when all that wait, and are on their way, have what they need."""
    queue = instance.queue
    num_requests = len(instance.running) + len(instance.coming) + len(queue) + queue.num_on_way
    return (instance.free - instance.watermark_blocks - queue.blocks) / max(1, num_requests)


def _load(one: Served, instance: BatchingInstance) -> tuple[bool, bool, int, int]:
    """Best first: nobody waits there; it fits, then the fewest requests; else the most free memory."""
    fits = instance.blocks_for(one.outcome.request.num_tokens) <= instance.free
    num_requests = len(instance.running) + instance.queue.num_on_way
    return len(instance.queue) > 0, not fits, num_requests if fits else 0, -instance.free
