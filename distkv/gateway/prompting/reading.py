"""From the body of a request to its prompts as token ids: what takes long when the body is long.

Pure functions of a model, a body and the longest request that may fit; `readers` decides where they run.
"""

from __future__ import annotations

from typing import Any

import msgspec

from distkv.client.prompts import TokenIds
from distkv.gateway.generation.call_grammar import calls_or_json, schema_of_calls
from distkv.gateway.generation.sampling import check_common, sampling_params
from distkv.gateway.generation.structured_outputs import Constraint, constraint, constraint_of
from distkv.gateway.generation.tool_use import ToolUse, tool_use
from distkv.gateway.prompting.conversations import conversation_text
from distkv.gateway.prompting.prompts import check_ids, completion_prompts, encode, truncation_of
from distkv.gateway.prompting.served_model import ServedModel
from distkv.gateway.schema.body import decode
from distkv.gateway.schema.errors import invalid
from distkv.gateway.schema.requests import (
    REFUSED_CHAT,
    REFUSED_COMPLETION,
    REFUSED_TEXT,
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    Message,
    SamplingRequest,
    TokenizeRequest,
)
from distkv.gateway.schema.responses import Detokenized, Tokenized
from distkv.structured_output import StructuredOutput
from distkv.types import SamplingParams

DEFAULT_MAX_TOKENS = 16
MAX_TEXT = 16 * 2**20
"""Characters that /detokenize writes at most: four times the longest text that /tokenize takes."""
NO_PROMPT = ""
NO_MESSAGES = [Message(role="user")]
UNCONSTRAINED: dict[str, Any] = dict.fromkeys(
    ("response_format", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs")
)
"""What stands in a body when its prompts and its constraints were read: the rest of it is short."""


class Prompt(msgspec.Struct, frozen=True):
    """text: what echo repeats, if it is wanted."""

    token_ids: TokenIds
    text: str | None = None


class CompletionRead(msgspec.Struct, frozen=True, tag=True):
    """A completion to be made. max_tokens may be 0, where only the prompt is wanted; None takes the model's default, or
    what fits of it, and params do not say. constraint_param: the field that says what the output must be."""

    body: CompletionRequest
    params: SamplingParams
    max_tokens: int | None
    prompts: list[Prompt] = []
    constraint_param: str = ""


class ChatRead(msgspec.Struct, frozen=True, tag=True):
    """A chat to be answered. max_tokens: None takes what fits, and params do not say. constraint_param: the field that
    says what the output must be. tool_use: None if no tool may be called."""

    body: ChatRequest
    params: SamplingParams
    max_tokens: int | None
    prompts: list[Prompt] = []
    constraint_param: str = ""
    tool_use: ToolUse | None = None


class Written(msgspec.Struct, frozen=True, tag=True):
    """The response itself: parts of JSON."""

    parts: list[bytes]


def read_completion(model: ServedModel, raw: bytes, most: int | None) -> CompletionRead:
    """What /v1/completions gets. Raises ApiError."""
    body = decode(raw, CompletionRequest, REFUSED_COMPLETION)
    model.check_name(body.model)
    check_common(body)
    _check_outputs(body)
    # A request must ask for a token, also where only its prompt is wanted.
    least = body.max_tokens if body.max_tokens is not None else max(1, body.min_tokens or 0)
    params = sampling_params(
        body,
        model.defaults,
        max_tokens=max(1, least),
        logprobs=body.logprobs if least else None,
        prompt_logprobs=body.logprobs if body.echo else None,
    )
    found = _constraint(model, body)
    beside = least
    if body.max_tokens is None and body.truncate_prompt_tokens == -1:
        beside = max(least, min(DEFAULT_MAX_TOKENS, model.defaults.get("max_tokens", DEFAULT_MAX_TOKENS)))
    truncation = truncation_of(body, beside, most)
    prompts = []
    for ids, text in completion_prompts(model, body, least, most, truncation):
        echoed = None
        if body.echo:
            echoed = text if text is not None else _text_of(model, ids, body.skip_special_tokens is not False)
        prompts.append(Prompt(TokenIds(ids), echoed))
    shorn = msgspec.structs.replace(body, prompt=NO_PROMPT, **UNCONSTRAINED)
    return CompletionRead(shorn, _constrained(params, found), body.max_tokens, prompts, _param(found))


def read_chat(model: ServedModel, raw: bytes, most: int | None) -> ChatRead:
    """What /v1/chat/completions gets. Raises ApiError."""
    body = decode(raw, ChatRequest, REFUSED_CHAT)
    model.check_name(body.model)
    check_common(body)
    if body.top_logprobs and not body.logprobs:
        raise invalid("top_logprobs: needs logprobs to be true", "top_logprobs")
    logprobs = body.top_logprobs or 0 if body.logprobs else None
    use = tool_use(body, model.tool_format)
    wanted = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    least = wanted or max(1, body.min_tokens or 0)
    # Checked before the prompt is made, which takes longer.
    params = sampling_params(body, model.defaults, max_tokens=least, logprobs=logprobs)
    found = _chat_constraint(model, body, use)
    params = _constrained(params, found)
    if use is not None and not use.is_required and model.marks_are_special:
        params = msgspec.structs.replace(params, skip_special_tokens=False)
    truncation = truncation_of(body, least, most)
    text = conversation_text(model, body.messages, body)
    with_special = bool(body.add_special_tokens)
    ids = encode(model, text, "messages", least, most, truncation, add_special_tokens=with_special)
    check_ids(ids, "messages: the prompt", "messages")
    shorn = msgspec.structs.replace(body, messages=NO_MESSAGES, chat_template_kwargs=None, tools=None, **UNCONSTRAINED)
    return ChatRead(shorn, params, wanted, [Prompt(TokenIds(ids))], _param(found), use)


def tokenize(model: ServedModel, raw: bytes, max_model_len: int | None) -> Written:
    """The response of /tokenize: the tokens of a prompt or of a conversation, as the cluster would get them."""
    body = decode(raw, TokenizeRequest, REFUSED_TEXT)
    model.check_name(body.model)
    tokenizer = model.need_tokenizer()
    if (body.prompt is None) == (body.messages is None):
        raise invalid("prompt: give either prompt or messages", "prompt")
    if body.prompt is not None:
        with_special = body.add_special_tokens is not False
        ids = encode(model, body.prompt, "prompt", 0, None, add_special_tokens=with_special)
    else:
        if not body.messages:
            raise invalid("messages: is an empty list", "messages")
        text = conversation_text(model, body.messages, body)
        ids = encode(model, text, "messages", 0, None, add_special_tokens=bool(body.add_special_tokens))
        check_ids(ids, "messages: the prompt", "messages")
    strings = list(map(tokenizer.token, ids)) if body.return_token_strs else None
    found = Tokenized(count=len(ids), max_model_len=max_model_len, tokens=ids, token_strs=strings)
    return Written([msgspec.json.encode(found)])


def detokenize(model: ServedModel, raw: bytes, most: int | None) -> Written:
    """The response of /detokenize: the text of tokens, special ones left out as in every output."""
    body = decode(raw, DetokenizeRequest, {})
    model.check_name(body.model)
    text = model.need_tokenizer().decode(body.tokens)
    if len(text) > MAX_TEXT:
        raise invalid(f"tokens: their text is over the limit of {MAX_TEXT} characters", "tokens", "response_too_large")
    return Written([msgspec.json.encode(Detokenized(text))])


def _constraint(model: ServedModel, body: SamplingRequest) -> Constraint | None:
    """What the output must be. Raises ApiError 400."""
    found = constraint_of(body)
    if found is not None:
        model.need_tokenizer(found.param)
    return found


def _chat_constraint(model: ServedModel, body: ChatRequest, use: ToolUse | None) -> Constraint | None:
    """The same, where calls are a way to answer, or all of it."""
    found, tools = _constraint(model, body), body.tools or []
    if use is None:
        return found
    if found is not None and found.param != "response_format":
        raise invalid(f'{found.param}: cannot go with tools, unless tool_choice is "none"', found.param)
    if use.is_required:
        model.need_tokenizer("tools")
        return constraint("tools", lambda _: StructuredOutput.json_schema(schema_of_calls(use, tools)), tools)
    if found is None:
        return None
    assert body.response_format is not None
    schema = body.response_format.json
    return constraint(
        found.param, lambda _: StructuredOutput.grammar(calls_or_json(use, tools, schema, model.special_id)), schema
    )


def _constrained(params: SamplingParams, found: Constraint | None) -> SamplingParams:
    return params if found is None else msgspec.structs.replace(params, structured_output=found.output)


def _param(found: Constraint | None) -> str:
    return "" if found is None else found.param


def _text_of(model: ServedModel, ids: list[int], skip_special_tokens: bool) -> str:
    return model.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens) if model.tokenizer else ""


def _check_outputs(body: CompletionRequest) -> None:
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise invalid("best_of: only the value of n is supported", "best_of", "unsupported_parameter")
    if body.max_tokens == 0 and not body.echo:
        raise invalid("max_tokens: 0 needs echo, without it there would be no answer", "max_tokens")
