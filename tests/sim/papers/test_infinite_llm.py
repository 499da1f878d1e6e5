"""Figures of 001 against sums by hand."""

from __future__ import annotations

import pytest

from distkv.control.performance.model import Load, PerformanceModel
from distkv.sim.papers import make
from distkv.sim.papers.figure import Effort, Figure
from distkv.sim.papers.infinite_llm.context import placed, pooled_tokens_per_s
from distkv.sim.papers.infinite_llm.engines import ClosedLoop, Decodes, Moves
from distkv.sim.papers.infinite_llm.pair import Pair
from tests.sim.timed.parts import PROFILE, profile, spec

HOST = ("host", "host")


def made(name: str) -> Figure:
    return make(name, Effort.QUICK, lambda what, share: None)


def test_an_engine_in_a_closed_loop_generates_its_batch_in_each_step() -> None:
    """100 ms for each: 20 ms, 0.1 ms for each further sequence, 1 us for each token."""
    steps = 0.020 + 9 * 0.0001 + 10 * 791e-6
    rates = ClosedLoop(PROFILE, HOST).tokens_per_s([[Decodes(10, 791)], []], 50.0)
    assert rates == (pytest.approx(10 / steps, rel=0.01), 0.0)


def test_lent_blocks_are_attended_to_where_they_lie() -> None:
    """The first sequence has 50 of its rBlocks at the other, whose own steps take that longer."""
    batches = [[Decodes(2, 1000, lent=((1, 50),))], [Decodes(4, 500)]]
    debtor, creditor = ClosedLoop(PROFILE, HOST).tokens_per_s(batches, 50.0)
    model = PerformanceModel(PROFILE)
    debtor_s = model.step_s(2, 2000, remote_tokens=800)
    assert debtor == pytest.approx(2 / debtor_s, rel=0.02)
    served = model.served_s(800) / debtor_s
    assert creditor == pytest.approx((1 - served) * 4 / model.step_s(4, 2000), rel=0.02)


def test_blocks_move_beside_the_steps_of_where_they_come_from() -> None:
    batches = [[Decodes(10, 791)], []]
    moving = ClosedLoop(PROFILE, HOST).tokens_per_s(batches, 10.0, [Moves(4, target=1)])
    assert moving == ClosedLoop(PROFILE, HOST).tokens_per_s(batches, 10.0)


def test_a_request_that_one_pool_does_not_hold_lies_in_those_that_decode_none() -> None:
    """Pools of 100 rBlocks: two requests of 130 lack 30 each, which the third has; one of 290 has all."""
    cluster = spec(instances=3, kv_tokens=1600)
    assert placed(cluster, 130 * 16) == [
        [Decodes(1, 2080, lent=((2, 30),))], [Decodes(1, 2080, lent=((2, 30),))], [],
    ]  # fmt: skip
    assert placed(cluster, 290 * 16) == [[Decodes(1, 4640, lent=((1, 100), (2, 90)))], [], []]


def test_instances_that_lend_nothing_each_do_what_one_does() -> None:
    one, four = (pooled_tokens_per_s(spec(instances=count), 400, 5.0) for count in (1, 4))
    assert (
        four
        == 4 * one
        == pytest.approx(4 * PerformanceModel(PROFILE).tokens_per_s(Load(batch=4, context_tokens=1600)), 0.02)
    )


def test_what_is_moved_makes_room_at_the_debtor_and_takes_it_from_the_creditor() -> None:
    """Pools of 7,000 blocks, a long request of 6,250, others of 32: 23 fit, and 109 are at the creditor."""
    pair = Pair(profile(), 7000)
    assert (pair.debtor_batch(0), pair.debtor_batch(320)) == (23, 33)
    assert (pair.creditor_batch(0), pair.creditor_batch(3500), pair.creditor_batch(6250)) == (109, 109, 23)


def test_the_performance_model_says_what_engines_do() -> None:
    figure = made("001-7")
    (apart,) = [one.ours for one in figure.ratios if one.theirs == "consistent"]
    assert apart < 3
    for panel in figure.panels:
        simulated, predicted = panel.series
        assert simulated.x == predicted.x and simulated.y == pytest.approx(predicted.y, rel=0.1)


def test_a_ring_carries_keys_and_values_where_queries_could_travel() -> None:
    """LLaMA2-13B, 256K tokens of 20 KiB, a quarter on each of four A100."""
    dist, tp, _, ring = made("001-11").panels[0].series
    part_bytes = 65_536 * 20_480
    assert ring.y[-1] == pytest.approx(part_bytes / 1.7e6 + 5.4 + 3 * (6 + part_bytes / 230e3), rel=0.001)
    assert tp.y[-1] == pytest.approx(part_bytes / 1.7e6 + 5.4 + 13, rel=0.001)
    travelling = (3 * (10_240 + 20_640) - 2 * 3 / 4 * 10_240) / 230e3
    assert dist.y[-1] - tp.y[-1] == pytest.approx(12 + 5.4 + travelling - 13, abs=0.001)


def test_traces_are_those_of_the_table() -> None:
    figure = made("001-table-1")
    assert len(figure.ratios) == 27 and not [one.what for one in figure.ratios if one.differs]
