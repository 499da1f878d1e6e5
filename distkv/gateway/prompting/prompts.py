"""Prompts of completions: texts and token ids, one or many; and how any text becomes ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from distkv.gateway.prompting.served_model import ServedModel
from distkv.gateway.schema.errors import invalid, too_long
from distkv.gateway.schema.requests import MAX_OUTPUTS, CompletionRequest
from distkv.text.tokenizer import TextTooLong
from distkv.types import is_utf8


def completion_prompts(
    model: ServedModel, body: CompletionRequest, max_tokens: int, most: int | None
) -> Iterator[tuple[list[int], str | None]]:
    """The token ids of each prompt, and its text unless it came as ids. Raises ApiError 400 for what is no prompt, or
    needs more than `most` tokens together with its output."""
    with_special = body.add_special_tokens is not False
    for prompt in _each(body.prompt):
        if isinstance(prompt, str):
            text = prompt
            ids = encode(model, text, "prompt", max_tokens, most, add_special_tokens=with_special)
            check_ids(ids, "prompt:", "prompt")
            yield ids, text
        else:
            check_ids(prompt, "prompt:", "prompt")
            if most is not None and len(prompt) + max_tokens > most:
                raise too_long(len(prompt), max_tokens, most)
            yield prompt, None


def encode(
    model: ServedModel, text: str, param: str, max_tokens: int, most: int | None, *, add_special_tokens: bool
) -> list[int]:
    """Token ids of a text. Raises ApiError 400 naming `param`, or for more than `most` tokens with the output."""
    tokenizer = model.need_tokenizer(param)
    if not is_utf8(text):
        raise invalid(f"{param}: has characters that UTF-8 cannot encode (lone surrogates)", param)
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
