"""`distkv bench prefill` from the command line."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from distkv.bench.computing import prefill
from distkv.bench.harness.alternate import Samples
from distkv.errors import ConfigError
from distkv.types import PrefillKv
from tests.bench.quick_run import drawn_report


class Cluster:
    """Stands for a cluster; says what it was started with."""

    def __init__(self, model: Path, instances: int, kv_tokens: int, *, prefill_kv: PrefillKv, **_: object) -> None:
        self.settings = (instances, kv_tokens, prefill_kv)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("clusters", ["pretended", pytest.param("real", marks=pytest.mark.slow)])
def test_a_quick_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clusters: str) -> None:
    asked: list[tuple[int, int, PrefillKv]] = []
    if clusters == "pretended":

        def first_token(cluster: Cluster, prompt: Sequence[int]) -> float:
            assert len(prompt) == 384
            asked.append(cluster.settings)
            return 0.5

        monkeypatch.setattr(prefill, "LocalCluster", Cluster)
        monkeypatch.setattr(prefill, "first_token_s", first_token)
    cores = os.sched_getaffinity(0)
    report = drawn_report(prefill.main, tmp_path)
    assert os.sched_getaffinity(0) == cores
    grid = "32 rows over 256 tokens, host, idle creditor, ms"
    first = "first token of 384, 2 pools of 256, host, s"
    assert [(row["case"], row["variant"]) for row in report["results"]] == [
        *((grid, way) for way in ("chosen", "ship", "fetch")),
        *((first, way) for way in ("chosen", "ship")),
    ]
    assert [goal["goal"] for goal in report["goals"]] == [
        f"{grid}: chosen beside the better one",
        f"{first}: before beside now",
    ]
    assert all(goal["met"] is None and "2 rounds" in goal["why"] for goal in report["goals"])
    assert report["machine"]["share of the KV that fetch fetched"] == {grid: 1.0}
    if clusters == "pretended":
        assert set(asked) == {(2, 256, "auto"), (2, 256, "ship")} and len(asked) == 2 * (2 + 2)


def test_bad_settings_are_refused_before_anything_is_made() -> None:
    for name, given in (("rows", "1"), ("rows", "x"), ("remote", ""), ("links", "wifi"), ("creditor", "idle,gone")):
        if given:
            with pytest.raises(ConfigError, match=name):
                prefill.main.main(["--quick", f"--{name}", given], standalone_mode=False)


@pytest.mark.parametrize(
    ("chosen", "met"), [([1.01] * 9, True), ([1.2] * 9, False), ([1.0, 1.2] * 5, None), ([0.9] * 9, True)]
)
def test_the_chosen_way_is_judged_by_the_better_one(chosen: list[float], met: bool | None) -> None:
    samples: Samples = {"case": {"chosen": chosen, "ship": [1.0] * len(chosen), "fetch": [3.0] * len(chosen)}}
    goal = prefill._within("case", samples["case"], 1.0)
    assert goal.met is met and "the better one is ship" in goal.why


def test_without_enough_rounds_there_is_no_verdict() -> None:
    for rounds, met in ((1, None), (8, None), (9, True)):
        variants = {"chosen": [1.0] * rounds, "ship": [1.5] * rounds, "fetch": [1.0] * rounds}
        for goal in (prefill._within("case", variants, 1.0), prefill._sooner("case", variants)):
            assert goal.met is met and ("a verdict takes 9" in goal.why) == (met is None)


def test_a_fetch_that_ships_instead_is_no_measure_of_fetching() -> None:
    variants = {"chosen": [1.0] * 9, "ship": [1.0] * 9, "fetch": [1.0] * 9}
    goal = prefill._within("case", variants, 0.4)
    assert goal.met is None and goal.why == "fetch fetched 40% of the KV and shipped queries to the rest"
