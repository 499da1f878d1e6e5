"""`distkv bench cluster`: traces, what counts as served, and a quick run."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from distkv.bench.pooling.contenders import POOLED
from distkv.bench.serving import cluster
from distkv.bench.workloads.trace import POOL_OF_LARGEST, drawn_trace, pool_of, read_trace, varies_much
from distkv.errors import ConfigError
from distkv.sim.outcome import Outcome, Unloaded
from distkv.sim.trace import TraceRequest

HEAD = "arrival_s,prompt_tokens,output_tokens\n"


def test_a_trace_is_read_in_the_order_of_arrival(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(
        "model,output_tokens,prompt_tokens,arrival_s\na,3,20,4.5\nb,1,10,0.5\nc,2,30,9\n", encoding="utf-8-sig"
    )
    assert read_trace(path, 2) == [TraceRequest(0.5, 10, 1), TraceRequest(4.5, 20, 3)]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.csv cannot be read"):
        read_trace(tmp_path / "missing.csv", 10)
    path = tmp_path / "trace.csv"
    path.write_bytes(HEAD.encode() + b"\xff")
    with pytest.raises(ConfigError, match=r"trace\.csv cannot be read"):
        read_trace(path)


def test_drawn_outputs_vary_much_are_longer_than_prompts_and_the_same_each_time() -> None:
    trace = drawn_trace("variance", 400, 48)
    assert trace == drawn_trace("variance", 400, 48) != drawn_trace("variance", 400, 48, seed=1)
    prompts, outputs = [one.prompt_tokens for one in trace], [one.output_tokens for one in trace]
    assert 40 < statistics.median(prompts) < 56 and max(prompts) <= 2.5 * 48
    assert statistics.fmean(outputs) > 3 * statistics.fmean(prompts)
    assert sum(one > 250 for one in outputs) / 400 == pytest.approx(0.2, abs=0.05)
    assert varies_much(trace)


def test_a_drawn_trace_has_requests_that_its_pools_do_not_hold() -> None:
    trace = drawn_trace("long", 60, 48)
    largest = max(one.num_tokens for one in trace)
    pool = POOL_OF_LARGEST["long"] * largest
    beyond = [one for one in trace if one.num_tokens > pool]
    assert len(beyond) == 6 and largest < 2 * pool
    others = max(one.num_tokens for one in trace if one not in beyond)
    assert pool == pytest.approx(1.5 * others, rel=0.01)
    assert all(one.prompt_tokens > one.output_tokens for one in beyond)


def test_requests_that_are_all_alike_do_not_vary() -> None:
    trace = drawn_trace("even", 20, 48)
    assert {(one.prompt_tokens, one.output_tokens) for one in trace} == {(48, 192)}
    assert trace[0].arrival_s == 0 and not varies_much(trace)


def test_of_documents_an_instance_has_room_for_one_and_chats_take_hardly_any() -> None:
    trace = drawn_trace("documents", 90, 48)
    pool = pool_of(trace, POOL_OF_LARGEST["documents"])
    large = [one.num_tokens for one in trace if one.num_tokens > 0.3 * pool]
    assert len(large) == 30 and pool / 2 < min(large) <= max(large) <= pool / 1.5 + 16
    assert max(one.num_tokens for one in trace if one.num_tokens not in large) < pool / 4
    assert varies_much(trace) and trace == drawn_trace("documents", 90, 48)


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


def test_who_cannot_run_is_told_if_nobody_can(tmp_path: Path) -> None:
    arguments = ["--quick", "--contender", "vllm", "--venvs", str(tmp_path)]
    with pytest.raises(ConfigError, match="vllm: it is not installed"):
        cluster.main.main(arguments, standalone_mode=False)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_quick_run_plays_the_trace_to_every_contender(tmp_path: Path) -> None:
    arguments = ["--quick", "--requests", "6", "--rounds", "2", "--drawn", "long", "--venvs", str(tmp_path)]
    files = ["--json", str(tmp_path / "f.json"), "--plot", str(tmp_path / "f.png")]
    cluster.main.main([*arguments, *files], standalone_mode=False)
    report = json.loads((tmp_path / "f.json").read_text())
    facts = report["machine"]
    rows = {row["variant"]: row["median"] for row in report["results"] if row["case"] == "output tokens/s, 20/s"}
    simulated = {f"{variant}, simulated" for variant in ("off", *POOLED)} - facts["left_out"].keys()
    assert simulated <= rows.keys() and all(rows[variant] > 0 for variant in simulated)
    assert facts["unloaded_simulated"].startswith("first token ") and facts["control_ms"] >= 0
    variants = rows.keys() - simulated
    assert variants == {"off", "big", *POOLED} - facts["left_out"].keys()
    assert facts["left_out"]["vllm"].startswith("it is not installed")
    assert set(facts["counts"]) == {f"{variant}, 20/s" for variant in variants}
    refused = {row["variant"]: row["median"] for row in report["results"] if row["case"] == "refused, 20/s"}
    assert refused == dict.fromkeys(variants, 0) | {"off": 1}
    met = {goal["goal"]: goal["met"] for goal in report["goals"]}
    assert len(met) == 6 * len(POOLED) + 2 * len(simulated)
    assert met["requests that no single instance holds are served, contract, the default"] is True
    assert (tmp_path / "f.png").stat().st_size > 10_000
