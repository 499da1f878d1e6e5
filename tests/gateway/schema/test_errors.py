"""What the cluster refuses or fails, as HTTP users see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from distkv.errors import RequestFailed
from distkv.gateway.schema.errors import from_cluster
from tests.client.fakes import FakeCluster
from tests.gateway.harness import MODEL, ends, error_of, started

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
        error_of(await gateway.complete(), 503, None, "request_failed")
        error_of(await gateway.chat(), 503, None, "no_ready_instance")
        models = (await gateway.http.get("/v1/models")).json()
        assert models["data"][0]["id"] == MODEL and models["data"][0]["max_model_len"] is None
        assert (await gateway.http.get("/live")).status_code == 200


def test_a_gateway_that_drains_says_why_an_instance_ended_a_request() -> None:
    failed = RequestFailed(True, "i0: instance i0 at tcp://10.0.0.1:7: instance i0 is draining")
    error = from_cluster(failed, draining=True)
    assert error is not None and (error.status, error.body.error.code) == (503, "draining") and error.closes
    assert error.body.error.message == "the gateway is shutting down; i0: instance i0: instance i0 is draining"
    ended = from_cluster(RequestFailed(False, "closed by this client"), draining=True)
    assert ended is not None and ended.body.error.message == "the gateway is shutting down"
