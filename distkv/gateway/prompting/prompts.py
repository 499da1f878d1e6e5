"""Prompts of completions: texts and token ids, one or many; and how any text becomes ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from distkv.client.prompts import MAX_OUTPUTS
from distkv.gateway.prompting.served_model import ServedModel
from distkv.gateway.schema.errors import invalid, too_long
from distkv.gateway.schema.requests import CompletionRequest, SamplingRequest
from distkv.text.tokenizer import Side, TextTooLong, truncated
from distkv.types import is_utf8


class Truncation(NamedTuple):
    """A prompt has at most so many tokens; what is over is cut off on this side."""

    most: int
    side: Side


def truncation_of(body: SamplingRequest, max_tokens: int, most: int | None) -> Truncation | None:
    """None if prompts stay as they are. Raises ApiError 400 for more tokens than fit beside the output."""
    wanted, room = body.truncate_prompt_tokens, None if most is None else max(0, most - max_tokens)
    if wanted is not None and room is not None and wanted > room:
        raise invalid(
            f"truncate_prompt_tokens: {wanted} cannot be greater than max_model_len - max_tokens = {room}",
            "truncate_prompt_tokens",
        )
    kept = room if wanted == -1 else wanted
    return None if kept is None else Truncation(kept, body.truncation_side or "left")


def completion_prompts(
    model: ServedModel, body: CompletionRequest, max_tokens: int, most: int | None, truncation: Truncation | None
) -> Iterator[tuple[list[int], str | None]]:
    """The token ids of each prompt, and its text unless that is not just theirs. Raises ApiError 400 for what is no
    prompt, or needs more than `most` tokens together with its output."""
    with_special = body.add_special_tokens is not False
    for prompt in _each(body.prompt):
        if isinstance(prompt, str):
            ids = encode(model, prompt, "prompt", max_tokens, most, truncation, add_special_tokens=with_special)
            check_ids(ids, "prompt:", "prompt")
            yield ids, prompt if truncation is None and body.skip_special_tokens is not False else None
        else:
            ids = prompt if truncation is None else truncated(prompt, *truncation)
            check_ids(ids, "prompt:", "prompt")
            if most is not None and len(ids) + max_tokens > most:
                raise too_long(len(ids), max_tokens, most)
            yield ids, None


def encode(
    model: ServedModel,
    text: str,
    param: str,
    max_tokens: int,
    most: int | None,
    truncation: Truncation | None = None,
    *,
    add_special_tokens: bool,
) -> list[int]:
    """Token ids of a text. Raises ApiError 400 naming `param`, or for more than `most` tokens with the output."""
    tokenizer = model.need_tokenizer(param)
    if not is_utf8(text):
        raise invalid(f"{param}: has characters that UTF-8 cannot encode (lone surrogates)", param)
    if truncation is not None:
        return tokenizer.encode_truncated(text, *truncation, add_special_tokens=add_special_tokens)
    room = None if most is None else max(0, most - max_tokens)
    try:
        return tokenizer.encode(text, add_special_tokens=add_special_tokens, most=room)
    except TextTooLong as error:
        assert most is not None
        raise too_long(error.num_tokens, max_tokens, most, is_exact=error.is_exact) from None


def check_ids(ids: Sequence[int], what: str, param: str) -> None:
    """Raise ApiError 400 when there are none."""
    if not ids:
        raise invalid(f"{what} has no tokens", param)


def _each(prompt: str | list[Any]) -> list[str | list[int]]:
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise invalid("prompt: is an empty list", "prompt")
    kinds = set(map(type, prompt))
    if kinds == {int}:
        return [prompt]
    if int in kinds:
        raise invalid("prompt: mixes token ids with whole prompts", "prompt")
    if len(prompt) > MAX_OUTPUTS:
        raise invalid(f"prompt: {len(prompt)} prompts are over the limit of {MAX_OUTPUTS}", "prompt")
    return prompt
