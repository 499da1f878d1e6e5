from __future__ import annotations

import io
import json
import sys

import click
import pytest

from distkv.cli.commands import generate
from distkv.cli.exit_codes import run
from distkv.cli.main import command
from distkv.cli.structured_flags import structured_output
from distkv.client.prompts import MAX_PROMPT_BYTES
from distkv.errors import InvalidParams
from distkv.structured_output import StructuredOutput
from distkv.types import SamplingParams, TokenLogprobs
from distkv.wire.messages.to_client import TokenChunk
from distkv.wire.messages.to_rmanager import Submit
from tests.client.fakes import count_up


def distkv_command(*args: str) -> int:
    return run(command, args)


@pytest.fixture
def cluster(background):
    return background.start(count_up)


def submitted(cluster) -> Submit:
    return cluster.instances[0].of(Submit)[-1]


def test_generate_streams_text(cluster, capsys):
    assert distkv_command("generate", "hello", "--max-tokens", "3", "--address", cluster.address) == 0
    assert capsys.readouterr().out == "0 1 2 \n"
    assert submitted(cluster).prompt == "hello"


def test_generate_json(cluster, capsys, monkeypatch):
    monkeypatch.setenv("DISTKV_ADDRESS", cluster.address)
    assert distkv_command("generate", "hello", "--max-tokens", "2", "--json", "--request-id", "r") == 0
    output = json.loads(capsys.readouterr().out)
    assert (output["text"], output["token_ids"], output["finish_reason"]) == ("0 1 ", [0, 1], "length")
    assert (output["request_id"], output["prompt_tokens"]) == ("r", 5)


def test_generate_hands_every_sampling_flag_on(cluster):
    flags = "--temperature 0.5 --top-p 0.9 --top-k 7 --seed 3 --stop a --stop b --stop-token-id 2 --ignore-eos"
    assert distkv_command("generate", "x", *flags.split(), "--timeout", "90", "--address", cluster.address) == 0
    params = submitted(cluster).params
    assert (params.temperature, params.top_p, params.top_k, params.seed) == (0.5, 0.9, 7, 3)
    assert (params.stop, params.stop_token_ids, params.ignore_eos) == (("a", "b"), (2,), True)
    assert 60 < submitted(cluster).timeout_s <= 90, "what is left of it"


def test_generate_takes_a_file_or_standard_input(cluster, tmp_path, monkeypatch):
    path = tmp_path / "prompt.txt"
    path.write_text("från en fil", encoding="utf-8")
    assert distkv_command("generate", "--file", str(path), "--address", cluster.address) == 0
    assert submitted(cluster).prompt == "från en fil"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"from a pipe")))
    assert distkv_command("generate", "--address", cluster.address) == 0
    assert submitted(cluster).prompt == "from a pipe"
    (tmp_path / "standard input").write_text("of that name")
    monkeypatch.chdir(tmp_path)
    assert distkv_command("generate", "--file", "standard input", "--address", cluster.address) == 0
    assert submitted(cluster).prompt == "of that name"


def test_generate_hands_every_new_sampling_flag_on(cluster):
    flags = (
        "--min-p 0.1 --repetition-penalty 1.2 --presence-penalty -0.5 --frequency-penalty 0.25 --logit-bias 3=-100 "
        "--logit-bias 7=1.5 --logprobs 2 --max-tokens 1K --json --min-tokens 3 --bad-word a --bad-word b "
        "--allowed-token-id 5 --no-skip-special-tokens --include-stop-str-in-output"
    )
    assert distkv_command("generate", "x", *flags.split(), "--address", cluster.address) == 0
    params = submitted(cluster).params
    assert (params.min_p, params.repetition_penalty, params.presence_penalty) == (0.1, 1.2, -0.5)
    assert (params.frequency_penalty, params.logit_bias) == (0.25, {3: -100.0, 7: 1.5})
    assert (params.logprobs, params.prompt_logprobs, params.max_tokens) == (2, None, 1024)
    assert (params.min_tokens, params.bad_words, params.allowed_token_ids) == (3, ("a", "b"), (5,))
    assert (params.skip_special_tokens, params.include_stop_str_in_output) == (False, True)
    assert distkv_command("generate", "x", "--address", cluster.address) == 0
    assert cluster.instances[0].of(Submit)[-1].params == SamplingParams()


def test_every_sampling_parameter_has_a_flag():
    flags = {option.name for option in generate.command.params}
    missing = set(SamplingParams.__struct_fields__) - flags - {"stop_token_ids", "prompt_logprobs", "structured_output"}
    assert not missing and "stop_token_id" in flags


def test_generate_json_shows_logprobs_by_name(background, capsys):
    def with_logprobs(instance, route, submit):
        one = TokenLogprobs(token_id=5, logprob=-0.5, rank=1, top=((5, -0.5), (9, -2.0)))
        return [
            TokenChunk(request_id=submit.request_id, token_ids=(5,), text="a", finish_reason="length", logprobs=(one,))
        ]

    cluster = background.start(with_logprobs)
    arguments = ["generate", "x", "--json", "--address", cluster.address]
    assert distkv_command(*arguments, "--logprobs", "2") == 0
    output = json.loads(capsys.readouterr().out)
    assert output["logprobs"] == [{"token_id": 5, "logprob": -0.5, "rank": 1, "top": [[5, -0.5], [9, -2.0]]}]


def test_several_answers_are_told_apart(cluster, capsys):
    arguments = ["generate", "hello", "-n", "3", "--max-tokens", "2", "--seed", "5", "--address", cluster.address]
    assert distkv_command(*arguments, "--request-id", "r") == 0
    assert capsys.readouterr().out.splitlines() == [
        line for index in (1, 2, 3) for line in (f"--- answer {index} of 3 ---", "0 1 ")
    ]
    sent = cluster.instances[0].of(Submit)
    assert sorted((one.request_id, one.params.seed) for one in sent) == [("r-0", 5), ("r-1", 6), ("r-2", 7)]
    assert distkv_command(*arguments, "--json") == 0
    assert [one["token_ids"] for one in json.loads(capsys.readouterr().out)] == [[0, 1]] * 3


@pytest.mark.parametrize("arguments", [["-"], ["--file", "-"], []])
def test_a_dash_is_standard_input(cluster, monkeypatch, arguments):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("från rör\n".encode())))
    assert distkv_command("generate", *arguments, "--address", cluster.address) == 0
    assert submitted(cluster).prompt == "från rör\n"


def test_a_long_prompt_is_sent_whole_and_one_too_long_is_refused(cluster, tmp_path, capsys):
    path = tmp_path / "long.txt"
    path.write_text("word " * 400_000)
    assert distkv_command("generate", "--file", str(path), "--address", cluster.address) == 0
    assert len(submitted(cluster).prompt) == 2_000_000
    path.write_text("x" * (MAX_PROMPT_BYTES + 1))
    assert distkv_command("generate", "--file", str(path), "--address", cluster.address) == 2
    err = capsys.readouterr().err
    assert "text of at most" in err and len(err) < 200


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "prompt.txt is empty; there is no prompt"),
        (b"ab\xff", "prompt.txt is not UTF-8 text: invalid start byte at"),
    ],
)
def test_what_is_no_prompt(tmp_path, monkeypatch, capsys, content, told):
    (tmp_path / "prompt.txt").write_bytes(content)
    assert distkv_command("generate", "--file", str(tmp_path / "prompt.txt")) == 2
    assert told in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    assert distkv_command("generate") == 2
    assert told.replace("prompt.txt", "standard input") in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--json-object"], StructuredOutput.json_object()),
        (["--regex", "a+"], StructuredOutput.regex("a+")),
        (["--choice", "yes", "--choice", "no"], StructuredOutput.choice(["yes", "no"])),
        (["--json-schema", "FILE"], StructuredOutput.json_schema("of the file")),
        (["--grammar", "FILE"], StructuredOutput.grammar("of the file")),
    ],
)
def test_flags_say_what_an_answer_must_be(tmp_path, flags, expected):
    file = tmp_path / "file"
    file.write_text("of the file")
    arguments = ["x", *(str(file) if flag == "FILE" else flag for flag in flags)]
    assert structured_output(generate.command.make_context("generate", arguments).params) == expected


def test_one_flag_says_what_an_answer_must_be():
    options = generate.command.make_context("generate", ["x", "--json-object", "--regex", "a"]).params
    with pytest.raises(click.UsageError, match="--json-object and --regex are given; give one of them"):
        structured_output(options)
    assert structured_output(generate.command.make_context("generate", ["x"]).params) is None


def test_an_empty_flag_is_not_taken_for_none():
    """`--regex "$PATTERN"` without a PATTERN was answered freely."""
    with pytest.raises(InvalidParams, match="structured_output: expected a regex of 1 to"):
        structured_output(generate.command.make_context("generate", ["x", "--regex", ""]).params)
    with pytest.raises(click.UsageError, match="--regex and --choice"):
        structured_output(generate.command.make_context("generate", ["x", "--choice", "a", "--regex", ""]).params)
