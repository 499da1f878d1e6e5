"""A load of small and big requests on a simulated cluster, how long each waits, and what first come, first served does.

Every instance computes one step per tick, so memory is what is scarce: a request holds its rBlocks for as many ticks as
it has tokens to generate and chunks to compute.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from distkv.sim.drawn.cluster import BLOCK, TICK_S, SimCluster
from distkv.sim.drawn.fake_worker import FakeWorker
from distkv.wire.messages import to_worker as tw
from distkv.wire.messages.envelope import ToWorker
from tests.sim.parts import check, prompt

POOLS = [32, 32, 32, 32]
CHUNK_TOKENS = 64
BIG = 0.03
SATURATED_PER_S = 17.0
"""So many of these requests this cluster serves in a second when they all come at once."""


@dataclass(frozen=True)
class Arrival:
    """A request that comes `at` so many seconds to an instance."""

    request_id: str
    at: float
    name: str
    num_prompt: int
    max_tokens: int

    @property
    def prompt(self) -> list[int]:
        return prompt(self.num_prompt, int(self.request_id[1:]))

    @property
    def num_blocks(self) -> int:
        return -(-(self.num_prompt + self.max_tokens - 1) // BLOCK)

    @property
    def service_s(self) -> float:
        """How long it takes where nothing else runs."""
        return TICK_S * (-(-self.num_prompt // CHUNK_TOKENS) + self.max_tokens)

    @property
    def work_s(self) -> float:
        """How long the memory of the whole cluster would be taken by nothing else."""
        return self.num_blocks * self.service_s / sum(POOLS)


def arrivals(count: int, per_s: float, seed: int) -> list[Arrival]:
    """Requests that come independently of each other; a few need more than the pool of an instance, or most of it."""
    random = Random(seed)
    at, coming = 0.0, []
    for number in range(count):
        at += random.expovariate(per_s)
        is_big = random.random() < BIG
        num_prompt = random.randint(100, 200) if is_big else random.randint(8, 24)
        name, max_tokens = f"i{random.randrange(len(POOLS))}", random.randint(4, 12)
        coming.append(Arrival(f"r{number}", at, name, num_prompt, max_tokens))
    return coming


@dataclass
class Served:
    """waited_s: until the first token, beyond what computing the prompt takes. before_s: the work of the requests that
    were there when it came, and its own. ended_s: when the last one ended."""

    waited_s: dict[str, float] = field(default_factory=dict)
    before_s: dict[str, float] = field(default_factory=dict)
    ended_s: float = 0.0

    def most_by_work(self, aged_s: float) -> float:
        """The longest wait beyond `aged_s`, as a multiple of the work before it."""
        return max((self.waited_s[name] - aged_s) / before_s for name, before_s in self.before_s.items())


def first_come_first_served(coming: Sequence[Arrival]) -> Served:
    """The reference: the memory of all as one pool, and nobody goes by anybody."""
    free, now, served = sum(POOLS), 0.0, Served()
    ends: list[tuple[float, int]] = []
    for arrival in coming:
        now = max(now, arrival.at)
        while free < arrival.num_blocks or (ends and ends[0][0] <= now):
            end, num_blocks = heapq.heappop(ends)
            free, now = free + num_blocks, max(now, end)
        free -= arrival.num_blocks
        served.waited_s[arrival.request_id] = now - arrival.at
        heapq.heappush(ends, (now + arrival.service_s, arrival.num_blocks))
    served.ended_s = max(end for end, _ in ends)
    return served


def serve(coming: Sequence[Arrival], seed: int, *, validate: bool) -> Served:
    """By the simulated cluster; without its checks after each event it is several times as fast."""
    cluster = SimCluster(POOLS, seed)
    for node in cluster.nodes.values():
        one_step_per_tick(node.worker)
        if not validate:
            node.rm.validate = lambda: None  # type: ignore[method-assign]
    if not validate:
        cluster.loans.validate_of = lambda name, now: None  # type: ignore[method-assign]
    start, work_s, served = cluster.clock.now(), 0.0, Served()
    todo, here = deque(coming), dict[str, Arrival]()
    while todo or here:
        now = cluster.clock.now() - start
        while todo and todo[0].at <= now:
            arrival = todo.popleft()
            work_s += arrival.work_s
            here[arrival.request_id], served.before_s[arrival.request_id] = arrival, work_s
            cluster.submit(arrival.name, arrival.request_id, arrival.prompt, arrival.max_tokens)
        for node in cluster.nodes.values():
            node.worker.stalled = False
        while cluster.deliver():
            pass
        for request_id, arrival in list(here.items()):
            outcome = cluster.outcomes[request_id]
            if outcome.tokens and request_id not in served.waited_s:
                computing_s = arrival.service_s - TICK_S * arrival.max_tokens
                served.waited_s[request_id] = now - arrival.at - computing_s
            if outcome.done:
                check(cluster, request_id, arrival.prompt, arrival.max_tokens)
                work_s -= arrival.work_s
                served.ended_s = now
                del here[request_id], cluster.owner[request_id]
        cluster.tick()
    return served


def one_step_per_tick(worker: FakeWorker) -> None:
    """It stands still after a step, until `stalled` is taken from it."""
    handle = worker.handle

    def handle_and_stand(message: ToWorker) -> object:
        worker.stalled = worker.stalled or isinstance(message, tw.Step)
        return handle(message)

    worker.handle = handle_and_stand  # type: ignore[method-assign, assignment]
