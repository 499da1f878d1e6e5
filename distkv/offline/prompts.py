"""Prompts of a batch: as texts, token ids, vLLM's dicts, or conversations; all become token ids before anything is
computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from distkv.client.prompts import BYTES, TokenIds, check_prompt
from distkv.errors import RequestRefused, context_length_exceeded
from distkv.gateway.prompting.conversations import conversation_text
from distkv.gateway.prompting.served_model import ServedModel
from distkv.gateway.schema.errors import ApiError
from distkv.gateway.schema.requests import Message
from distkv.text.tokenizer import TextTooLong
from distkv.types import SamplingParams, is_utf8

Prompt = str | Sequence[int] | Mapping[str, Any]
Messages = Sequence[Mapping[str, Any]]
KEYS = ("prompt", "prompt_token_ids")


class ReadPrompt(NamedTuple):
    """text: None where token ids were given."""

    text: str | None
    token_ids: TokenIds


@dataclass(frozen=True)
class Conversation:
    """How messages become a prompt."""

    add_generation_prompt: bool | None
    continue_final_message: bool | None
    chat_template_kwargs: dict[str, Any] | None
    tools: list[dict[str, Any]] | None


def each_conversation(messages: Messages | Sequence[Messages]) -> list[Messages]:
    """The conversations of a call: a list of messages is one. Raises TypeError."""
    is_one = not _is_list(messages) or not messages or isinstance(messages[0], Mapping)
    each: list[Any] = [messages] if is_one else list(messages)
    for one in each:
        if not _is_list(one):
            wanted = 'a list of {"role": ..., "content": ...}, or of such lists'
            raise TypeError(f"messages are {wanted}, not {type(one).__name__}")
    return each


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


class PromptReader:
    """Makes token ids. most: prompt and output of the longest request that the cluster takes, in tokens."""

    def __init__(self, model: ServedModel, most: int) -> None:
        self._model, self._most = model, most

    def prompt(self, prompt: Prompt) -> ReadPrompt:
        """Raises RequestRefused, InvalidParams, TypeError."""
        if not isinstance(prompt, Mapping):
            return self._text(prompt) if isinstance(prompt, str) else self._ids(None, prompt)
        if unknown := [key for key, value in prompt.items() if key not in KEYS and value is not None]:
            raise RequestRefused(0, 0, f"a prompt has {' and '.join(map(repr, KEYS))}, not {unknown[0]!r}")
        text, ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
        if ids is not None:
            return self._ids(text, ids)
        if not isinstance(text, str):
            raise RequestRefused(0, 0, f"a prompt has {' or '.join(map(repr, KEYS))}")
        return self._text(text)

    def conversation(self, messages: object, how: Conversation) -> ReadPrompt:
        """Raises RequestRefused."""
        if self._model.template is None:
            raise RequestRefused(0, 0, "messages: the model has no chat template; chat_template gives one")
        try:
            read = msgspec.convert(messages, list[Message])
            if not read:
                raise RequestRefused(0, 0, "messages: is an empty list")
            text = conversation_text(self._model, read, how)
        except msgspec.ValidationError as error:
            raise RequestRefused(0, 0, f"messages: {error}") from None
        except ApiError as error:
            raise RequestRefused(0, 0, str(error)) from None
        # Templates write their own special tokens.
        return self._text(text, add_special_tokens=False)

    def fitted(self, prompt: ReadPrompt, params: SamplingParams) -> SamplingParams:
        """Those with no more output than fits beside the prompt."""
        room = self._most - len(prompt.token_ids)
        if params.max_tokens <= room:
            return params
        return msgspec.structs.replace(params, max_tokens=room, min_tokens=min(params.min_tokens, room))

    def _text(self, text: str, *, add_special_tokens: bool = True) -> ReadPrompt:
        try:
            tokenizer = self._model.need_tokenizer()
        except ApiError as error:
            raise RequestRefused(0, 0, str(error)) from None
        if not is_utf8(text):
            raise RequestRefused(0, 0, "prompt: has characters that UTF-8 cannot encode (lone surrogates)")
        try:
            ids = tokenizer.encode(text, add_special_tokens=add_special_tokens, most=self._most - 1)
        except TextTooLong as error:
            raise self._too_long(error.num_tokens, is_exact=error.is_exact) from None
        if not ids:
            raise RequestRefused(0, 0, "the prompt has no tokens")
        return ReadPrompt(text, TokenIds(ids))

    def _ids(self, text: object, ids: object) -> ReadPrompt:
        if isinstance(ids, Sequence) and not isinstance(ids, list | tuple | BYTES):
            ids = list(ids)
        checked = check_prompt(ids)
        assert isinstance(checked, TokenIds)
        if len(checked) >= self._most:
            raise self._too_long(len(checked))
        return ReadPrompt(text if isinstance(text, str) else None, checked)

    def _too_long(self, num_tokens: int, *, is_exact: bool = True) -> RequestRefused:
        reason = context_length_exceeded(self._most, num_tokens, 1, is_exact=is_exact)
        return RequestRefused(num_tokens + 1, self._most, reason)
