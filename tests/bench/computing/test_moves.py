"""`distkv bench moves` from the command line, what moves leave behind, and how it judges what it measured."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from distkv.bench.baselines.checkpoints import MODELS, checkpoint
from distkv.bench.computing import moves
from distkv.bench.harness.alternate import Samples
from distkv.bench.move_cells.goals import (
    ALONE,
    BURST,
    NONE,
    ROLES,
    beside_case,
    goals_of,
    messages_case,
    rate_case,
    variant_of,
)
from distkv.bench.move_cells.instance import Instance, Load
from distkv.bench.move_cells.moving import Moving
from distkv.bench.workloads.computing.decode_steps import BLOCK_TOKENS
from distkv.control.schedule.making_room import LEAST_MOVE_BLOCKS
from tests.bench.quick_run import drawn_report
from tests.waiting import wait_until

DEADLINE_S = 60.0


@pytest.mark.slow
def test_a_quick_run(tmp_path: Path) -> None:
    before = sys.getswitchinterval()
    report = drawn_report(moves.main, tmp_path)
    assert sys.getswitchinterval() == before
    found = {(row["case"], row["variant"]): row["median"] for row in report["results"]}
    for role in ROLES:
        for variant in (NONE, variant_of(16), variant_of(32), variant_of(64), ALONE, BURST):
            assert found[rate_case(role), variant] > 0
            assert 0 < found[beside_case(role), variant] < 100
            assert 0 < found[messages_case(role), variant] < 100
    assert len(report["goals"]) == 9
    assert report["goals"][-1]["met"] and report["machine"]["moved_blocks"] > 0


@pytest.fixture
def both(tmp_path: Path) -> Iterator[list[Instance]]:
    shape = MODELS["tiny"]
    load = Load(checkpoint(shape, tmp_path), shape.vocab, batch=2, context=64)
    with Instance("debtor", load, None) as debtor, Instance("creditor", load, None) as creditor:
        members = [debtor.member, creditor.member]
        for beginning in [debtor.begin(members), creditor.begin(members)]:
            beginning.result(DEADLINE_S)
        yield [debtor, creditor]


def test_what_was_moved_lies_there_and_a_wrong_block_is_an_error(both: list[Instance]) -> None:
    debtor, creditor = both
    moving = Moving(debtor, creditor)
    moving.begin(3, 2)
    wait_until(lambda: moving.moved >= 4 * debtor.num_blocks)
    moving.end()
    assert moving.moved % 3 == 0
    assert moving.wrong_slots() == 0
    assert creditor.counters().kv_bytes == moving.moved * debtor.block_bytes
    # A checksum that is not that of the block.
    problem = creditor.loop.call(creditor.pull("debtor", (0,), creditor.lent[:1], (1,)))
    assert "1 of 1 checksums do not match" in problem
    assert creditor.counters().checksum_refusals == 1


@pytest.mark.parametrize("tokens", [16, 32, 64])
def test_as_many_leave_at_a_time_as_rmanagers_send_and_as_many_tokens_for_each_step(tokens: int) -> None:
    blocks, every = moves._together(tokens)
    assert blocks == LEAST_MOVE_BLOCKS and blocks * BLOCK_TOKENS == tokens * every
    assert moves._together(0)[0] == 0


def samples(sixteen: float, thirty_two: float) -> Samples:
    """Of rounds that all found the same, but for a little. Without moves it is 100 steps/s, and 1 % of the core goes
    beside them; what is lost of the steps goes there, too."""
    draw = random.Random(1)

    def of(value: float) -> list[float]:
        return [value * draw.uniform(0.999, 1.001) for _ in range(9)]

    steps = {NONE: 100.0, variant_of(16): sixteen, variant_of(32): thirty_two}
    rates = {name: of(value) for name, value in steps.items()}
    beside = {name: of(101.0 - value) for name, value in steps.items()}
    return {rate_case(role): rates for role in ROLES} | {beside_case(role): beside for role in ROLES}


@pytest.mark.parametrize(("sixteen", "thirty_two", "met"), [(99.5, 97.5, True), (98.5, 96.5, False)])
def test_goals(sixteen: float, thirty_two: float, met: bool) -> None:
    *lost, blocks = goals_of(samples(sixteen, thirty_two), moved=7, refused=0, wrong=0)
    assert [one.met for one in lost] == [met] * 8
    assert blocks.met


def test_a_goal_that_rounds_disagree_about_is_open() -> None:
    found = samples(99.0, 97.0)
    *lost, _ = goals_of(found, moved=7, refused=0, wrong=0)
    assert [one.met for one in lost[::2]] == [None] * 4


@pytest.mark.parametrize(("moved", "refused", "wrong"), [(0, 0, 0), (7, 1, 0), (7, 0, 1)])
def test_moves_count_only_if_every_block_is_right(moved: int, refused: int, wrong: int) -> None:
    assert goals_of(samples(99.5, 97.5), moved, refused, wrong)[-1].met is False
