"""What the cluster refuses or fails, as HTTP users see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from distkv.client.instances import directory
from distkv.errors import NoInstanceReady, RequestFailed
from distkv.gateway.schema.errors import from_cluster
from tests.client.fakes import FakeCluster
from tests.gateway.harness import MODEL, ends, error_of, started, until

Start = Callable[..., Any]


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


async def test_who_finds_all_queues_full_learns_when_to_come_again(start: Start) -> None:
    full = ends("failed", "4096 requests are waiting already", retryable=True, retry_after_s=7.3)
    gateway = await start(full, full)
    answer = await gateway.complete()
    assert "are waiting already" in error_of(answer, 503, None, "request_failed")
    assert answer.headers["retry-after"] == "8"


async def test_no_instance_is_ready(start: Start, checkpoint: Any) -> None:
    async with started(checkpoint, fakes=FakeCluster()) as gateway:
        health = await gateway.http.get("/health")
        assert health.status_code == 503 and health.headers["retry-after"] == "1"
        for answer in (await gateway.complete(), await gateway.complete(stream=True), await gateway.chat()):
            assert error_of(answer, 503, None, "no_ready_instance") == "no instance is ready"
        models = (await gateway.http.get("/v1/models")).json()
        assert models["data"][0]["id"] == MODEL and models["data"][0]["max_model_len"] is None
        assert (await gateway.http.get("/live")).status_code == 200


async def test_no_gmanager_answers(checkpoint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "FIRST_CONTACT_S", 0.05)
    fakes = FakeCluster()
    fakes.die()
    async with started(checkpoint, fakes=fakes) as gateway:

        async def is_told() -> bool:
            return (await gateway.http.get("/health")).json() == {"status": "the cluster does not answer"}

        await until(is_told)
        for answer in (await gateway.complete(), await gateway.chat()):
            assert error_of(answer, 503, None, "cluster_unreachable") == "the cluster does not answer"


def test_who_serves_nothing_is_named_without_its_address() -> None:
    error = from_cluster(NoInstanceReady("no instance is ready, and nothing answers at tcp://10.0.0.1:7: silent"))
    assert error is not None and (error.status, error.body.error.code) == (503, "no_ready_instance")
    assert error.body.error.message == "no instance is ready, and nothing answers: silent"


def test_a_gateway_that_drains_says_why_an_instance_ended_a_request() -> None:
    failed = RequestFailed(True, "i0: instance i0 at tcp://10.0.0.1:7: instance i0 is draining")
    error = from_cluster(failed, draining=True)
    assert error is not None and (error.status, error.body.error.code) == (503, "draining") and error.closes
    assert error.body.error.message == "the gateway is shutting down; i0: instance i0: instance i0 is draining"
    ended = from_cluster(RequestFailed(False, "closed by this client"), draining=True)
    assert ended is not None and ended.body.error.message == "the gateway is shutting down"
