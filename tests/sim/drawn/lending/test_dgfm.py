"""Cycles of debts are cancelled while requests run, whatever else happens meanwhile."""

from __future__ import annotations

from random import Random

import pytest

from distkv import events
from distkv.control import commands as c
from distkv.sim.drawn.cluster import BLOCK, SimCluster
from distkv.wire.messages.common import PlanEpoch
from distkv.wire.messages.to_rmanager import MoveKvcache
from tests.lanes import rest_is_slow
from tests.sim.parts import check, prompt

OUT = 400


class Ring:
    """Each instance runs a request, of which `owed` rBlocks lie at the next one."""

    def __init__(self, size: int, seed: int, owed: int = 12) -> None:
        self.cluster = SimCluster([150] * size, seed)
        self.names = [f"i{number}" for number in range(size)]
        self.prompts = {name: prompt(100 + number, number) for number, name in enumerate(self.names)}
        for name, tokens in self.prompts.items():
            self.cluster.submit(name, f"of-{name}", tokens, OUT)
        assert self.cluster.run(10, lambda: all(self.cluster.outcomes[f"of-{n}"].tokens for n in self.names))
        for number, name in enumerate(self.names):
            self.move(name, self.names[(number + 1) % size], owed)

    def move(self, name: str, destination: str, num_blocks: int) -> None:
        """As a gManager would have planned it."""
        gm = self.cluster.gm
        assert gm is not None
        beat = gm.ledger.entries[name].heartbeat
        assert beat is not None
        plan = MoveKvcache(
            request_id=f"of-{name}",
            num_blocks=num_blocks,
            destination=destination,
            epoch=PlanEpoch(1, 1),
            debtor_incarnation=1,
            seq=beat.seq,
        )
        self.cluster.handle(name, c.FromGManager(plan))

    def runs(self) -> list[events.DgfmEnded]:
        return [event for _, event in self.cluster.events if isinstance(event, events.DgfmEnded)]

    def remote(self, name: str) -> int:
        """Tokens of its request that lie elsewhere."""
        return sum(n for where, n in self.cluster.spans(f"of-{name}").items() if where != name)

    def finish(self) -> None:
        """All requests end as if nothing had happened, and all memory is free."""
        self.cluster.finish()
        for name, tokens in self.prompts.items():
            check(self.cluster, f"of-{name}", tokens, OUT)
        self.cluster.settle()


@pytest.mark.parametrize(("size", "seed"), rest_is_slow([(2, 0), (3, 0), (2, 1), (4, 0)], 2))
def test_what_went_round_lies_at_home_and_no_token_is_another(size: int, seed: int) -> None:
    ring = Ring(size, seed)
    assert ring.cluster.run(8, ring.runs)
    (ended,) = ring.runs()
    assert ended.predicted == 12 * size >= ended.blocks >= 8 * size and not ended.why
    for name in ring.names:
        counters = ring.cluster.nodes[name].rm.state.counters
        assert counters.dgfm_runs == 1 and counters.swapped_blocks >= 4 and counters.recomputed_tokens == 0
        assert ring.remote(name) in (0, BLOCK * (12 - counters.swapped_blocks))
    ring.finish()


@pytest.mark.parametrize("seed", rest_is_slow(range(6), 2))
def test_in_the_middle_of_a_run_anything_may_happen(seed: int) -> None:
    """Messages are lost, come twice, or come late; a request is cancelled, an instance or the gManager dies, drains or
    stands still: each run ends, what lives has the right tokens, and no memory is lost."""
    random = Random(seed)
    ring = Ring(3, seed)
    cluster = ring.cluster
    cluster.network.loss, cluster.network.duplication = random.choice([(0.0, 0.0), (0.05, 0.0), (0.0, 0.2)])
    cluster.run(8, lambda: any(isinstance(event, events.DgfmBegun) for _, event in cluster.events))
    cluster.run(random.uniform(0.0, 0.6))
    match seed % 6:
        case 0:
            cluster.cancel("of-i1")
        case 1:
            cluster.kill("i1")
            del cluster.owner["of-i1"]
        case 2:
            cluster.kill_gmanager()
            cluster.run(1.0)
            cluster.restart_gmanager()
        case 3:
            cluster.drain("i1", 5.0)
        case 4:
            cluster.freeze("i1")
            cluster.run(2.0)
            cluster.freeze("i1", False)
        case 5:
            cluster.fail_pulls("i1")
            cluster.run(1.0)
            cluster.fail_pulls("i1", False)
    cluster.finish(60)
    for name, tokens in ring.prompts.items():
        if f"of-{name}" in cluster.owner and cluster.outcomes[f"of-{name}"].finish == "length":
            check(cluster, f"of-{name}", tokens, OUT)
    cluster.network.loss = cluster.network.duplication = 0.0
    cluster.settle(12)
    assert all(node.rm.state.pinned_debtor == "" for node in cluster.nodes.values() if node.alive)
