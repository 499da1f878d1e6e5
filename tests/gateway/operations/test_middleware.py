"""Request ids, keys, limits, unknown routes, log lines."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog

from distkv import log
from distkv.wire.messages.to_rmanager import Submit
from tests.client.fakes import FakeCluster
from tests.gateway.parts import MODEL, ends, error_of, silence, started, until

Start = Callable[..., Any]


@pytest.fixture
def lines() -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """What was logged so far."""
    out = io.StringIO()
    before = structlog.get_config()
    log.configure("gateway", level="debug", json=True, stream=out)
    yield lambda: [json.loads(line) for line in out.getvalue().splitlines()]
    structlog.configure(**before)


async def test_request_ids(start: Start) -> None:
    gateway = await start()
    for given in ("mine", "x" * 128, "a/b:c-d_e.f~!", None, "", "two words", "x" * 129, "é"):
        headers = {} if given is None else {"X-Request-Id": given.encode()}
        before = len(gateway.submits())
        answers = [await gateway.post("/v1/completions", headers, prompt="x", max_tokens=1) for _ in range(2)]
        ids = [answer.headers["x-request-id"] for answer in answers]
        if given in ("mine", "x" * 128, "a/b:c-d_e.f~!"):
            assert ids == [given, given]
        else:
            assert len(set(ids)) == 2 and all(len(one) == 32 for one in ids)
        sent = [submit.request_id for submit in gateway.submits()[before:]]
        assert len(set(sent)) == 2 and all(name.startswith(one + "-") for name, one in zip(sent, ids, strict=True))


async def test_every_answer_has_the_id(start: Start) -> None:
    gateway = await start()
    for path in ("/health", "/live", "/version", "/metrics", "/v1/models", "/nowhere", "/openapi.json"):
        assert (await gateway.http.get(path, headers={"x-request-id": "mine"})).headers["x-request-id"] == "mine"


async def test_every_log_line_has_the_id_and_none_has_the_prompt(start: Start, lines: Any) -> None:
    gateway = await start(ends("failed", "gone"), api_key="sesame")
    key = {"authorization": "Bearer sesame"}
    answer = await gateway.post("/v1/completions", key | {"x-request-id": "mine"}, prompt="secret words")
    assert answer.status_code == 500
    said = [line for line in lines() if line.get("request_id") == "mine"]
    assert [line["event"] for line in said] == ["request failed", "http request"]
    (access,) = [line for line in said if line["event"] == "http request"]
    assert (access["method"], access["path"], access["status"]) == ("POST", "/v1/completions", 500)
    assert access["duration_s"] > 0 and access["prompt_tokens"] > 0 and access["generation_tokens"] == 0
    text = json.dumps(lines())
    assert "secret" not in text and "sesame" not in text


async def test_tokens_in_the_log_line(start: Start, lines: Any) -> None:
    gateway = await start()
    await gateway.events("/v1/completions", prompt=[1, 2, 3], max_tokens=4)
    (access,) = [line for line in lines() if line["event"] == "http request" and line["method"] == "POST"]
    assert (access["prompt_tokens"], access["generation_tokens"], access["status"]) == (3, 4, 200)


async def test_a_bug_says_nothing_to_the_user_and_all_to_the_log(
    start: Start, lines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = await start()
    monkeypatch.setattr("distkv.gateway.api.completions.check_common", lambda asked: 1 / 0)
    answer = await gateway.complete("secret words")
    said = error_of(answer, 500, None, "internal_error")
    assert "division" not in said
    (line,) = [line for line in lines() if line["level"] == "error"]
    assert "ZeroDivisionError" in line["exception"] and line["request_id"] == answer.headers["x-request-id"]
    assert "secret" not in json.dumps(lines())


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
    for path in ("/health", "/live", "/version", "/metrics", "/openapi.json"):
        assert (await gateway.http.get(path)).status_code == 200


async def test_unknown_routes_and_methods(start: Start) -> None:
    gateway = await start()
    assert "/nowhere" in error_of(await gateway.http.get("/nowhere"), 404, None, "not_found")
    error_of(await gateway.http.get("/v1/models/"), 404, "model", "model_not_found")
    answer = await gateway.http.get("/v1/completions")
    error_of(answer, 405, None, "method_not_allowed")
    assert "POST" in answer.headers["allow"]
    error_of(await gateway.post("/health"), 405, None, "method_not_allowed")
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


async def test_more_than_the_limit_at_once(start: Start) -> None:
    gateway = await start(silence, max_concurrent_requests=2)
    running = [asyncio.create_task(gateway.complete()) for _ in range(2)]
    await gateway.fakes.instances[0].wait_for(Submit, 2)
    answer = await gateway.complete()
    error_of(answer, 429, None, "too_many_requests")
    assert (await gateway.http.get("/health")).status_code == 200
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    # Their places are free again.
    await until(lambda: _is_let_in(gateway))


async def _is_let_in(gateway: Any) -> bool:
    return (await gateway.http.get("/v1/models")).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("kind", "more", "status", "code"),
    [
        ("refused", {"needed_tokens": 99, "pool_tokens": 9}, 400, "context_length_exceeded"),
        ("refused", {}, 400, None),
        ("failed", {}, 500, "request_failed"),
    ],
)
async def test_what_the_cluster_says_no_to(
    start: Start, stream: bool, kind: Any, more: Any, status: int, code: str | None
) -> None:
    gateway = await start(ends(kind, "because", **more))
    assert error_of(await gateway.complete(stream=stream), status, None, code).endswith("because")


async def test_a_failure_that_another_try_may_mend(start: Start) -> None:
    overloaded = ends("failed", "too full", retryable=True)
    gateway = await start(overloaded, overloaded)
    assert "too full" in error_of(await gateway.complete(), 503, None, "request_failed")


async def test_no_instance_is_ready(start: Start, checkpoint: Any) -> None:
    async with started(checkpoint, fakes=FakeCluster()) as gateway:
        health = await gateway.http.get("/health")
        assert health.status_code == 503 and health.headers["retry-after"] == "1"
        error_of(await gateway.complete(), 503, None, "request_failed")
        error_of(await gateway.chat(), 503, None, "no_ready_instance")
        models = (await gateway.http.get("/v1/models")).json()
        assert models["data"][0]["id"] == MODEL and models["data"][0]["max_model_len"] is None
        assert (await gateway.http.get("/live")).status_code == 200
