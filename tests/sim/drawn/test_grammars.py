"""An output ends where its grammar does, however often it is computed and wherever it lies."""

from __future__ import annotations

from distkv.sim.drawn.cluster import SimCluster
from distkv.sim.drawn.fake_worker import expected_output
from tests.sim.parts import prompt


def test_outputs_end_with_their_grammars_through_losses_and_preemption() -> None:
    """A creditor dies and a younger request is preempted while steps run ahead of the tokens that end them."""
    cluster = SimCluster([12, 40], max_num_batched_tokens=8)
    wanted = {"long": (prompt(120, 1), 31), "short": (prompt(30, 2), 17), "one": (prompt(1, 3), 1)}
    for name, (tokens, count) in wanted.items():
        cluster.submit("i0", name, tokens, 80, grammar_id=count, ignore_eos=True, min_tokens=60)
    assert cluster.run(60, lambda: len(cluster.outcomes["long"].tokens) > 8)
    cluster.start("i2", 40)
    cluster.kill("i1")
    cluster.finish()
    for name, (tokens, count) in wanted.items():
        outcome = cluster.outcomes[name]
        assert outcome.ended is None and outcome.finish == "stop"
        assert outcome.tokens == expected_output(tokens, count)
    assert cluster.nodes["i0"].rm.state.counters.recomputed_tokens > 0
    cluster.settle()
    assert sorted(cluster.nodes["i0"].released) == [1, 17, 31]
