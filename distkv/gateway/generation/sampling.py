"""Sampling parameters and choices of a request, from its own fields and the model's defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from distkv.client.prompts import MAX_OUTPUTS, TokenIds
from distkv.errors import ConfigError, InvalidParams
from distkv.gateway.generation.choices import Choice
from distkv.gateway.schema.errors import invalid
from distkv.gateway.schema.requests import SamplingRequest
from distkv.types import SamplingParams

_PLAIN = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "stop",
    "ignore_eos",
    "min_tokens",
    "bad_words",
    "allowed_token_ids",
    "skip_special_tokens",
    "include_stop_str_in_output",
    "prompt_logprobs",
)
_FROM_MODEL = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def model_defaults(model_dir: Path) -> dict[str, Any]:
    """Sampling defaults of generation_config.json, {} if there is none. Raises ConfigError.

    As vLLM does, `do_sample` is ignored: temperature 0 is greedy decoding.
    """
    file = model_dir / "generation_config.json"
    if not file.exists():
        return {}
    try:
        raw = msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError("model", f"{file} cannot be read: {error}") from None
    found = {name: raw[name] for name in _FROM_MODEL if raw.get(name) is not None}
    if raw.get("max_new_tokens") is not None:
        found["max_tokens"] = raw["max_new_tokens"]
    try:
        SamplingParams(**found)
    except InvalidParams as error:
        raise ConfigError("model", f"{file}: {error}", "--generation-config none ignores this file") from None
    return found


def sampling_params(
    request: SamplingRequest,
    defaults: Mapping[str, Any],
    *,
    max_tokens: int,
    logprobs: int | None,
    prompt_logprobs: int | None = None,
) -> SamplingParams:
    """The parameters that the cluster gets. Raises ApiError 400 naming the field as the user knows it."""
    values = {name: getattr(request, name) for name in _PLAIN if getattr(request, name) is not None}
    if request.stop_token_ids:
        values["stop_token_ids"] = tuple(request.stop_token_ids)
    if request.logit_bias:
        values["logit_bias"] = {_token_id(key): bias for key, bias in request.logit_bias.items()}
    if prompt_logprobs is not None:
        values["prompt_logprobs"] = max(prompt_logprobs, values.get("prompt_logprobs", 0))
    inherited = {name: value for name, value in defaults.items() if name != "max_tokens"}
    try:
        return SamplingParams(**(inherited | values | {"max_tokens": max_tokens, "logprobs": logprobs}))
    except InvalidParams as error:
        raise invalid(str(error), error.field) from None


def choices_of(prompts: Sequence[tuple[TokenIds, SamplingParams]], n: int, **how: bool) -> list[Choice]:
    """n choices of every prompt, sampled as is said beside it. With a seed, choice i of a prompt has seed + i. Raises
    ApiError 400 for too many."""
    if n * len(prompts) > MAX_OUTPUTS:
        raise invalid(f"n: {n} for {len(prompts)} prompts are over the limit of {MAX_OUTPUTS} outputs", "n")
    return [
        Choice(number * n + index, number, prompt, params.of_choice(index), **how)
        for number, (prompt, params) in enumerate(prompts)
        for index in range(n)
    ]


def check_common(body: SamplingRequest) -> None:
    """Raise ApiError 400 for what cannot go together."""
    if body.stream_options is not None and not body.stream:
        raise invalid("stream_options: only allowed with stream", "stream_options")
    if body.prompt_logprobs is not None and body.stream:
        raise invalid("prompt_logprobs: not available with stream; echo and logprobs are", "prompt_logprobs")


def _token_id(key: str) -> int:
    if not key.isascii() or not key.isdecimal():
        raise invalid(f"logit_bias: expected token ids as keys, got {key!r}", "logit_bias")
    return int(key)
