"""`distkv sim`: what it writes, and what it refuses before anything is simulated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from distkv.bench.harness.plots import plot
from distkv.bench.simulation import sweep, timeline
from distkv.cli.exit_codes import run
from distkv.cli.main import command
from distkv.sim.baselines.single import SingleInstance
from distkv.sim.profiles.built_in import built_in, kv_tokens
from distkv.sim.spec import Kill, Restart, SimSpec, Slow
from distkv.wire.profile_file import ProfileFile, save_profile
from tests.sim.timed.parts import PROFILE

TRACE = "arrival_s,prompt_tokens,output_tokens\n3.0,100,10\n4.5,1700,10\n"
FIELDS = [
    "policy", "rate_scale", "completed", "refused", "tokens_per_s", "goodput_rps", "ttft_p50_s", "ttft_p99_s",
    "tpot_p99_s", "imbalance_p95", "remote_share",
]  # fmt: skip


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    (tmp_path / "trace.csv").write_text(TRACE)
    save_profile(ProfileFile(profile=PROFILE), tmp_path / "profile.json")
    return [
        "sim",
        "--trace",
        str(tmp_path / "trace.csv"),
        "--profile",
        str(tmp_path / "profile.json"),
        "--instances",
        "2",
    ]


def specs_of(monkeypatch: pytest.MonkeyPatch) -> list[SimSpec]:
    """What will have been simulated."""
    specs: list[SimSpec] = []
    real = sweep.sweep

    def noted(trace: Any, spec: SimSpec, *more: Any) -> Any:
        specs.append(spec)
        return real(trace, spec, *more)

    monkeypatch.setattr(sweep, "sweep", noted)
    return specs


def test_it_plays_each_policy_at_each_rate(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "sim.json"
    more = ["--kv-tokens", "1600", "--policy", "none,contract", "--rate-scale", "1,2", "--json", str(path)]
    assert run(command, [*arguments, *more]) == 0
    rows = json.loads(path.read_bytes())["results"]
    assert all(list(row) == FIELDS for row in rows)
    assert [(row["policy"], row["rate_scale"]) for row in rows] == [
        ("none", 1.0), ("none", 2.0), ("contract", 1.0), ("contract", 2.0),
    ]  # fmt: skip
    assert [(row["completed"], row["refused"]) for row in rows] == [(1, 1), (1, 1), (2, 0), (2, 0)]
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 5 and "contract" in said[3]


def test_it_says_the_same_each_time(arguments: list[str], tmp_path: Path) -> None:
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path in paths:
        assert run(command, [*arguments, "--kv-tokens", "1600", "--seed", "5", "--json", str(path)]) == 0
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_it_draws(arguments: list[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "sim.png"
    assert run(command, [*arguments, "--kv-tokens", "1600", "--plot", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_built_in_profile_says_how_large_a_pool_is(arguments: list[str], tmp_path: Path) -> None:
    path = tmp_path / "sim.json"
    assert run(command, [*arguments, "--profile", "a100-llama2-7b", "--json", str(path)]) == 0
    assert json.loads(path.read_bytes())["results"][0]["completed"] == 2


def test_a_built_in_profile_says_what_its_hosts_are_like(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    specs = specs_of(monkeypatch)
    for more in ([], ["--network", "infiniband"], ["--instances-per-host", "1"]):
        assert run(command, [*arguments, "--profile", "a100-llama2-70b", *more]) == 0
    assert [(spec.instances_per_host, spec.network_shared) for spec in specs] == [(2, True), (2, False), (1, True)]


def test_one_instance_over_all_gpus_beside_the_others(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, specs = tmp_path / "sim.json", specs_of(monkeypatch)
    common = [*arguments, "--policy", "none,single", "--json", str(path), "--profile", "a100-llama2-7b"]
    assert run(command, common) == 0
    assert run(command, [*common, "--kv-tokens", "1600"]) == 0
    rows = json.loads(path.read_bytes())["results"]
    assert [(row["policy"], row["completed"], row["refused"]) for row in rows] == [("none", 1, 1), ("single", 2, 0)]
    assert [spec.single and spec.single.kv_tokens for spec in specs] == [kv_tokens("a100-llama2-7b-tp2"), 3200]


def test_a_file_needs_the_profile_of_the_one(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    specs = specs_of(monkeypatch)
    more = ["--policy", "single", "--kv-tokens", "1600"]
    assert run(command, [*arguments, *more, "--single-profile", arguments[4]]) == 0
    assert run(command, [*arguments, *more, "--single-profile", "h100-llama2-7b-tp2"]) == 0
    singles = [spec.single for spec in specs]
    assert singles == [SingleInstance(PROFILE, 3200), SingleInstance(built_in("h100-llama2-7b-tp2"), 3200)]


def test_requests_that_move_and_prompts_that_are_computed_apart(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "sim.json"
    more = ["--kv-tokens", "1600", "--policy", "migrate,prefill-decode", "--json", str(path)]
    assert run(command, [*arguments, *more]) == 0
    rows = json.loads(path.read_bytes())["results"]
    assert [(row["policy"], row["completed"], row["refused"]) for row in rows] == [
        ("migrate", 1, 1), ("prefill-decode", 1, 1),
    ]  # fmt: skip
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.startswith("prefill-decode, ") and said.endswith("rate x 1: 1 compute prompts")


def test_loans_that_go_round_can_be_left(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    specs = specs_of(monkeypatch)
    for more in ([], ["--no-swaps"]):
        assert run(command, [*arguments, "--kv-tokens", "1600", *more]) == 0
    assert [spec.advice.dgfm_min_blocks for spec in specs] == [4, 0]


def test_it_says_how_many_are_needed(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "sim.json"
    more = ["--instances", "2,1", "--kv-tokens", "1600,800", "--goal-ttft-p99", "5", "--json", str(path)]
    assert run(command, [*arguments, *more]) == 0
    found = json.loads(path.read_bytes())
    sizes = [(row["instances"], row["kv_tokens"]) for row in found["results"]]
    assert sizes == [(1, 800), (1, 1600), (2, 800), (2, 1600)]
    assert all(list(row) == [*FIELDS, "instances", "kv_tokens"] for row in found["results"])
    assert found["goal"] == {"ttft_p99_s": 5.0}
    assert [(one["policy"], one["instances"], one["kv_tokens"]) for one in found["needed"]] == [("contract", 2, 1600)]
    said = capsys.readouterr().out.splitlines()
    assert "instances" in said[0] and "KV tokens" in said[0]
    assert said[-1].startswith("contract, rate x 1: 2 instances of 1,600 tokens; 2 instances of 800 tokens: 1 of 2")


def test_what_fails_and_when(arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, specs = tmp_path / "sim.json", specs_of(monkeypatch)
    more = ["--fail", "i0@0.01,gmanager@0-3", "--restart", "i0@20", "--slow", "i1@0-9x3", "--slow", "i0@30-31x2"]
    common = [*arguments, "--kv-tokens", "1600", "--json", str(path)]
    assert run(command, [*common, *more, "--failures-per-hour", "2", "--repair", "30"]) == 0
    (spec,) = specs
    assert spec.faults == (
        Kill(0.01, "i0"), Kill(0.0, "gmanager"), Restart(3.0, "gmanager"), Restart(20.0, "i0"),
        Slow(0.0, 9.0, "i1", 3.0), Slow(30.0, 31.0, "i0", 2.0),
    )  # fmt: skip
    assert (spec.failures_per_hour, spec.repair_s) == (2.0, 30.0)
    assert json.loads(path.read_bytes())["results"][0]["completed"] == 1, "the larger one needs both"


def test_it_draws_the_memory_over_time(arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in two columns, and not of all instances."""
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(timeline, "MOST_POOLS", timeline.TWO_COLUMNS + 1)
    paths = [tmp_path / "few.png", tmp_path / "many.png"]
    faults = ["--fail", "i1@1-2,gmanager@1", "--slow", "i0@1-3x2"]
    assert run(command, [*arguments, "--kv-tokens", "1600", *faults, "--timeline", str(paths[0])]) == 0
    assert run(command, [*arguments, "--kv-tokens", "1600", "--instances", "12", "--timeline", str(paths[1])]) == 0
    for path in paths:
        assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("flag", ["--plot", "--timeline"])
def test_the_flag_that_needs_matplotlib_is_named(
    arguments: list[str], flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plot, "find_spec", lambda name: None)
    assert run(command, [*arguments, "--kv-tokens", "1600", flag, str(tmp_path / "x.png")]) == 2
    assert f"{flag} needs matplotlib" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--kv-tokens", "1600", "--fail", "i9@1"], "there is no instance 'i9': they are i0 to i1"),
        (["--kv-tokens", "1600", "--fail", "i1@2-1"], "fail: expected an end after 2 s, got 'i1@2-1'"),
        (["--kv-tokens", "1600", "--slow", "gmanager@1-2x2"], "only instances can be slowed"),
        (["--kv-tokens", "1600", "--failures-per-hour", "1e9"], "--failures-per-hour"),
        (["--kv-tokens", "1600", "--repair", "0"], "--repair"),
        (["--instances", "4,0"], "0 is not in the range x>=1"),
        (["--instances", "4,x"], "'x' is not a valid integer"),
        (["--kv-tokens", "4K,x"], "expected a whole number such as 256 or 4K, got 'x'"),
        (["--kv-tokens", "1600,8"], "8 tokens are less than one rBlock of 16"),
        (["--goal-ttft-p99", "0"], "--goal-ttft-p99"),
        (["--goal-completed", "2"], "--goal-completed"),
        (["--kv-tokens", "1600", "--timeline", "no/such/x.png"], "there is no directory"),
        (["--policy", "none,other"], "'other' is not one of 'contract', 'greedy', 'even', 'none', 'single', "),
        (
            ["--policy", "single", "--kv-tokens", "1600"],
            "a measured profile says nothing of one instance over all GPUs",
        ),
        (["--single-profile", "a100-llama2-7b-tp2", "--kv-tokens", "1600"], "--single-profile is of --policy single"),
        (["--prefill-instances", "1", "--kv-tokens", "1600"], "--prefill-instances is of --policy prefill-decode"),
        (
            ["--policy", "none,prefill-decode", "--prefill-instances", "2", "--kv-tokens", "1600"],
            "prefill_instances: expected 1 to 1, for the others decode, got 2",
        ),
        (["--policy", "none,prefill-decode", "--instances", "1", "--kv-tokens", "1600"], "it needs at least 2"),
        (["--profile", "a100-llama2-7b", "--policy", "single", "--instances", "3"], "takes 1, 2, 4, 8 GPUs of a host"),
        (["--rate-scale", "0"], "0.0 is not in the range x>=1e-06"),
        (["--scale-tokens", "1e12"], "is not in the range 0<x<=1000"),
        (["--rate-scale", "nan"], "expected a finite number, got 'nan'"),
        (["--rate-scale", "inf"], "expected a finite number, got 'inf'"),
        (["--profile", "a100-lama2-7b"], "a100-llama2-7b"),
        (["--profile", "a100-llama2-70b-tp1"], "its weights leave no memory for KV"),
        (["--profile", "missing.json"], "cannot read missing.json"),
        (["--network", "ethernet"], "--network is of a built-in profile"),
        ([], "a profile from a file does not say how large a pool is"),
        (["--kv-tokens", "0"], "kv_tokens: expected at least 1, got 0"),
        (["--kv-tokens", "1600", "--json", "no/such/x.json"], "there is no directory"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(
    arguments: list[str], more: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command, [*arguments, *more]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("5.0,100,0", "trace.csv:4: output_tokens: expected a whole number of at least 1, got 0"),
        ("5.0,100", "trace.csv:4: output_tokens: expected a number from 0 to 1e+09, got nothing"),
        ("5.0,,10", "trace.csv:4: prompt_tokens: expected a number from 0 to 1e+09, got nothing"),
        ("5.0,1.5,10", "trace.csv:4: prompt_tokens: expected a whole number of at least 1, got 1.5"),
        ("5.0,1e12,10", "trace.csv:4: prompt_tokens: expected a number from 0 to 1e+09, got '1e12'"),
        ("-1,100,10", "trace.csv:4: arrival_s: expected a number from 0 to 1e+09, got '-1'"),
        ("nan,100,10", "trace.csv:4: arrival_s: expected a number from 0 to 1e+09, got 'nan'"),
        ("inf,100,10", "trace.csv:4: arrival_s"),
        ("five,100,10", "trace.csv:4: arrival_s: expected a number from 0 to 1e+09, got 'five'"),
        ("2026-01-01,100,10", "trace.csv:4: arrival_s"),
        ("x" * 5000 + ",100,10", "trace.csv:4: arrival_s: expected a number from 0 to 1e+09, got 5000 characters"),
        ("5.0," + "9" * 200_000 + ",10", "trace.csv:4: field larger than field limit"),
    ],
)
def test_a_bad_trace_is_named_by_row_and_field(
    line: str, said: str, arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "trace.csv").write_text(f"{TRACE}{line}\n")
    assert run(command, [*arguments, "--kv-tokens", "1600"]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "expected the columns arrival_s, prompt_tokens, output_tokens, no arrival_s"),
        (b"arrival_s,prompt_tokens\n1,2\n", "no output_tokens"),
        (b"a,b,c\n1,2,3\n", "no arrival_s"),
        (b"arrival_s,prompt_tokens,output_tokens\n", "has no requests"),
        (b"\xff\xfe\x00", "cannot be read"),
        (b"arrival_s,prompt_tokens,output_tokens\n1,\x00,3\n", "prompt_tokens"),
    ],
)
def test_what_is_no_trace_is_said(
    text: bytes, said: str, arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "trace.csv").write_bytes(text)
    assert run(command, [*arguments, "--kv-tokens", "1600"]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda file: b"", "profile.json is no profile"),
        (lambda file: b"[" * 100_000, "profile.json is no profile"),
        (lambda file: file[:200], "profile.json is no profile"),
        (lambda file: file.replace(b'"layers": 10', b'"layers": 0'), "$.profile.layers"),
        (lambda file: file.replace(b'"layers": 10', b'"layers": "10"'), "$.profile.layers"),
        (lambda file: file.replace(b'"layers": 10,', b""), "missing required field `layers`"),
        (lambda file: file.replace(b'"layers": 10', b'"layers": 10, "Layers": 1'), "it has profile.Layers"),
        (lambda file: file.replace(b'"format": 1', b'"format": 2'), "$.format"),
        (lambda file: file.replace(b'"host"', b'"moon"'), "$.profile.links"),
        (lambda file: file.replace(b"0.12\n", b"0.001\n"), "prefill falls from 0.02 to 0.001 s"),
        (lambda file: file.replace(b"0.03\n", b"-1\n"), "$.profile.step"),
    ],
)
def test_a_bad_profile_is_named_by_field(
    change, said: str, arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "profile.json"
    changed = change(path.read_bytes())
    assert changed != path.read_bytes()
    path.write_bytes(changed)
    assert run(command, [*arguments, "--kv-tokens", "1600"]) == 2
    said_once = capsys.readouterr().err
    assert said in said_once and len(said_once.splitlines()) == 1
