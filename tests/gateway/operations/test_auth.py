"""API keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from distkv.config import GatewayConfig, build
from distkv.errors import ConfigError
from tests.gateway.harness import error_of

Start = Callable[..., Any]


async def test_keys(start: Start) -> None:
    gateway = await start(api_key="one,two")
    for key in ("one", "two"):
        answer = await gateway.post("/v1/completions", {"authorization": f"Bearer {key}"}, prompt="x", max_tokens=1)
        assert answer.status_code == 200
    for wrong in ({}, {"authorization": "Bearer three"}, {"authorization": "Basic one"}, {"authorization": "one"}):
        for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/nowhere"):
            error_of(await gateway.post(path, wrong), 401, None, "invalid_api_key")
        error_of(await gateway.http.get("/v1/models", headers=wrong), 401, None, "invalid_api_key")
    error_of(
        await gateway.http.get("/v1/models", headers={"authorization": "Bearer ü".encode()}),
        401,
        None,
        "invalid_api_key",
    )
    for path in ("/health", "/ping", "/live", "/version", "/metrics", "/openapi.json"):
        assert (await gateway.http.get(path)).status_code == 200


def test_other_machines_need_keys() -> None:
    with pytest.raises(ConfigError, match="give it keys with --api-key"):
        build(GatewayConfig, {"model": "demo", "host": "0.0.0.0"})
    assert build(GatewayConfig, {"model": "demo", "host": "0.0.0.0", "api_key": "one"}).host == "0.0.0.0"
