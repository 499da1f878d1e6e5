"""What one connection, and many of them, can do to the others: nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from distkv.gateway.connections import descriptors, http_server
from distkv.gateway.connections import http_connection as module
from distkv.wire.messages.to_rmanager import Cancel, Submit
from tests.gateway.harness import chunk, silence

Start = Callable[..., Any]


class Raw:
    """A connection that sends what it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, *parts: bytes) -> None:
        for part in parts:
            self.writer.write(part)
            await self.writer.drain()

    async def status(self) -> int:
        """Of the next answer, whose rest is left unread."""
        line = await asyncio.wait_for(self.reader.readline(), 20)
        return int(line.split()[1])

    async def error(self) -> tuple[int, str]:
        """The status and the code of an answer after which the connection is closed."""
        answer = await asyncio.wait_for(self.reader.read(), 20)
        head, _, body = answer.partition(b"\r\n\r\n")
        assert b"connection: close" in head
        return int(head.split()[1]), json.loads(body)["error"]["code"]

    async def is_refused(self, status: int, code: str) -> bool:
        """Whether it is closed, with this error unless what was sent after that overtakes it."""
        try:
            return await self.error() == (status, code)
        except ConnectionError:
            return True

    async def is_closed(self) -> bool:
        try:
            return await asyncio.wait_for(self.reader.read(), 20) == b""
        except ConnectionError:
            return True


@asynccontextmanager
async def connected(url: str, count: int = 1) -> AsyncIterator[list[Raw]]:
    host, _, port = url.removeprefix("http://").partition(":")
    found = [Raw(*await asyncio.open_connection(host, int(port))) for _ in range(count)]
    async with AsyncExitStack() as stack:
        for one in found:
            stack.callback(one.writer.close)
        yield found


POST = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n"
LIVE = b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n"

TOO_LARGE = {
    "one header": [b"GET /live HTTP/1.1\r\nx: " + b"y" * 40_000 + b"\r\n\r\n"],
    "without end": [b"GET /live HTTP/1.1\r\nx: ", *[b"y" * 1000] * 40],
    "many headers": [b"GET /live HTTP/1.1\r\n" + b"".join(b"x%d: y\r\n" % i for i in range(200)) + b"\r\n"],
    "path": [b"GET /" + b"y" * 40_000 + b" HTTP/1.1\r\n\r\n"],
}


@pytest.mark.parametrize("kind", TOO_LARGE)
async def test_a_head_that_is_too_large(start: Start, kind: str) -> None:
    gateway = await start()
    async with connected(gateway.url) as (one,):
        await one.send(*TOO_LARGE[kind])
        try:
            assert await one.error() == (431, "head_too_large")
        except ConnectionResetError:
            assert kind == "without end", "what is sent after the answer may overtake it"
    assert (await gateway.complete(max_tokens=1)).status_code == 200


async def test_a_head_as_large_as_may_be(start: Start) -> None:
    gateway = await start()
    many = {f"x{index}": "y" * 200 for index in range(100)}
    for _ in range(3):
        assert (await gateway.post("/v1/completions", many, prompt="x", max_tokens=1)).status_code == 200


async def test_framing_is_in_proportion_to_the_body(start: Start) -> None:
    gateway = await start()
    async with connected(gateway.url, 2) as (extended, trailing):
        await extended.send(POST + b"transfer-encoding: chunked\r\n\r\n", b"1;" + b"x" * 80_000)
        assert await extended.is_refused(400, "invalid_http")
        trailer = b"".join(b"x%d: y\r\n" % i for i in range(300))
        await trailing.send(POST + b"transfer-encoding: chunked\r\n\r\n", b"1\r\nx\r\n0\r\n" + trailer)
        assert await trailing.is_refused(431, "head_too_large")
    body = json.dumps({"prompt": "x", "max_tokens": 1}).encode()
    async with connected(gateway.url) as (tiny,):
        chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
        await tiny.send(POST + b"transfer-encoding: chunked\r\n\r\n", chunks + b"0\r\n\r\n")
        assert await tiny.status() == 200


async def test_what_comes_at_once_is_read_in_parts(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    parts: list[int] = []
    read = HttpToolsProtocol.data_received

    def count(self: HttpToolsProtocol, data: bytes) -> None:
        parts.append(len(data))
        read(self, data)

    monkeypatch.setattr(HttpToolsProtocol, "data_received", count)
    gateway = await start()
    body = json.dumps({"prompt": "x", "max_tokens": 1}).encode() + b" " * 60_000
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    async with connected(gateway.url) as (one,):
        await one.send(POST + b"transfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n" + LIVE * 3)
        assert await one.status() == 200
    assert module.PART_BYTES / 2 < max(parts) <= module.PART_BYTES
    async with connected(gateway.url) as (gone,):
        await gone.send(POST + b"content-length: 9999999\r\n\r\n" + b" " * 2_000_000)
    assert (await gateway.complete(max_tokens=1)).status_code == 200


async def test_heads_that_do_not_end(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEAD_S", 0.5)
    gateway = await start()
    async with connected(gateway.url, 3) as (empty, half, second):
        await half.send(b"GET /live HTTP/1.1\r\nx: y")
        await second.send(LIVE)
        assert await second.status() == 200
        await second.send(b"GET /li")
        for one in (empty, half):
            assert await one.error() == (408, "head_too_slow")
        assert b"head_too_slow" in await asyncio.wait_for(second.reader.read(), 20)


async def test_nonsense_gets_the_usual_error(start: Start) -> None:
    gateway = await start()
    async with connected(gateway.url) as (one,):
        await one.send(b"nonsense\r\n\r\n")
        assert await one.error() == (400, "invalid_http")


async def test_a_body_that_breaks_its_framing_is_answered(start: Start) -> None:
    gateway = await start()
    async with connected(gateway.url) as (one,):
        await one.send(POST + b"transfer-encoding: chunked\r\n\r\n", b"nonsense\r\n")
        assert await one.error() == (400, "invalid_http")
    assert (await gateway.complete(max_tokens=1)).status_code == 200


async def test_requests_in_a_row_are_bounded(start: Start) -> None:
    """And when their connection is closed, the one that runs ends."""
    gateway = await start(silence)
    async with connected(gateway.url) as (one,):
        body = b'{"prompt": "x"}'
        await one.send(POST + b"content-length: %d\r\n\r\n%s" % (len(body), body))
        await gateway.fakes.instances[0].wait_for(Submit)
        await one.send(LIVE * 1000)
        assert await one.is_closed()
    await gateway.fakes.instances[0].wait_for(Cancel)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> int:
    """Connections of a gateway."""
    monkeypatch.setattr(http_server, "most_connections", lambda: 8)
    return 8


async def test_one_more_ends_the_longest_idle(start: Start, few: int) -> None:
    gateway = await start(silence)
    async with connected(gateway.url, few) as half_sent:
        await half_sent[0].send(b"GET /live HTTP/1.1\r\n")
        await half_sent[1].send(POST + b"content-length: 100\r\n\r\n{")
        for _ in range(3):
            async with connected(gateway.url) as (another,):
                await another.send(LIVE)
                assert await another.status() == 200
        assert await half_sent[0].is_closed()


async def test_health_answers_when_every_connection_is_busy(start: Start, few: int) -> None:
    gateway = await start(silence)
    await gateway.http.aclose()
    body = b'{"prompt": "x"}'
    async with connected(gateway.url, few) as busy:
        for one in busy:
            await one.send(POST + b"content-length: %d\r\n\r\n%s" % (len(body), body))
        await gateway.fakes.instances[0].wait_for(Submit, few)
        async with connected(gateway.url, 3) as (live, metrics, other):
            await live.send(LIVE)
            assert await live.status() == 200
            await metrics.send(LIVE.replace(b"/live", b"/metrics"))
            assert await metrics.status() == 200
            await other.send(POST + b"content-length: %d\r\n\r\n%s" % (len(body), body))
            assert await other.error() == (503, "too_many_connections")
    assert len(gateway.fakes.instances[0].of(Submit)) == few


async def test_spare_connections_make_room_for_each_other(
    start: Start, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(descriptors, "SPARE", 2)
    gateway = await start(silence)
    await gateway.http.aclose()
    body = b'{"prompt": "x"}'
    async with connected(gateway.url, few) as busy:
        for one in busy:
            await one.send(POST + b"content-length: %d\r\n\r\n%s" % (len(body), body))
        await gateway.fakes.instances[0].wait_for(Submit, few)
        async with connected(gateway.url, 20) as silent:
            async with connected(gateway.url) as (live,):
                await live.send(LIVE)
                assert await live.status() == 200
            assert await silent[0].is_closed()


def test_descriptors_are_kept_back(monkeypatch: pytest.MonkeyPatch) -> None:
    for soft, *numbers in (
        (1024, 672, 96, 64),
        (65536, 61184, 4096, 64),
        (256, 56, 8, 16),
        (64, 14, 2, 4),
        (3, 1, 1, 1),
    ):
        monkeypatch.setattr(descriptors.resource, "getrlimit", lambda kind, soft=soft: (soft, soft))
        assert [descriptors.most_connections(), descriptors.most_waiting(), descriptors.most_spare()] == numbers


async def test_a_reader_who_takes_nothing_is_cut_off(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WRITE_S", 0.2)

    def without_end(instance: Any, route: bytes, submit: Submit) -> list[Any]:
        return [chunk(submit, 1, text="x" * 20_000) for _ in range(500)]

    gateway = await start(without_end)
    body = json.dumps({"prompt": "x", "stream": True, "max_tokens": 900}).encode()
    async with connected(gateway.url) as (one,):
        one.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await one.send(POST + b"content-length: %d\r\n\r\n%s" % (len(body), body))
        await gateway.fakes.instances[0].wait_for(Cancel)
