"""Prompts of completions: texts and token ids, one or many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from distkv.gateway.prompting.served_model import ServedModel
from distkv.gateway.schema.errors import invalid
from distkv.gateway.schema.requests import MAX_OUTPUTS, CompletionRequest


@dataclass(frozen=True)
class Prompt:
    """text: as the user wrote it, None if it came as token ids."""

    token_ids: list[int]
    text: str | None = None


async def completion_prompts(model: ServedModel, body: CompletionRequest) -> list[Prompt]:
    """The prompts of a request, tokenized. Raises ApiError 400 for what is no prompt."""
    with_special = body.add_special_tokens is not False
    found = []
    for prompt in _each(body.prompt):
        if isinstance(prompt, str):
            ids = await model.encode(prompt, "prompt", add_special_tokens=with_special)
            found.append(Prompt(ids, prompt))
        else:
            found.append(Prompt(prompt))
        if not found[-1].token_ids:
            raise invalid("prompt: has no tokens", "prompt")
    return found


def echo_text(model: ServedModel, prompt: Prompt) -> str:
    """What echo repeats: the text itself, or that of the token ids."""
    if prompt.text is not None:
        return prompt.text
    return "" if model.tokenizer is None else model.tokenizer.decode(prompt.token_ids)


def _each(prompt: str | list[Any]) -> list[str | list[int]]:
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise invalid("prompt: is an empty list", "prompt")
    if all(isinstance(one, int) for one in prompt):
        return [prompt]
    if any(isinstance(one, int) for one in prompt):
        raise invalid("prompt: mixes token ids with whole prompts", "prompt")
    if len(prompt) > MAX_OUTPUTS:
        raise invalid(f"prompt: {len(prompt)} prompts are over the limit of {MAX_OUTPUTS}", "prompt")
    return prompt
