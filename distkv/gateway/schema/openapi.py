"""The OpenAPI document of the gateway, made from the same types that check requests and write answers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import msgspec

from distkv import __version__
from distkv.gateway.schema import requests as r
from distkv.gateway.schema import responses as a
from distkv.gateway.schema.errors import ErrorBody

_REF = "#/components/schemas/{name}"


@dataclass(frozen=True)
class Operation:
    """One endpoint. answer: its JSON, None for plain text. event: of its stream. errors: status codes it may have."""

    method: str
    path: str
    summary: str
    answer: type[msgspec.Struct] | None
    body: type[msgspec.Struct] | None = None
    event: type[msgspec.Struct] | None = None
    errors: tuple[int, ...] = ()
    is_open: bool = False


_GENERATION = (400, 401, 404, 408, 413, 429, 500, 503)
_TEXT = (400, 401, 404, 408, 413, 429, 503)
OPERATIONS = (
    Operation(
        "post", "/v1/completions", "Go on with a text", a.Completion, r.CompletionRequest, a.Completion, _GENERATION
    ),
    Operation("post", "/v1/chat/completions", "Answer in a chat", a.Chat, r.ChatRequest, a.ChatChunk, _GENERATION),
    Operation("post", "/tokenize", "Tokens of a prompt or of messages", a.Tokenized, r.TokenizeRequest, errors=_TEXT),
    Operation("post", "/detokenize", "Text of tokens", a.Detokenized, r.DetokenizeRequest, errors=_TEXT),
    Operation("get", "/tokenizer_info", "How prompts are written", a.TokenizerInfo, errors=(400, 401, 429, 503)),
    Operation("post", "/v1/responses", "Not implemented", None, errors=(401, 429, 501, 503)),
    Operation("post", "/v1/embeddings", "Not implemented", None, errors=(401, 429, 501, 503)),
    Operation("get", "/v1/models", "Names of the model", a.ModelList, errors=(401, 429, 503)),
    Operation("get", "/v1/models/{model_id}", "One name of the model", a.ModelCard, errors=(401, 404, 429, 503)),
    Operation(
        "get",
        "/explain/{request_id}",
        "Why the KV of a request lies where it lies",
        a.RequestExplanation,
        errors=(400, 401, 404, 429, 503),
    ),
    Operation("get", "/health", "200 while requests can be served", a.Health, errors=(503,), is_open=True),
    Operation("get", "/ping", "As /health", a.Health, errors=(503,), is_open=True),
    Operation("post", "/ping", "As /health", a.Health, errors=(503,), is_open=True),
    Operation("get", "/live", "200 while the process lives", a.Health, is_open=True),
    Operation("get", "/version", "The version of distkv", a.Version, is_open=True),
    Operation("get", "/metrics", "Prometheus metrics", None, is_open=True),
)
_MEANINGS = {
    200: "The answer.",
    400: "The request is wrong; `param` names the field.",
    401: "The API key is missing or wrong.",
    404: "There is no such model, or no such request is known.",
    408: "The body did not come in time.",
    413: "The body is too large.",
    429: "Too many requests are running; see Retry-After.",
    500: "The request failed.",
    501: "There is no such thing here yet.",
    503: "The request cannot be served now; see Retry-After.",
}


def document(*, asks_for_key: bool) -> dict[str, Any]:
    """The OpenAPI 3.1 document, ready for JSON."""
    kinds = [kind for one in OPERATIONS for kind in (one.answer, one.body, one.event) if kind is not None]
    _, schemas = msgspec.json.schema_components([*kinds, ErrorBody], ref_template=_REF)
    paths: dict[str, dict[str, Any]] = {}
    for one in OPERATIONS:
        paths.setdefault(one.path, {})[one.method] = _operation(one, asks_for_key)
    components: dict[str, Any] = {"schemas": schemas}
    if asks_for_key:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "distkv", "version": __version__},
        "paths": paths,
        "components": components,
    }


def _operation(one: Operation, asks_for_key: bool) -> dict[str, Any]:
    content: dict[str, Any] = {"text/plain": {"schema": {"type": "string"}}}
    if one.answer is not None:
        content = {"application/json": {"schema": _ref(one.answer)}}
    if one.event is not None:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    made: dict[str, Any] = {
        "summary": one.summary,
        "responses": {"200": {"description": _MEANINGS[200], "content": content}}
        | {str(status): _error(one, status) for status in one.errors},
    }
    if one.body is not None:
        made["requestBody"] = {"required": True, "content": {"application/json": {"schema": _ref(one.body)}}}
    if names := re.findall(r"{(\w+)}", one.path):
        made["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
    if asks_for_key and not one.is_open:
        made["security"] = [{"key": []}]
    return made


def _error(one: Operation, status: int) -> dict[str, Any]:
    kind = a.Health if one.answer is a.Health else ErrorBody
    return {"description": _MEANINGS[status], "content": {"application/json": {"schema": _ref(kind)}}}


def _ref(kind: type[msgspec.Struct]) -> dict[str, str]:
    return {"$ref": _REF.format(name=kind.__name__)}
