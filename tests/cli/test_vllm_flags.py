from __future__ import annotations

import importlib
import tomllib
from typing import Any

import click
import pytest

from distkv.cli.commands import serve, up
from distkv.cli.exit_codes import run
from distkv.cli.vllm_flags import INSTANCES, SEVERAL, SHORT, VALUES, translated, without_meaningless
from distkv.client.local.launch import MODULES
from distkv.config.without_meaning import WITHOUT_MEANING
from distkv.errors import ConfigError

KNOWN = {flag for param in serve.command.params for flag in (*param.opts, *param.secondary_opts)}

KNOWN_TO_UP = {flag for param in up.command.params for flag in (*param.opts, *param.secondary_opts)}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("./model --max_num_seqs 32", "./model --max-num-seqs 32"),
        ("m --served-model-name a b --dtype=half", "m --served-model-name=a,b --dtype=float16"),
        ("--served-model-name=a --api-key k1 k2 -dp 3", "--served-model-name=a --api-key=k1,k2 --data-parallel-size 3"),
        ("--dtype float --uvicorn-log-level trace", "--dtype=float32 --log-level=debug"),
        ("--api-key=k1 ./model", "--api-key=k1 ./model"),
        ('--served-model-name=["a","b"] ./model', "--served-model-name=a,b ./model"),
        ("--generation-config vllm --generation-config ./d", "--generation-config=none --generation-config=./d"),
        ("m -tp 1 --pipeline-parallel-size=1 --port 1", "m --port 1"),
        ("--enable-chunked-prefill --no-enable-prefix-caching m", "m"),
        ("--load-format safetensors --swap-space 0 --task generate m", "m"),
        ("--disable-log-requests --cpu-offload-gb 0 m", "m"),
        ("m --max-model-len -1", "m --max-model-len=auto"),
        ("m --enable-auto-tool-choice --tool-call-parser llama4_json", "m --tool-call-parser=llama3_json"),
        ("-- --seed", "-- --seed"),
        ("--modle x -", "--modle x -"),
        ("--dtype", "--dtype="),
    ],
)
def test_what_means_the_same(words: str, expected: str):
    assert translated(words.split(), KNOWN) == expected.split()


def test_lists_may_be_json():
    assert translated(["--allowed-origins", '["http://a", "http://b"]'], KNOWN) == [
        "--allowed-origins=http://a,http://b"
    ]
    assert translated(["--allowed-origins=*"], KNOWN) == ["--allowed-origins=*"]
    assert translated(["--api-key", "[x"], KNOWN) == ["--api-key=[x"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--tensor-parallel-size 2", "--tensor-parallel-size: one process computes .*use --data-parallel-size"),
        ("-tp=2", "--tensor-parallel-size"),
        ("--tensor-parallel-size", "--tensor-parallel-size"),
        ("--no-enable-chunked-prefill", "bound the parts with --max-num-batched-tokens"),
        ("--enable-prefix-caching", "there is no prefix caching .leave it out."),
        ("--no_enable_prefix_caching=3", "--no-enable-prefix-caching"),
        ("-q awq", "--quantization: weights are not quantized"),
        ("--trust-remote-code", "models need no code of their own, and none is run .leave it out."),
        ("--enforce-eager", "kernels and CUDA graphs are prepared as the device needs .leave it out."),
        ("-O3", "--optimization-level: kernels and CUDA graphs"),
        ("-O 3", "--optimization-level: kernels and CUDA graphs"),
        ("-O.mode=3", "--optimization-level: kernels and CUDA graphs"),
        ("--logits-processors x:Y", "no code of others chooses tokens .send logit_bias"),
        ("--cpu-offload-gb 4", "weights lie where they are computed with .leave it out"),
        ("--disable-uvicorn-access-log", "the gateway logs a line for each HTTP request .--log-level warning"),
        ("--disable-log-stats", "logs have no statistics, /metrics has them .leave it out."),
        ("--num-gpu-blocks-override 99", "use --kv-tokens"),
        ("--guided-decoding-backend outlines", "llguidance follows schemas"),
        ("--seed 1", "send the same `seed`"),
    ],
)
def test_what_has_no_meaning_says_what_to_do_instead(words: str, told: str):
    with pytest.raises(ConfigError, match=told):
        translated(words.split(), KNOWN)


def test_the_tables_are_about_flags_of_serve():
    assert not WITHOUT_MEANING.keys() & KNOWN, "these have a meaning now"
    assert SEVERAL | VALUES.keys() <= KNOWN
    assert {*SHORT.values()} <= KNOWN | WITHOUT_MEANING.keys()
    assert all(flag.startswith("--") and one.why and one.instead for flag, one in WITHOUT_MEANING.items())
    named = {word for one in WITHOUT_MEANING.values() for word in one.instead.split() if word.startswith("--")}
    assert named <= KNOWN
    assert named - {INSTANCES} <= KNOWN_TO_UP and not WITHOUT_MEANING.keys() & KNOWN_TO_UP


@pytest.mark.parametrize("words", ["--tensor-parallel-size 2", "--tensor_parallel_size=2", "-tp 2"])
def test_up_says_so_too(words: str):
    with pytest.raises(ConfigError, match=r"--tensor-parallel-size: one process .*use --instances for several"):
        without_meaningless(words.split(), KNOWN_TO_UP, "--instances")


@pytest.mark.parametrize("section", MODULES)
def test_daemons_say_so_too(section: str, capsys):
    program = importlib.import_module(MODULES[section]).command
    assert run(program, ["--seed", "3"]) == 2
    assert capsys.readouterr().err.startswith("error: --seed: every request has its own seed (leave it out, and send")
    assert run(program, ["-tp", "2"]) == 2
    told = "one process computes for an instance (use a distkv-instance each for several instances, whose KV memory is"
    assert told in capsys.readouterr().err
    model = [] if section == "gmanager" else ["--model", "demo"]
    assert run(program, [*model, "-tp", "1", "--disable-log-requests", "--print-config"]) == 0


def test_up_takes_what_is_so_anyway_and_changes_nothing_else():
    words = "-tp 1 m --api-key k ./m --max_num_seqs 3 --dtype half --enable-chunked-prefill -- --seed"
    left = "m --api-key k ./m --max_num_seqs 3 --dtype half -- --seed"
    assert without_meaningless(words.split(), KNOWN_TO_UP, "--instances") == left.split()


def settings(command: click.Command, words: str, capsys: pytest.CaptureFixture[str]) -> Any:
    assert run(command, [*words.split(), "--print-config"]) == 0
    return tomllib.loads(capsys.readouterr().out)


def test_serve_is_up(capsys):
    vllm = (
        "demo -dp 3 --host 127.0.0.1 --port 8001 --served-model-name a b --max-model-len 2k --dtype half --block-size 8"
    )
    ours = (
        "demo --instances 3 --http-port 8001 --served-model-name a,b --max-model-len 2k --dtype float16 --block-size 8"
    )
    assert settings(serve.command, vllm, capsys) == settings(up.command, ours, capsys)
    assert settings(serve.command, "demo", capsys)["up"]["instances"] == 1
    assert settings(serve.command, "demo --gmanager-port 7171", capsys)["gmanager"]["port"] == 7171


def test_mistakes_are_one_sentence(capsys):
    assert run(serve.command, ["demo", "-pp", "2"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert run(serve.command, ["demo", "--max-num-seq", "2"]) == 2
    assert "Did you mean one of: '--max-num-seqs'," in capsys.readouterr().err
    assert run(serve.command, ["demo", "--max-model-len", "32KB"]) == 2
    assert "max_model_len: expected an integer" in capsys.readouterr().err


def test_a_model_that_a_flag_of_several_words_took_is_not_replaced_by_another(tmp_path, monkeypatch, capsys):
    """The demo model was served, with the directory as one more key."""
    (tmp_path / "model").mkdir()
    for flag in sorted(SEVERAL):
        assert run(serve.command, [flag, "k", str(tmp_path / "model"), "--print-config"]) == 2
        assert f"error: {flag} takes all words behind it, also {tmp_path}" in capsys.readouterr().err
    words = ["--served-model-name", "llama", str(tmp_path / "model"), "--print-config"]
    assert run(serve.command, ["--model", "demo", *words]) == 0
    monkeypatch.setenv("DISTKV_MODEL", "demo")
    assert run(serve.command, words) == 0
