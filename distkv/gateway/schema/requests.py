"""What users send: the bodies of the POST endpoints, with OpenAI's and vLLM's names."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from distkv.types import MAX_LOGPROBS

MAX_CHOICES = 128

_Logprobs = Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)]
_TokenId = Annotated[int, Meta(ge=0, lt=2**31)]

NOTHING: tuple[Any, ...] = (False, [], {}, "")

REFUSED: dict[str, tuple[Any, ...]] = {
    "allowed_token_ids": NOTHING,
    "bad_words": NOTHING,
    "chat_template": NOTHING,
    "documents": NOTHING,
    "guided_choice": NOTHING,
    "guided_grammar": NOTHING,
    "guided_json": NOTHING,
    "guided_regex": NOTHING,
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "logits_processors": NOTHING,
    "min_tokens": (0,),
    "prompt_embeds": NOTHING,
    "response_format": ({"type": "text"},),
    "skip_special_tokens": (True,),
    "structured_outputs": NOTHING,
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
}
"""Fields that would change the answer, with the values that do not."""

REFUSED_COMPLETION: dict[str, tuple[Any, ...]] = REFUSED | {"suffix": ("",)}
REFUSED_CHAT: dict[str, tuple[Any, ...]] = REFUSED | {
    "audio": NOTHING,
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("none",),
    "functions": NOTHING,
    "modalities": (["text"],),
    "prediction": NOTHING,
    "tool_choice": ("none",),
    "tools": NOTHING,
    "web_search_options": (),
}
REFUSED_TEXT: dict[str, tuple[Any, ...]] = {"chat_template": NOTHING, "tools": NOTHING}


class StreamOptions(msgspec.Struct, frozen=True):
    """include_usage: one more chunk at the end has the usage. continuous_usage_stats: every chunk has it."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SamplingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What completions and chat have in common. None is the model's own default, or the API's."""

    model: str | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Meta(ge=0)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, lt=2**31, description="-1 and 0 are off.")] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0)] | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1, description="Choice i uses seed + i.")] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[_TokenId] | None = None
    ignore_eos: bool | None = None
    prompt_logprobs: _Logprobs | None = None
    add_special_tokens: bool | None = None
    return_tokens_as_token_ids: bool | None = None


class CompletionRequest(SamplingRequest, frozen=True, kw_only=True):
    """Body of POST /v1/completions. prompt: a text, token ids, or a list of either."""

    prompt: str | list[str | _TokenId | list[_TokenId]]
    max_tokens: Annotated[int, Meta(ge=0, lt=2**31)] | None = None
    logprobs: _Logprobs | None = None
    echo: bool | None = None
    best_of: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None


class TextPart(msgspec.Struct, frozen=True):
    """A part of a message; only text can be served."""

    type: Literal["text"]
    text: str


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a conversation. Parts are joined by line ends. Templates see name and reasoning_content too."""

    role: Annotated[str, Meta(min_length=1)]
    content: str | list[TextPart] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Any] | None = None


class ChatRequest(SamplingRequest, frozen=True, kw_only=True):
    """Body of POST /v1/chat/completions."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    max_tokens: Annotated[int, Meta(ge=1, lt=2**31)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1, lt=2**31)] | None = None
    logprobs: bool | None = None
    top_logprobs: _Logprobs | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of POST /tokenize: a prompt or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of POST /detokenize."""

    tokens: list[_TokenId]
    model: str | None = None
