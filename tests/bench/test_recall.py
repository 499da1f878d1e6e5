from __future__ import annotations

import json

import pytest

from distkv.bench import recall
from distkv.bench.harness.exact import Score


@pytest.mark.timeout(240)
def test_a_quick_run_counts_every_sort_and_draws_the_depths(tmp_path, capsys):
    arguments = ["--quick", "--json", str(tmp_path / "f.json"), "--plot", str(tmp_path / "f.png")]
    assert recall.main.main(arguments, standalone_mode=False) == 0
    report = json.loads((tmp_path / "f.json").read_text())
    asked: dict[tuple[str, str], int] = {}
    for row in report["results"]:
        sort, _, counts = row["variant"].partition(": ")
        assert 0 <= row["min"] <= row["median"] <= row["max"] <= 100
        asked[row["case"], sort] = int(counts.partition("/")[2])
    for case in ("2,048 tokens, generated prose", "2,048 tokens, plain English"):
        assert asked[case, "facts"] == asked[case, "near keys"] + asked[case, "other keys"] == 64
        assert sum(count for (found, sort), count in asked.items() if found == case and "depth" in sort) == 64
        assert asked[case, "not mentioned"] == 16
    assert len(report["goals"]) == 3
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")
    assert "goal" in capsys.readouterr().out


def test_the_interval_holds_the_share_and_narrows_with_questions():
    few, many = Score(9, 10), Score(900, 1000)
    for score in (few, many):
        assert score.interval[0] < score.percent == 90 < score.interval[1]
    assert few.interval[0] < many.interval[0] < many.interval[1] < few.interval[1]
    assert Score(10, 10).interval[1] == 100 and Score(0, 10).interval[0] == 0


def test_the_full_run_asks_four_hundred_times_or_more_in_each_cell():
    assert all(cell.documents * recall.NUM_FACTS >= 400 and cell.documents % 2 == 0 for cell in recall.FULL)
    assert recall.band_of(0.0) == "depth 0-10 %" and recall.band_of(0.9999) == "depth 90-100 %"


@pytest.mark.slow
def test_the_held_out_texts_are_none_of_those_trained_on():
    assert not dict.fromkeys(recall.held_out_texts()).keys() & dict.fromkeys(recall.english.texts("train")).keys()
