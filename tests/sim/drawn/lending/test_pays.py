"""Where pooling does not pay, a simulated cluster leaves things alone; what needs memory of others has it all the same.

Where they do, workers say that steps took 20 ms and 1 ms more for each sequence, and as long again where they waited
for partials.
"""

from __future__ import annotations

from random import Random

import pytest

from distkv.sim.drawn.cluster import BLOCK, SimCluster
from distkv.wire.messages import to_worker as tw
from distkv.wire.messages.counters import Counters, total
from tests.sim.arrivals import one_step_per_tick
from tests.sim.parts import check, prompt

POOLS = [40, 40]
LARGER = POOLS[0] * BLOCK + 40


def costs(step: tw.Step) -> tuple[float, float]:
    """Seconds of a step, and of these what it waited."""
    alone_s = 0.020 + 0.001 * len(step.seqs)
    return (2 * alone_s, alone_s) if any(seq.remote for seq in step.seqs) else (alone_s, 0.0)


class Loaded:
    """A cluster of two that gets requests which fit, more than it can serve at once."""

    def __init__(self, seed: int) -> None:
        self.cluster = SimCluster(POOLS, seed)
        self.wanted: dict[str, tuple[list[int], int]] = {}
        self.random = Random(seed)
        for node in self.cluster.nodes.values():
            node.worker.costs = costs
            one_step_per_tick(node.worker)

    def submit(self, name: str, length: int, max_tokens: int) -> str:
        request_id = f"r{len(self.wanted)}"
        self.wanted[request_id] = prompt(length, len(self.wanted)), max_tokens
        self.cluster.submit(name, request_id, *self.wanted[request_id])
        return request_id

    def run(self, ticks: int) -> None:
        for _ in range(ticks):
            for node in self.cluster.nodes.values():
                node.worker.stalled = False
            while self.cluster.deliver():
                pass
            self.cluster.tick()

    def finish(self) -> None:
        for _ in range(2000):
            if all(self.cluster.outcomes[request_id].done for request_id in self.wanted):
                break
            self.run(1)
        for request_id, (tokens, max_tokens) in self.wanted.items():
            check(self.cluster, request_id, tokens, max_tokens)
        for node in self.cluster.nodes.values():
            node.worker.stalled = False
            del node.worker.handle
        self.cluster.settle()

    @property
    def counters(self) -> Counters:
        return total(*(node.rm.state.counters for node in self.cluster.nodes.values()))


@pytest.mark.slow
def test_where_all_fit_and_all_is_full_little_moves() -> None:
    """It was 159 rBlocks for 160 requests; each borrow has all steps of its batch wait. A prompt costs nothing here, so
    computing it again does not either, and half as much is kept for growth."""
    counted = Counters()
    for seed in range(4):
        loaded = Loaded(seed)
        for _ in range(40):
            loaded.submit(f"i{loaded.random.randrange(2)}", loaded.random.randint(8, 60), loaded.random.randint(8, 30))
            loaded.run(2)
        loaded.finish()
        counted = total(counted, loaded.counters)
    assert counted.avoidable_borrows <= 8 and counted.moved_blocks <= 50
    assert counted.preemptions <= 64, "nor do many of the 160 give way instead"


@pytest.mark.parametrize("seed", range(3))
def test_what_fits_nowhere_alone_is_served_beside_them(seed: int) -> None:
    loaded = Loaded(seed)
    for number in range(24):
        loaded.submit(f"i{loaded.random.randrange(2)}", loaded.random.randint(8, 40), loaded.random.randint(8, 20))
        if number in (6, 12):
            loaded.submit("i0", LARGER, 6)
        loaded.run(3)
    loaded.finish()
    assert loaded.counters.borrows >= 2


def test_what_one_borrowed_comes_home_when_the_others_have_ended() -> None:
    """It lay elsewhere until its request ended."""
    cluster = SimCluster([200, 200])
    cluster.submit("i0", "before", prompt(600), 60)
    cluster.run(0.1)
    guest, guest_out = prompt(240, 1), 400
    cluster.submit("i0", "guest", guest, guest_out)
    assert cluster.run(10, lambda: cluster.spans("guest").get("i1", 0) > 0), "it borrows"
    assert cluster.run(20, lambda: cluster.outcomes["before"].done)
    assert cluster.run(5, lambda: not cluster.spans("guest").get("i1", 0)), "it comes home"
    assert not cluster.outcomes["guest"].done
    cluster.finish()
    check(cluster, "guest", guest, guest_out)
    cluster.settle()
    assert cluster.nodes["i0"].rm.state.counters.recalled_blocks > 0
