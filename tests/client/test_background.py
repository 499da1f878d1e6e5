"""Coroutines for threads that block."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from distkv.client.background import MAX_AHEAD, BackgroundLoop


def test_what_nobody_reads_yet_waits_where_it_comes_from() -> None:
    made = []

    async def items() -> AsyncGenerator[int, None]:
        for index in range(5 * MAX_AHEAD):
            made.append(index)
            yield index

    loop = BackgroundLoop("test")
    try:
        stream = loop.iterate(items())
        assert next(stream) == 0
        for _ in range(3 * MAX_AHEAD):
            loop.call(asyncio.sleep(0))
        assert MAX_AHEAD <= len(made) <= MAX_AHEAD + 2
        assert list(stream) == list(range(1, 5 * MAX_AHEAD))
    finally:
        loop.stop()


def test_its_own_thread_cannot_wait_for_itself() -> None:
    """It did, without end."""

    async def items() -> AsyncGenerator[int, None]:
        yield 1
        yield 2

    async def in_own_thread() -> None:
        opened = loop.iterate(items())
        for use in (lambda: loop.call(asyncio.sleep(0)), lambda: next(opened), lambda: next(stream), loop.stop):
            with pytest.raises(RuntimeError, match="called from on_output, which the client's own thread runs"):
                use()

    loop = BackgroundLoop("test")
    try:
        stream = loop.iterate(items())
        assert next(stream) == 1
        loop.call(in_own_thread())
    finally:
        loop.stop()
