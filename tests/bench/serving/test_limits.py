"""`distkv bench limits` from the command line, and from when on a creditor is taken to be within its limit."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from distkv.bench.serving import limits
from distkv.bench.serving.limits import (
    BETWEEN,
    CREDITOR,
    HOME,
    LENT,
    OWN_FIRST,
    OWN_LAST,
    QUICK,
    RATE,
    SAME,
    TIE,
    UNTIL,
    Served,
    Turns,
    within_after_s,
)
from distkv.types import SamplingParams
from tests.bench.quick_run import drawn_report


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_creditor_begins_to_compute_while_it_serves(tmp_path: Path) -> None:
    report = drawn_report(limits.main, tmp_path)
    found = {(row["case"], row["variant"]): row for row in report["results"]}
    for case in (OWN_FIRST, OWN_LAST, RATE, BETWEEN):
        assert found[case, LENT]["median"] > 0 and found[case, HOME]["median"] > 0
    assert found[UNTIL, LENT]["min"] >= 0 and found[SAME, LENT]["min"] == 100
    assert (UNTIL, HOME) not in found and len(report["goals"]) == 2


def seen(*shares: float) -> list[Served]:
    """Half seconds of own steps, of which serving took these shares."""
    found = [Served(100.0, 5.0, 1.0)]
    for share in shares:
        at_s, step_s, served_s = found[-1]
        found.append(Served(at_s + 0.5, step_s + 0.5, served_s + 0.5 * share))
    return found


@pytest.mark.parametrize(
    ("shares", "within_s"),
    [
        ([0.1, 0.2, 0.3], 0.0),
        ([0.6, 0.6, 0.6, 0.2, 0.2, 0.2], 1.5),
        ([0.6, 0.6, 0.4, 0.15, 0.2], 1.0),
        ([0.6, 0.6, 0.2], 1.5),
        ([0.6] * 6, 3.0),
        ([], 0.0),
    ],
)
def test_it_is_within_its_limit_from_the_first_second_on_in_which_it_serves_no_more(
    shares: list[float], within_s: float
) -> None:
    assert within_after_s(seen(*shares), 0.3) == pytest.approx(within_s)


@pytest.mark.parametrize(
    ("gap", "candidates", "same"),
    [(TIE / 2, (7, 8), 1.0), (TIE * 2, (7, 8), 3 / 4), (TIE / 2, (7, 9), 3 / 4), (TIE / 2, (8, 7), 1.0)],
)
async def test_tokens_are_compared_up_to_where_two_were_as_likely(
    gap: float, candidates: tuple[int, int], same: float
) -> None:
    asked: list[list[int]] = []

    class Client:
        async def submit(self, prompt: list[int], params: SamplingParams) -> Any:
            asked.append(prompt)
            top = [(token, -1.0 - gap * place) for place, token in enumerate(candidates)]
            return SimpleNamespace(logprobs=[SimpleNamespace(top=top)])

    turns: Any = Turns(QUICK, None, {CREDITOR: Client()}, None)  # type: ignore[arg-type, dict-item]
    turns._tokens = {CREDITOR: [[1, 2, 3], [4, 5, 8, 6, 9]]}
    streams = SimpleNamespace(prompts=[[0], [1]], tokens=[[1, 2, 3, 3], [4, 5, 7, 6, 1]])
    assert await turns._same(CREDITOR, streams) == same
    assert asked == [[1, 4, 5]]


@pytest.mark.parametrize(
    ("until_s", "same", "met"), [(2.0, 100.0, [True, True]), (limits.MOST_S, 99.9, [False, False])]
)
def test_goals(until_s: float, same: float, met: list[bool]) -> None:
    samples = {UNTIL: {LENT: [1.0, until_s]}, SAME: {LENT: [100.0, same]}}
    assert [one.met for one in limits._goals(samples)] == met
