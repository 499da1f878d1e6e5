from __future__ import annotations

import subprocess
import sys
from unittest.mock import Mock

import msgspec
import pytest

import distkv
from distkv import InvalidParams, SamplingParams, types
from distkv.types import (
    MAX_ALLOWED_TOKEN_IDS,
    MAX_BAD_WORDS,
    MAX_BAD_WORDS_BYTES,
    MAX_LOGIT_BIASES,
    MAX_LOGPROBS,
    MAX_STOP_BYTES,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    MAX_STOPS_BYTES,
    WHAT_FITS,
)


def test_defaults():
    params = SamplingParams()
    assert (params.max_tokens, params.temperature, params.top_p, params.top_k) == (16, 1.0, 1.0, 0)
    assert (params.seed, params.stop, params.stop_token_ids, params.ignore_eos) == (None, (), (), False)
    assert (params.min_p, params.repetition_penalty) == (0.0, 1.0)
    assert (params.presence_penalty, params.frequency_penalty, params.logit_bias) == (0.0, 0.0, {})
    assert params.logprobs is params.prompt_logprobs is None
    assert (params.min_tokens, params.bad_words, params.allowed_token_ids) == (0, (), None)
    assert (params.skip_special_tokens, params.include_stop_str_in_output) == (True, False)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("min_tokens", -1),
        ("min_tokens", 17),
        ("min_tokens", 1.0),
        ("bad_words", "word"),
        ("bad_words", ("",)),
        ("bad_words", ("\ud800",)),
        ("bad_words", ("x",) * (MAX_BAD_WORDS + 1)),
        ("bad_words", ("é" * (MAX_BAD_WORDS_BYTES // 4), "x" * (MAX_BAD_WORDS_BYTES // 2), "x")),
        ("allowed_token_ids", ()),
        ("allowed_token_ids", 3),
        ("allowed_token_ids", (-1,)),
        ("allowed_token_ids", (True,)),
        ("allowed_token_ids", (1,) * (MAX_ALLOWED_TOKEN_IDS + 1)),
        ("skip_special_tokens", 1),
        ("include_stop_str_in_output", None),
        ("structured_output", {"kind": "json_object"}),
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", 1.5),
        ("max_tokens", True),
        ("max_tokens", 2**31),
        ("max_tokens", "16"),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", "1"),
        ("temperature", 10**400),
        ("top_p", 0),
        ("top_p", 1.01),
        ("top_p", -0.5),
        ("top_k", -2),
        ("top_k", 2.0),
        ("top_k", 2**70),
        ("seed", -(2**63) - 1),
        ("seed", 2**63),
        ("seed", 1.0),
        ("stop", ""),
        ("stop", ("a", "")),
        ("stop", (1,)),
        ("stop", "\ud800"),
        ("stop", ("x",) * (MAX_STOP_STRINGS + 1)),
        ("stop", "x" * (MAX_STOP_BYTES + 1)),
        ("stop", "é" * (MAX_STOP_BYTES // 2 + 1)),
        ("stop", ("x" * MAX_STOP_BYTES,) * (MAX_STOPS_BYTES // MAX_STOP_BYTES + 1)),
        ("stop_token_ids", tuple(range(MAX_STOP_TOKEN_IDS + 1))),
        ("stop_token_ids", (-1,)),
        ("stop_token_ids", (2**70,)),
        ("stop_token_ids", 5),
        ("ignore_eos", 1),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("min_p", "0"),
        ("repetition_penalty", 0),
        ("repetition_penalty", -1.0),
        ("repetition_penalty", float("inf")),
        ("presence_penalty", 2.1),
        ("presence_penalty", None),
        ("frequency_penalty", -2.1),
        ("frequency_penalty", float("nan")),
        ("logit_bias", [5]),
        ("logit_bias", {-1: 0.0}),
        ("logit_bias", {2**31: 0.0}),
        ("logit_bias", {"5": 0.0}),
        ("logit_bias", {5: 100.5}),
        ("logit_bias", {5: True}),
        ("logit_bias", {5: float("nan")}),
        ("logit_bias", dict.fromkeys(range(MAX_LOGIT_BIASES + 1), 0.0)),
        ("logprobs", -1),
        ("logprobs", MAX_LOGPROBS + 1),
        ("logprobs", True),
        ("prompt_logprobs", -1),
        ("prompt_logprobs", MAX_LOGPROBS + 1),
        ("prompt_logprobs", 1.0),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(field, value):
    with pytest.raises(InvalidParams, match=field) as caught:
        SamplingParams(**{field: value})
    assert caught.value.field == field
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("n", "n: expected as an argument of generate or chat"),
        ("max_token", "max_token: expected max_tokens in its place, got 2"),
        ("beams", "beams: expected a field of SamplingParams"),
    ],
)
def test_a_name_that_is_no_field_is_refused_as_a_wrong_value_is(name, told):
    with pytest.raises(InvalidParams, match=told) as caught:
        SamplingParams(**{name: 2})
    assert caught.value.field == name


def test_vllms_ways_to_set_no_limit():
    nothing = dict.fromkeys(("stop", "stop_token_ids", "bad_words", "logit_bias", "allowed_token_ids"))
    assert SamplingParams(top_k=-1, **nothing) == SamplingParams()
    assert SamplingParams(max_tokens=None).max_tokens == WHAT_FITS
    assert [SamplingParams(seed=seed).seed for seed in (-1, -2, -(2**63))] == [None, 2**63 - 2, 0]


def test_the_error_shows_only_the_beginning_of_what_came():
    with pytest.raises(InvalidParams) as caught:
        SamplingParams(stop=("x" * 270_000,) * 64)
    assert len(str(caught.value)) < 1000


def test_the_longest_params_are_a_small_part_of_a_message():
    params = SamplingParams(
        stop=("\x00" * MAX_STOP_BYTES,) * (MAX_STOPS_BYTES // MAX_STOP_BYTES),
        stop_token_ids=(2**31 - 1,) * MAX_STOP_TOKEN_IDS,
        logit_bias=dict.fromkeys(range(2**31 - MAX_LOGIT_BIASES, 2**31), 0.5),
        bad_words=("\x00" * (MAX_BAD_WORDS_BYTES // MAX_BAD_WORDS),) * MAX_BAD_WORDS,
        allowed_token_ids=(2**31 - 1,) * MAX_ALLOWED_TOKEN_IDS,
    )
    assert len(msgspec.msgpack.encode(params)) < 2**16 - 2**12


def test_one_stop_string_and_lists_are_taken():
    assert SamplingParams(stop="end").stop == ("end",)
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")
    assert SamplingParams(stop_token_ids=[1, 2]).stop_token_ids == (1, 2)
    assert SamplingParams(bad_words=["a"], allowed_token_ids=[1]).allowed_token_ids == (1,)


def test_outputs_of_one_prompt_have_seeds_of_their_own():
    assert [SamplingParams(seed=2**63 - 1, top_k=3).of_choice(index).seed for index in range(3)] == [2**63 - 1, 0, 1]
    assert SamplingParams().of_choice(2).seed is None


def test_another_length_is_checked():
    params = SamplingParams(min_tokens=3, top_k=5, logit_bias={1: 2})
    assert params.of_length(3) == msgspec.structs.replace(params, max_tokens=3)
    assert params.max_tokens == 16
    for length, field in ((2, "min_tokens"), (0, "max_tokens"), (2**31, "max_tokens")):
        with pytest.raises(InvalidParams) as caught:
            params.of_length(length)
        assert caught.value.field == field


def test_long_lists_are_looked_through_once(monkeypatch):
    """Those of 1024 outputs held the gateway's event loop for 1.5 s."""
    params = SamplingParams(seed=1, stop=["a"], bad_words=["b"], stop_token_ids=[1], allowed_token_ids=[2])
    for check in ("_are_token_ids", "_are_texts"):
        monkeypatch.setattr(types, check, Mock(side_effect=AssertionError))
    assert params.of_choice(1).of_length(2).allowed_token_ids is params.allowed_token_ids


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 1),
        ("temperature", 0),
        ("top_p", 1),
        ("top_p", 1e-9),
        ("top_k", 2**31 - 1),
        ("seed", 2**63 - 1),
        ("stop", ("x" * MAX_STOP_BYTES,) * (MAX_STOPS_BYTES // MAX_STOP_BYTES)),
        ("stop_token_ids", tuple(range(MAX_STOP_TOKEN_IDS))),
        ("min_p", 0),
        ("min_p", 1),
        ("repetition_penalty", 1e-9),
        ("presence_penalty", -2),
        ("frequency_penalty", 2),
        ("logit_bias", {0: -100, 2**31 - 1: 100.0}),
        ("logit_bias", dict.fromkeys(range(MAX_LOGIT_BIASES), 0.0)),
        ("logprobs", 0),
        ("logprobs", MAX_LOGPROBS),
        ("prompt_logprobs", MAX_LOGPROBS),
    ],
)
def test_the_edges_are_in_range(field, value):
    assert getattr(SamplingParams(**{field: value}), field) == value


def test_every_public_name_is_there_and_none_loads_torch():
    program = (
        "import sys, distkv\n"
        "print('zmq' in sys.modules, end=' ')\n"
        "found = [name for name in distkv.__all__ if getattr(distkv, name, None) is not None]\n"
        "print('torch' in sys.modules, *found)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.split() == ["False", "False", *distkv.__all__], done.stderr


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="nonsense"):
        _ = distkv.nonsense
    assert "LocalCluster" in dir(distkv)
