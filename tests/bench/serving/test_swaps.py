"""`distkv bench swaps` from the command line, and how it judges what it measured."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from distkv.bench.harness.alternate import Samples
from distkv.bench.serving import swaps
from distkv.bench.serving.swaps import HOME, LEFT, NAMES, SWAPPED
from distkv.bench.swap_cells.window import BETWEEN, beside_case, part_cases, processor_case, rate_case
from distkv.control.cluster.debts import dgfm
from distkv.control.plan.swaps import LONGEST_FREEZE_S
from tests.bench.quick_run import drawn_report


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_what_each_owes_comes_home_while_both_decode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FREEZE_S", "ANSWER_S"):  # a machine that does other things, too, takes longer than they are
        monkeypatch.setattr(dgfm, name, LONGEST_FREEZE_S)
    monkeypatch.setattr(swaps, "RUN_S", 2 * LONGEST_FREEZE_S)
    report = drawn_report(swaps.main, tmp_path)
    found = {(row["case"], row["variant"]): row for row in report["results"]}
    for name in NAMES:
        for variant in (SWAPPED, LEFT):
            assert found[rate_case(name, "meanwhile"), variant]["median"] > 0
            assert found[rate_case(name, "afterwards"), variant]["median"] > 0
            assert 0 < found[beside_case(name), variant]["median"] < 100
            assert found[processor_case(name), variant]["median"] > 0
            model, wait, serving = (found[case, variant]["median"] for case in part_cases(name))
            assert 0 < wait < model and 0 < serving < model
            assert found[BETWEEN, variant]["median"] > 0
    assert found[HOME, SWAPPED]["min"] > 0 and (HOME, LEFT) not in found
    assert len(report["goals"]) == 4 and report["machine"]["came_to_nothing"] == ""


def samples(rate: float, beside: float) -> Samples:
    """Of rounds that all found the same, but for a little. Debts that are left cost 1 % of a core, at 30 steps/s."""
    draw = random.Random(1)

    def of(value: float) -> list[float]:
        return [value * draw.uniform(0.999, 1.001) for _ in range(9)]

    rates = {SWAPPED: of(30 * rate), LEFT: of(30.0)}
    shares = {SWAPPED: of(beside), LEFT: of(1.0)}
    return {rate_case(name, "meanwhile"): rates for name in NAMES} | {beside_case(name): shares for name in NAMES}


@pytest.mark.parametrize(
    ("rate", "beside", "met"),
    [(0.99, 2.9, [True, True]), (0.97, 3.1, [False, False]), (0.98, 3.0, [None, None]), (1.1, 3.1, [True, False])],
)
def test_goals(rate: float, beside: float, met: list[bool | None]) -> None:
    assert [one.met for one in swaps._goals(samples(rate, beside))] == met * 2
