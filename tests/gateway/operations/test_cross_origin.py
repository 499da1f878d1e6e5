"""What browsers of web pages from elsewhere are told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from distkv.config import GatewayConfig, build
from distkv.errors import ConfigError

Start = Callable[..., Any]
ALLOWS = "access-control-allow-origin"


async def preflight(gateway: Any, origin: str) -> httpx.Response:
    """What a browser asks before it posts JSON with a key."""
    asks = {"access-control-request-method": "POST", "access-control-request-headers": "authorization, content-type"}
    return await gateway.http.options("/v1/chat/completions", headers={"origin": origin, **asks})


@pytest.mark.parametrize(
    ("settings", "origin", "allowed"),
    [
        ({}, "http://localhost:3000", "http://localhost:3000"),
        ({}, "https://127.0.0.1", "https://127.0.0.1"),
        ({}, "http://[::1]:8080", "http://[::1]:8080"),
        ({}, "http://localhost.example.com", None),
        ({}, "https://example.com", None),
        ({"allowed_origins": "https://example.com,http://a:1"}, "https://example.com", "https://example.com"),
        ({"allowed_origins": "https://example.com"}, "https://other.com", None),
        ({"allowed_origins": "*"}, "https://other.com", "*"),
    ],
)
async def test_pages_that_may_use_the_api(
    start: Start, settings: dict[str, str], origin: str, allowed: str | None
) -> None:
    gateway = await start(api_key="one", **settings)
    asked = await preflight(gateway, origin)
    assert (asked.status_code, asked.headers.get(ALLOWS)) == (400 if allowed is None else 200, allowed)
    if allowed is not None:
        assert {"authorization", "content-type"} <= set(asked.headers["access-control-allow-headers"].split(", "))
    for key, status in (("one", 200), ("two", 401)):
        headers = {"origin": origin, "authorization": f"Bearer {key}"}
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, "stream": True}
        answer = await gateway.post("/v1/chat/completions", headers, **body)
        assert (answer.status_code, answer.headers.get(ALLOWS)) == (status, allowed), "errors can be read too"


@pytest.mark.parametrize("wrong", ["example.com", "https://example.com/", "https://", "ftp://example.com"])
def test_what_is_no_origin(wrong: str) -> None:
    with pytest.raises(ConfigError, match="allowed_origins"):
        build(GatewayConfig, {"model": "demo", "allowed_origins": wrong})
