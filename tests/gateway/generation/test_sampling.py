"""Parameters on their way to the cluster, and where their defaults come from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distkv.errors import ConfigError
from distkv.gateway.generation.sampling import model_defaults
from distkv.types import SamplingParams

Start = Callable[..., Any]


async def params_sent(gateway: Any, **body: Any) -> SamplingParams:
    answer = await gateway.complete(max_tokens=body.pop("max_tokens", 1), **body)
    assert answer.status_code == 200, answer.text
    found = gateway.submits()[-1].params
    assert isinstance(found, SamplingParams)
    return found


async def test_everything_a_user_says_reaches_the_cluster(start: Start) -> None:
    gateway = await start()
    plain = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "seed": 3,
        "presence_penalty": 1.0,
        "frequency_penalty": -1.0,
        "repetition_penalty": 1.1,
        "ignore_eos": True,
        "logprobs": 2,
        "prompt_logprobs": 1,
    }
    body = plain | {"stop": ["x", "y"], "stop_token_ids": [5], "logit_bias": {"7": -100, "8": 2.5}}
    assert await params_sent(gateway, max_tokens=4, **body) == SamplingParams(
        max_tokens=4, stop=("x", "y"), stop_token_ids=(5,), logit_bias={7: -100.0, 8: 2.5}, **plain
    )
    assert (await params_sent(gateway, stop="x")).stop == ("x",)


async def test_spellings(start: Start) -> None:
    gateway = await start()
    assert await params_sent(gateway) == SamplingParams(max_tokens=1)
    assert await params_sent(gateway, top_k=-1, stop=[], logit_bias={}) == SamplingParams(max_tokens=1)
    assert [(await params_sent(gateway, seed=seed)).seed for seed in (-1, -2)] == [None, 2**63 - 2]
    params = await params_sent(gateway, echo=True, logprobs=3)
    assert (params.logprobs, params.prompt_logprobs) == (3, 3)
    params = await params_sent(gateway, echo=True, logprobs=1, prompt_logprobs=2)
    assert (params.logprobs, params.prompt_logprobs) == (1, 2)
    await gateway.chat(max_tokens=1, logprobs=True)
    assert gateway.submits()[-1].params.logprobs == 0


FOUND = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.05, "max_new_tokens": 5, "min_p": None}


async def test_the_model_has_defaults(start: Start, with_defaults: Callable[..., Path]) -> None:
    gateway = await start(model=with_defaults(do_sample=False, **FOUND))
    assert (await gateway.complete()).status_code == 200
    assert gateway.submits()[-1].params == SamplingParams(
        max_tokens=5, temperature=0.6, top_k=20, top_p=0.95, repetition_penalty=1.05
    )
    params = await params_sent(gateway, temperature=0, top_k=0, top_p=1, repetition_penalty=1)
    assert params == SamplingParams(max_tokens=1, temperature=0)


async def test_the_models_defaults_can_be_left_out(start: Start, with_defaults: Callable[..., Path]) -> None:
    gateway = await start(model=with_defaults(**FOUND), generation_config="none")
    assert await params_sent(gateway) == SamplingParams(max_tokens=1)


def test_defaults_that_cannot_be(tmp_path: Path) -> None:
    assert model_defaults(tmp_path) == {}
    file = tmp_path / "generation_config.json"
    file.write_text(json.dumps({"top_p": 3}))
    with pytest.raises(ConfigError, match=r"generation_config\.json: top_p: expected .*--generation-config none"):
        model_defaults(tmp_path)
    for content in (b"[]", b'{"temperature": "\xff"}', b'{"x": ' + b"[" * 5000):
        file.write_bytes(content)
        with pytest.raises(ConfigError, match=r"generation_config\.json cannot be read"):
            model_defaults(tmp_path)
