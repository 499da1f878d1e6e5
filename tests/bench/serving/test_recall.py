from __future__ import annotations

import json

import click
import pytest

from distkv.bench.harness.plots.exact import Score
from distkv.bench.recall_cells import cells, instances
from distkv.bench.recall_cells.answer_cache import AnswerCache
from distkv.bench.serving import recall
from distkv.cli.exit_codes import run
from distkv.config import DEMO_MODEL, model_dir

CHECKPOINT = model_dir(DEMO_MODEL)


def bench(*arguments: str) -> None:
    assert recall.main.main(["--quick", *arguments], standalone_mode=False) == 0


@pytest.fixture
def answered(monkeypatch) -> list[int]:
    """Documents whose questions were answered: all of them rightly, without the model, and among little English."""
    from distkv.demo.recall import RecallScorer

    asked: list[int] = []
    monkeypatch.setattr(
        RecallScorer,
        "greedy",
        lambda self, document: asked.append(1) or [self.answer(placed) for placed in document.questions],
    )
    monkeypatch.setattr(recall, "held_out_texts", lambda: ["Some text. " * 50])
    return asked


def test_a_quick_run_counts_every_sort_and_draws_the_depths(tmp_path, answered, capsys):
    bench("--no-cluster", "--json", str(tmp_path / "f.json"), "--plot", str(tmp_path / "f.png"))
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
    assert len(report["goals"]) == 4
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")
    assert "goal" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_distkv_gives_the_answers_of_transformers_on_one_instance_and_over_four(tmp_path):
    bench("--json", str(tmp_path / "f.json"))
    report = json.loads((tmp_path / "f.json").read_text())
    same = report["goals"][-1]
    assert same["goal"] == recall.SAME and same["measured"].startswith("4/4 = ") and same["met"]
    assert {row["variant"] for row in report["results"] if row["unit"] == "% same"} == {
        "as transformers, 1 instance: 2/2",
        "as transformers, 4 instances: 2/2",
    }


def test_what_is_kept_is_not_measured_again(tmp_path, answered):
    keep = ("--keep", str(tmp_path / "cache.jsonl"), "--no-cluster", "--json", str(tmp_path / "f.json"))
    bench(*keep)
    first = json.loads((tmp_path / "f.json").read_text())
    bench(*keep)
    again = json.loads((tmp_path / "f.json").read_text())
    assert len(answered) == 4 == len((tmp_path / "cache.jsonl").read_text().splitlines())
    assert again["results"] == first["results"]
    assert [goal["met"] for goal in again["goals"]] == [True, True, True, None]
    assert again["goals"][-1]["why"] == "left out"


def test_an_interrupted_run_keeps_the_documents_that_were_read(tmp_path, monkeypatch):
    from distkv.demo.recall import RecallScorer

    asked = []

    def greedy(self, document):
        asked.append(1)
        if len(asked) == 4:
            raise KeyboardInterrupt
        return [self.answer(placed) for placed in document.questions]

    monkeypatch.setattr(recall, "held_out_texts", lambda: ["Some text. " * 50])
    monkeypatch.setattr(RecallScorer, "greedy", greedy)
    arguments = ["--quick", "--no-cluster", "--json", str(tmp_path / "f.json"), "--plot", str(tmp_path / "f.png")]
    assert run(recall.main, arguments) == 130
    report = json.loads((tmp_path / "f.json").read_text())
    facts = {row["case"]: row["variant"] for row in report["results"] if row["variant"].startswith("facts")}
    assert facts == {"2,048 tokens, generated prose": "facts: 64/64", "2,048 tokens, plain English": "facts: 32/32"}
    assert report["machine"]["interrupted"] and (tmp_path / "f.png").exists()


def test_distkv_is_not_started_for_answers_that_are_kept(tmp_path, monkeypatch):
    started = []

    class Cluster:
        def __init__(self, model, *, instances, kv_tokens, **_):
            started.append((instances, kv_tokens))

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def generate(self, prompts, params):
            return [type("Output", (), {"token_ids": [len(prompt)]}) for prompt in prompts]

    monkeypatch.setattr(instances, "LocalCluster", Cluster)
    for _ in range(2):
        cache = AnswerCache(tmp_path / "cache.jsonl")
        assert instances.distkv_answers(CHECKPOINT, ["one", "other"], 4096, 4, 1, cache, lambda _: None) == [[3], [5]]
    assert started == [(4, 1152)]


def test_a_file_that_holds_something_else_is_refused(tmp_path):
    (tmp_path / "cache.jsonl").write_text('{"key": 1}\n')
    with pytest.raises(click.UsageError, match=r"line 1 of .* was not written by --keep"):
        AnswerCache(tmp_path / "cache.jsonl")


def test_a_length_that_there_is_not_is_named_with_those_there_are():
    with pytest.raises(click.UsageError, match="no document of 5 tokens; there are 2048"):
        bench("--tokens", "5")


def test_the_interval_holds_the_share_and_narrows_with_questions():
    few, many = Score(9, 10), Score(900, 1000)
    for score in (few, many):
        assert score.interval[0] < score.percent == 90 < score.interval[1]
    assert few.interval[0] < many.interval[0] < many.interval[1] < few.interval[1]
    assert Score(10, 10).interval[1] == 100 and Score(0, 10).interval[0] == 0


def test_the_full_run_asks_four_hundred_times_or_more_in_each_cell():
    assert all(cell.documents * cell.facts >= 400 and cell.documents % 2 == 0 for cell in cells.FULL)
    assert cells.band_of(0.0) == "depth 0-10 %" and cells.band_of(0.9999) == "depth 90-100 %"


@pytest.mark.slow
def test_the_held_out_texts_are_none_of_those_trained_on():
    assert not dict.fromkeys(cells.held_out_texts()).keys() & dict.fromkeys(cells.english.texts("train")).keys()
