"""What one HTTP request is, for its log line and its metrics."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from starlette.types import Scope

MAX_REQUEST_ID = 128
_KEY = "distkv.facts"


@dataclass
class RequestFacts:
    """request_id: the client's or ours. Tokens are counted as they come."""

    request_id: str
    prompt_tokens: int = 0
    generation_tokens: int = 0


def request_id_from(header: str | None) -> str:
    """The id a client gave, if it is 1 to 128 printable ASCII characters without spaces; else a new one."""
    if header and len(header) <= MAX_REQUEST_ID and all("!" <= character <= "~" for character in header):
        return header
    return secrets.token_hex(16)


def attach(scope: Scope, facts: RequestFacts) -> None:
    """Make the facts known to whoever handles the request."""
    scope[_KEY] = facts


def facts_of(scope: Scope) -> RequestFacts:
    """The facts of the request being handled."""
    found = scope[_KEY]
    assert isinstance(found, RequestFacts)
    return found
