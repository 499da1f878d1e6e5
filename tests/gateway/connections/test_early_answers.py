"""Requests that are answered before their body has come, as by a 401: their connections end as idle ones do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from distkv.gateway.connections import http_server
from distkv.wire.messages.to_rmanager import Submit
from tests.gateway.connections.test_http_connection import POST, Raw, connected
from tests.gateway.harness import silence

Start = Callable[..., Any]
BODY_BYTES = 1000
HEAD = POST + b"content-length: %d\r\n\r\n" % BODY_BYTES


async def is_refused(one: Raw) -> None:
    """Send a head without a key, and read the whole answer."""
    await one.send(HEAD)
    head = await asyncio.wait_for(one.reader.readuntil(b"\r\n\r\n"), 20)
    assert b" 401 " in head
    length = int(head.lower().partition(b"content-length: ")[2].split()[0])
    await asyncio.wait_for(one.reader.readexactly(length), 20)


async def test_one_that_sends_a_part_of_its_body_is_closed(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "KEEP_ALIVE_S", 0.2)
    gateway = await start(api_key="sesame")
    async with connected(gateway.url, 2) as (one, complete):
        for each, size in ((one, 1), (complete, BODY_BYTES)):
            await is_refused(each)
            await each.send(b"x" * size)
        assert await one.is_closed() and await complete.is_closed()


async def test_a_request_after_it_has_its_own_time(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "KEEP_ALIVE_S", 0.2)
    gateway = await start(silence, api_key="sesame")
    async with connected(gateway.url, 2) as (one, later):
        await is_refused(one)
        await one.send(b"x")
        body = b'{"prompt": "x"}'
        request = POST + b"authorization: Bearer sesame\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
        await one.send(b"x" * (BODY_BYTES - 1) + request)
        await gateway.fakes.instances[0].wait_for(Submit)
        await is_refused(later)
        assert await later.is_closed()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(one.reader.read(1), 0.05)


async def test_they_make_room_for_others(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    few = 4
    monkeypatch.setattr(http_server, "most_connections", lambda: few)
    gateway = await start(api_key="sesame")
    await gateway.http.aclose()
    async with connected(gateway.url, few) as refused:
        for one in refused:
            await is_refused(one)
            await one.send(b"x" * BODY_BYTES)
        async with connected(gateway.url) as (another,):
            await is_refused(another)
        assert await refused[0].is_closed()
