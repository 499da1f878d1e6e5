"""Request ids and log lines."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog

from distkv.log import lines as log
from tests.gateway.harness import ends, error_of

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
    monkeypatch.setattr("distkv.gateway.prompting.reading.check_common", lambda asked: 1 / 0)
    answer = await gateway.complete("secret words")
    said = error_of(answer, 500, None, "internal_error")
    assert "division" not in said
    (line,) = [line for line in lines() if line["level"] == "error"]
    assert "ZeroDivisionError" in line["exception"] and line["request_id"] == answer.headers["x-request-id"]
    assert "secret" not in json.dumps(lines())
