"""What users get: the bodies of responses, with OpenAI's and vLLM's names."""

from __future__ import annotations

from typing import Literal

import msgspec
from starlette.responses import Response

from distkv.types import FinishReason

ChatFinishReason = FinishReason | Literal["tool_calls"]
StopReason = int | str | None
"""vLLM's: the stop string, or the one of `stop_token_ids`, that ended an output; None for every other end."""


class Usage(msgspec.Struct, frozen=True):
    """Tokens of a request: of its prompts, of all its choices, of both."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """Of a completion, one item per token. text_offset: where the token's text begins, in characters."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptLogprob(msgspec.Struct, frozen=True):
    """One candidate for a token of the prompt."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One completion, or the next piece of one; the last piece has a stop_reason."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: StopReason | msgspec.UnsetType = msgspec.UNSET
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType | None = msgspec.UNSET


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """Response of /v1/completions, and each event of its stream, where usage comes only with include_usage."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET


class TopLogprob(msgspec.Struct, frozen=True):
    """A likely token; bytes are its UTF-8."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct, frozen=True):
    """A token of a chat's answer."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """Of an answer, one item per token."""

    content: list[TokenLogprob]


class AssistantFunction(msgspec.Struct, frozen=True):
    """The function of a tool call. arguments: JSON as the model wrote it."""

    name: str
    arguments: str


class AssistantToolCall(msgspec.Struct, frozen=True):
    """A tool that is to be called."""

    id: str
    type: str
    function: AssistantFunction


class AssistantMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the model answers. content: null if there are only tool calls."""

    role: str
    content: str | None
    tool_calls: list[AssistantToolCall] | None = None


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One answer."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: ChatFinishReason | None = None
    stop_reason: StopReason = None


class Chat(msgspec.Struct, frozen=True, kw_only=True):
    """Response of /v1/chat/completions."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType | None = msgspec.UNSET


class DeltaFunction(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is new of a tool call's function: its name first, then its arguments piece by piece."""

    name: str | None = None
    arguments: str | None = None


class DeltaToolCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is new of the tool call number `index`; id and type come once, with the name."""

    index: int
    id: str | None = None
    type: str | None = None
    function: DeltaFunction


class Delta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is new in an answer; the role comes once, before everything else."""

    role: str | None = None
    content: str | None = None
    tool_calls: list[DeltaToolCall] | None = None


class ChatChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The next piece of one answer; the last one has a stop_reason."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: ChatFinishReason | None = None
    stop_reason: StopReason | msgspec.UnsetType = msgspec.UNSET


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    """Each event of a chat's stream."""

    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """One name of the model. max_model_len: tokens that the ready instances can hold for one request now, or null."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "distkv"
    root: str
    parent: str | None = None
    max_model_len: int | None = None


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """Response of /v1/models."""

    object: str = "list"
    data: list[ModelCard]


class Tokenized(msgspec.Struct, frozen=True, kw_only=True):
    """Response of /tokenize."""

    count: int
    max_model_len: int | None
    tokens: list[int]
    token_strs: list[str] | None = None


class Detokenized(msgspec.Struct, frozen=True):
    """Response of /detokenize."""

    prompt: str


class TokenizerInfo(msgspec.Struct, frozen=True):
    """Response of /tokenizer_info: these, and the other fields of tokenizer_config.json, special tokens as texts."""

    tokenizer_class: str
    chat_template: str | None = None


class RequestExplanation(msgspec.Struct, frozen=True):
    """Response of /explain. id: of the request that an instance served or serves; several may be made of one."""

    id: str
    instance_id: str
    state: str
    sentences: list[str]


class Version(msgspec.Struct, frozen=True):
    """Response of /version."""

    version: str


class Health(msgspec.Struct, frozen=True):
    """Response of /health and /live. status: "ok" or why not."""

    status: str


def json_response(body: msgspec.Struct) -> Response:
    """A response of one of these bodies."""
    return Response(msgspec.json.encode(body), media_type="application/json")
