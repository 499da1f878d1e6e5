"""`distkv bench pooling`: a quick run ends with a report, in which nobody is ahead of the oracle by much."""

from __future__ import annotations

from pathlib import Path

import pytest

from distkv.bench.deciding.pooling import CHATS, EARLY, FIRST, PLAYERS, SHORT, WHOLE, main
from distkv.bench.workloads.trace import drawn_trace
from distkv.errors import ConfigError
from distkv.sim.trace import trace_lines
from tests.bench.quick_run import quick_report


@pytest.mark.slow
def test_a_quick_run(tmp_path: Path) -> None:
    report = quick_report(main, tmp_path)
    assert [(row["case"], row["variant"]) for row in report["results"]] == [
        (f"{case}, 2 instances, 40% documents", name)
        for case in (WHOLE, EARLY, FIRST, CHATS, SHORT)
        for name in PLAYERS
    ]
    rates = {row["variant"]: row["median"] for row in report["results"] if row["case"].startswith(f"{WHOLE},")}
    assert rates["off"] < 0.9 * rates["oracle"] and rates["contract"] <= 1.1 * rates["oracle"]
    stated = {goal["goal"].rpartition(": ")[2] for goal in report["goals"]}
    assert stated == {"contract to off", "greedy to off", "even to off"}


@pytest.mark.slow
def test_another_load_at_each_rate(tmp_path: Path) -> None:
    options = ["--drawn", "even", "--rate", "0.5", "--rate", "4", "--player", "contract", "--median-tokens", "24"]
    report = quick_report(main, tmp_path, *options)
    assert {(row["case"], row["variant"]) for row in report["results"]} == {
        (f"{case}, 2 instances, even, {rate}/s each", name)
        for case in (WHOLE, EARLY, FIRST)  # all are alike: nobody is shorter than others
        for rate in ("0.5", "4")
        for name in ("off", "contract")
    }
    rates = {row["case"].rpartition(", ")[2]: row["median"] for row in report["results"] if row["variant"] == "off"}
    assert rates["0.5/s each"] != rates["4/s each"]
    assert report["goals"] == [], "no oracle says what there is to gain"


def test_parts_of_a_trace(tmp_path: Path) -> None:
    trace = tmp_path / "chats.csv"
    trace.write_text("".join(trace_lines(drawn_trace("variance", 80, 24))))
    options = ["--trace", str(trace), "--scale-tokens", "0.5", "--rate", "2", "--player", "contract"]
    report = quick_report(main, tmp_path, *options)
    assert {row["case"].partition(", ")[2] for row in report["results"]} == {"2 instances, chats.csv, 2/s each"}
    assert report["machine"]["requests"].endswith("lengths times 0.5")
    with pytest.raises(ConfigError, match=r"trace: .*chats.csv has 80 requests, 112 are played"):
        main.main(["--quick", *options, "--instances", "3"], standalone_mode=False)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--trace", __file__, "--drawn", "even"], "trace: what is drawn has shares and lengths"),
        (["--trace", __file__, "--median-tokens", "9"], "trace: what is drawn has shares and lengths"),
        (["--scale-tokens", "2"], "scale_tokens: there is no trace"),
        (["--drawn", "variance", "--share", "0.2"], "share: there are no documents in 'variance'"),
    ],
)
def test_what_would_mean_nothing_is_refused(options: list[str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        main.main(["--quick", *options], standalone_mode=False)
