"""Clients that offer HTTP/2 or WebSockets, and get HTTP/1.1: Java's HttpClient and `curl --http2` do so by default."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from tests.gateway.connections.test_http_connection import LIVE, connected

Start = Callable[..., Any]

OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n"
WEBSOCKET = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: eA==\r\nSec-WebSocket-Version: 13\r\n"
HEAD = b"POST /tokenize HTTP/1.1\r\nHost: x\r\n" + OFFER
SHORT = json.dumps({"prompt": "hello"}).encode()
LONG = json.dumps({"prompt": "hello " * 4000}).encode()
LAST = b"GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


def with_length(body: bytes, more: bytes = b"") -> tuple[bytes, bytes]:
    return HEAD + more + b"Content-Length: %d\r\n\r\n" % len(body), body


def in_chunks(body: bytes) -> tuple[bytes, bytes]:
    size = len(body) // 3 + 1
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    return HEAD + b"Transfer-Encoding: chunked\r\n\r\n", chunks + b"0\r\n\r\n"


async def answers(url: str, *pieces: bytes) -> list[tuple[int, Any]]:
    """The status and the body of each answer until the connection is closed."""
    found = []
    async with connected(url) as (one,):
        for piece in pieces:
            await one.send(piece)
            await asyncio.sleep(0)
        rest = await asyncio.wait_for(one.reader.read(), 20)
    while rest:
        head, _, rest = rest.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split()[0])
        found.append((int(head.split()[1]), json.loads(rest[:length])))
        rest = rest[length:]
    return found


@pytest.mark.parametrize("framed", [with_length, in_chunks])
@pytest.mark.parametrize("body", [SHORT, LONG], ids=["short", "long"])
async def test_a_body_behind_an_offer(start: Start, framed: Any, body: bytes, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "uvicorn.error")
    gateway = await start()
    plain = (await gateway.http.post("/tokenize", content=body)).json()
    head, rest = framed(body)
    for pieces in ([head + rest, LAST], [head, rest, LAST], [head[:30], head[30:] + rest[:9], rest[9:] + LAST]):
        first, last = await answers(gateway.url, *pieces)
        assert first == (200, plain) and last[0] == 200
    assert not caplog.records


async def test_a_body_is_not_answered_as_a_request(start: Start) -> None:
    gateway = await start()
    head, body = with_length(b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n")
    for pieces in ([head, body, LAST], [head + body + LAST]):
        (status, answer), (last, _) = await answers(gateway.url, *pieces)
        assert (status, answer["error"]["code"], last) == (400, "invalid_json", 200)


async def test_requests_behind_offers_are_answered_in_turn(start: Start) -> None:
    gateway = await start()
    live = LIVE.removesuffix(b"\r\n") + OFFER + b"\r\n"
    found = await answers(gateway.url, live + b"".join(with_length(SHORT) + in_chunks(b"[]")) + live + LAST)
    assert [status for status, _ in found] == [200, 200, 400, 200, 200]
    assert found[0] == found[3] and "tokens" in found[1][1]


async def test_expect_behind_an_offer(start: Start) -> None:
    gateway = await start()
    head, body = with_length(SHORT, b"Expect: 100-continue\r\n")
    async with connected(gateway.url) as (one,):
        await one.send(head)
        assert await one.status() == 100
        assert await one.reader.readline() == b"\r\n"
        await one.send(body)
        assert await one.status() == 200


async def test_websockets_are_not_served(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "uvicorn.error")
    gateway = await start()
    found = await answers(gateway.url, b"GET /nothing HTTP/1.1\r\nHost: x\r\n" + WEBSOCKET + b"\r\n" + LAST)
    assert [status for status, _ in found] == [404, 200] and not caplog.records


@pytest.mark.parametrize("more", [b"", OFFER], ids=["connect", "upgrade"])
async def test_connect_is_refused(start: Start, more: bytes) -> None:
    gateway = await start()
    async with connected(gateway.url) as (one,):
        await one.send(b"CONNECT x:443 HTTP/1.1\r\nHost: x:443\r\n" + more + b"\r\n" + LIVE)
        assert await one.error() == (405, "method_not_allowed")


async def test_offers_in_a_row_are_bounded(start: Start) -> None:
    gateway = await start()
    async with connected(gateway.url) as (one,):
        await one.send((LIVE.removesuffix(b"\r\n") + OFFER + b"\r\n") * 1000)
        await asyncio.wait_for(one.reader.read(), 20)
    assert (await gateway.complete(max_tokens=1)).status_code == 200
