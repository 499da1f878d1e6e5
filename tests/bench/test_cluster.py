"""`distkv bench cluster`: traces, what counts as served, and a quick run."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from distkv.bench import cluster
from distkv.bench.workloads.replay import Outcome, Unloaded
from distkv.bench.workloads.trace import TraceRequest, drawn_trace, read_trace, scaled
from distkv.errors import ConfigError

HEAD = "arrival_s,prompt_tokens,output_tokens\n"


def test_a_trace_is_read_in_the_order_of_arrival(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("model,output_tokens,prompt_tokens,arrival_s\na,3,20,4.5\nb,1,10,0.5\nc,2,30,9\n")
    assert read_trace(path, 2) == [TraceRequest(0.5, 10, 1), TraceRequest(4.5, 20, 3)]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no arrival_s"),
        ("arrival_s,prompt_tokens\n0,1\n", "no output_tokens"),
        (HEAD, "has no requests"),
        (HEAD + "0,1,1\n1,x,1\n", "trace.csv:3: expected numbers"),
        (HEAD + "0,1\n", "trace.csv:2: expected numbers"),
        (HEAD + "nan,1,1\n", "at least 0 s"),
        (HEAD + "0,0,1\n", "at least 1 token"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_by_its_line(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=reason):
        read_trace(path, 10)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_trace(tmp_path / "missing.csv", 10)


def test_a_trace_keeps_its_rhythm_at_another_rate() -> None:
    trace = [TraceRequest(at_s, 100, 50) for at_s in (10.0, 11.0, 14.0)]
    faster = scaled(trace, tokens=0.5, per_s=4.0)
    assert [one.arrival_s for one in faster] == [0.0, 0.125, 0.5]
    assert {(one.prompt_tokens, one.output_tokens) for one in faster} == {(50, 25)}
    assert scaled(trace[:1], tokens=0.001, per_s=4.0) == [TraceRequest(0.0, 1, 1)]


def test_drawn_lengths_vary_much_and_are_the_same_each_time() -> None:
    trace = drawn_trace(400, 100)
    assert trace == drawn_trace(400, 100)
    prompts = [one.prompt_tokens for one in trace]
    assert 80 < statistics.median(prompts) < 125
    assert statistics.stdev(prompts) > statistics.fmean(prompts)
    assert max(prompts) <= 20 * 100


def test_goodput_counts_what_came_in_time_by_the_length_of_its_prompt() -> None:
    alone = Unloaded(first_s=0.1, first_s_per_token=0.01, per_token_s=0.02)
    request = TraceRequest(0.0, 40, 3)  # first token within 3.5 s, then within 0.04 s each
    assert alone.serves(Outcome(request, [3.4, 3.43, 3.47]))
    assert not alone.serves(Outcome(request, [3.6, 3.63, 3.67]))
    assert not alone.serves(Outcome(request, [1.0, 1.05, 1.1]))
    assert alone.serves(Outcome(request, [1.0]))
    assert not alone.serves(Outcome(request, [1.0], failed="deadline"))
    assert not alone.serves(Outcome(request, []))


def test_a_request_that_all_pools_together_do_not_hold_is_refused_before_anything_starts(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(HEAD + "0,100,10\n")
    with pytest.raises(ConfigError, match=r"110 tokens, 2 pools of 32"):
        cluster.main.main(["--trace", str(path), "--kv-tokens", "32", "--quick"], standalone_mode=False)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_quick_run_plays_the_trace_to_every_variant(tmp_path: Path) -> None:
    arguments = ["--quick", "--requests", "6", "--json", str(tmp_path / "f.json"), "--plot", str(tmp_path / "f.png")]
    cluster.main.main(arguments, standalone_mode=False)
    report = json.loads((tmp_path / "f.json").read_text())
    variants = {row["variant"] for row in report["results"] if row["case"] == "output tokens/s, 20/s"}
    assert variants == {cluster.OFF, cluster.POOLED, cluster.BIG}
    assert not report["machine"]["failed"]
    assert set(report["machine"]["counts"]) == {f"{variant}, 20/s" for variant in variants}
    assert len(report["goals"]) == 2
    assert (tmp_path / "f.png").stat().st_size > 10_000
