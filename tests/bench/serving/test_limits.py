"""`distkv bench limits` from the command line, and from when on a creditor is taken to be within its limit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from distkv.bench.serving import limits
from distkv.bench.serving.limits import (
    BETWEEN,
    HOME,
    LENT,
    OWN_FIRST,
    OWN_LAST,
    RATE,
    SAME,
    UNTIL,
    Served,
    within_after_s,
)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_creditor_begins_to_compute_while_it_serves(tmp_path: Path) -> None:
    file, picture = tmp_path / "limits.json", tmp_path / "limits.png"
    limits.main.main(["--quick", "--json", str(file), "--plot", str(picture)], standalone_mode=False)
    report = json.loads(file.read_text())
    found = {(row["case"], row["variant"]): row for row in report["results"]}
    for case in (OWN_FIRST, OWN_LAST, RATE, BETWEEN):
        assert found[case, LENT]["median"] > 0 and found[case, HOME]["median"] > 0
    assert found[UNTIL, LENT]["min"] >= 0 and found[SAME, LENT]["min"] == 100
    assert (UNTIL, HOME) not in found and len(report["goals"]) == 2
    assert picture.stat().st_size


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
    ("until_s", "same", "met"), [(2.0, 100.0, [True, True]), (limits.MOST_S, 99.9, [False, False])]
)
def test_goals(until_s: float, same: float, met: list[bool]) -> None:
    samples = {UNTIL: {LENT: [1.0, until_s]}, SAME: {LENT: [100.0, same]}}
    assert [one.met for one in limits._goals(samples)] == met
