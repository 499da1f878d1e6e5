"""What users send: the bodies of the POST endpoints, with OpenAI's and vLLM's names."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from distkv.gateway.schema.output_formats import ChoiceTexts, JsonSchema, ResponseFormat, StructuredOutputs
from distkv.gateway.schema.tools import MAX_NAME, Name, ToolCalls, ToolChoice, Tools
from distkv.types import (
    MAX_ALLOWED_TOKEN_IDS,
    MAX_BAD_WORDS,
    MAX_BAD_WORDS_BYTES,
    MAX_LOGIT_BIASES,
    MAX_LOGPROBS,
    MAX_STOP_BYTES,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
)

MAX_CHOICES = 128
MAX_MESSAGES = 4096
MAX_PARTS = 4096
MAX_TEMPLATE_VALUES = 64

_Stop = Annotated[str, Meta(max_length=MAX_STOP_BYTES)]
_BadWord = Annotated[str, Meta(min_length=1, max_length=MAX_BAD_WORDS_BYTES)]
_TokenKey = Annotated[str, Meta(max_length=10)]
_Logprobs = Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)]
_TokenId = Annotated[int, Meta(ge=0, lt=2**31)]

NOTHING: tuple[Any, ...] = (False, [], {}, "")

REFUSED: dict[str, tuple[Any, ...]] = {
    "chat_template": NOTHING,
    "custom_logit_processor": NOTHING,
    "documents": NOTHING,
    "ebnf": NOTHING,
    "guided_whitespace_pattern": NOTHING,
    "json_schema": NOTHING,
    "length_penalty": (1,),
    "logits_processors": NOTHING,
    "logprob_token_ids": NOTHING,
    "lora_path": NOTHING,
    "max_new_tokens": (),
    "min_new_tokens": (0,),
    "no_stop_trim": NOTHING,
    "prompt_embeds": NOTHING,
    "regex": NOTHING,
    "repetition_detection": NOTHING,
    "return_hidden_states": NOTHING,
    "return_token_ids": NOTHING,
    "stop_regex": NOTHING,
    "thinking_token_budget": (),
    "use_beam_search": (False,),
}
"""Fields that would change the answer, OpenAI's, vLLM's and SGLang's, with the values that do not."""

REFUSED_COMPLETION: dict[str, tuple[Any, ...]] = REFUSED | {"max_completion_tokens": (), "suffix": ("",)}
REFUSED_CHAT: dict[str, tuple[Any, ...]] = REFUSED | {
    "audio": NOTHING,
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("none",),
    "functions": NOTHING,
    "modalities": (["text"],),
    "prediction": NOTHING,
    "web_search_options": (),
}
REFUSED_TEXT: dict[str, tuple[Any, ...]] = {"chat_template": NOTHING}
INSTEAD: dict[str, str] = {
    "ebnf": "guided_grammar",
    "json_schema": "response_format",
    "max_completion_tokens": "max_tokens",
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "no_stop_trim": "include_stop_str_in_output",
    "regex": "guided_regex",
}
"""Which field says here what a refused one says elsewhere."""


class StreamOptions(msgspec.Struct, frozen=True):
    """include_usage: one more chunk at the end has the usage. continuous_usage_stats: every chunk has it."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SamplingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What completions and chat have in common. None is the model's own default, or the API's."""

    model: Name | None = None
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
    logit_bias: (
        Annotated[dict[_TokenKey, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=MAX_LOGIT_BIASES)] | None
    ) = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1, description="Choice i uses seed + i; -1 is none.")] | None = (
        None
    )
    stop: _Stop | Annotated[list[_Stop], Meta(max_length=MAX_STOP_STRINGS)] | None = None
    stop_token_ids: Annotated[list[_TokenId], Meta(max_length=MAX_STOP_TOKEN_IDS)] | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Meta(ge=0, lt=2**31)] | None = None
    bad_words: Annotated[list[_BadWord], Meta(max_length=MAX_BAD_WORDS)] | None = None
    allowed_token_ids: Annotated[list[_TokenId], Meta(min_length=1, max_length=MAX_ALLOWED_TOKEN_IDS)] | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1, lt=2**31, description="-1 is as many as fit.")] | None = None
    truncation_side: Literal["left", "right"] | None = None
    prompt_logprobs: _Logprobs | None = None
    add_special_tokens: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    response_format: ResponseFormat | None = None
    guided_json: str | JsonSchema | None = None
    guided_regex: str | None = None
    guided_choice: ChoiceTexts | None = None
    guided_grammar: str | None = None
    structured_outputs: StructuredOutputs | None = None


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
    """One message of a conversation. Parts are joined by line ends. Templates see the other fields too. reasoning: the
    newer name of reasoning_content, where it is a text. tool_calls: of an assistant. tool_call_id: which of them a tool
    answers."""

    role: Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]
    content: str | Annotated[list[TextPart], Meta(max_length=MAX_PARTS)] | None = None
    name: Name | None = None
    reasoning: Any = None
    reasoning_content: str | None = None
    tool_calls: ToolCalls | None = None
    tool_call_id: Name | None = None


class ChatRequest(SamplingRequest, frozen=True, kw_only=True):
    """Body of POST /v1/chat/completions."""

    messages: Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)]
    max_tokens: Annotated[int, Meta(ge=1, lt=2**31)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1, lt=2**31)] | None = None
    logprobs: bool | None = None
    top_logprobs: _Logprobs | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: Annotated[dict[Name, Any], Meta(max_length=MAX_TEMPLATE_VALUES)] | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of POST /tokenize: a prompt or messages."""

    model: Name | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Meta(max_length=MAX_MESSAGES)] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: Annotated[dict[Name, Any], Meta(max_length=MAX_TEMPLATE_VALUES)] | None = None
    tools: Tools | None = None


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of POST /detokenize."""

    tokens: list[_TokenId]
    model: Name | None = None
