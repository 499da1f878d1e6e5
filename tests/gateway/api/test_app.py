"""Unknown routes, methods and models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio.to_thread
import pytest

from tests.gateway.harness import error_of

Start = Callable[..., Any]


async def test_unknown_routes_and_methods(start: Start) -> None:
    gateway = await start()
    for path, hint in (
        ("/nowhere", "GET /openapi.json has all there is"),
        ("/chat/completions", "did you mean /v1/chat/completions?"),
        ("/v1/completions/", "did you mean /v1/completions?"),
    ):
        message = error_of(await gateway.http.get(path), 404, None, "not_found")
        assert message == f"there is no {path} here; {hint}"
    error_of(await gateway.http.get("/v1/models/"), 404, "model", "model_not_found")
    for method, path, allowed in (("PUT", "/v1/completions", "POST"), ("POST", "/health", "GET, HEAD")):
        answer = await gateway.http.request(method, path)
        told = error_of(answer, 405, None, "method_not_allowed")
        assert told == f"{path} takes {allowed}, not {method}" and answer.headers["allow"] == allowed
    assert (await gateway.http.head("/health")).status_code == 200


async def test_unknown_models(start: Start) -> None:
    gateway = await start(served_model_name="tiny,alias")
    for name in ("tiny", "alias"):
        assert (await gateway.complete(model=name, max_tokens=1)).json()["model"] == name
    for path, body in (
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("/tokenize", {"prompt": "x"}),
        ("/detokenize", {"tokens": [1]}),
    ):
        assert "gpt" in error_of(await gateway.post(path, model="gpt", **body), 404, "model", "model_not_found")


async def test_no_answer_takes_a_thread_of_the_web_framework(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first would hold the event loop for 30 ms, to import what makes threads."""
    gateway = await start()
    monkeypatch.delattr(anyio.to_thread, "run_sync")
    error_of(await gateway.http.get("/nowhere"), 404, None, "not_found")
    error_of(await gateway.post("/v1/completions", model="gpt", prompt="x"), 404, "model", "model_not_found")
    assert (await gateway.http.get("/health")).status_code == 200
    assert (await gateway.complete(max_tokens=1)).status_code == 200
