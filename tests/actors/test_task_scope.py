"""Scopes: tasks end with their block, the first failure is raised as it is, and cancellation stays what it is."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from distkv.actors.task_scope import callback_errors, first_of, task_scope
from tests.waiting import soon


async def fails() -> None:
    raise ValueError("this one")


async def forever(ended: list[str]) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        ended.append("ended")


async def test_tasks_end_with_the_block() -> None:
    ended: list[str] = []
    async with task_scope() as tasks:
        tasks.create_task(forever(ended))
        await asyncio.sleep(0)
    assert ended == ["ended"]


async def test_a_failure_ends_the_block_and_the_others_and_is_raised_as_it_is() -> None:
    ended: list[str] = []
    with pytest.raises(ValueError, match="this one"):
        async with task_scope() as tasks:
            tasks.create_task(forever(ended))
            await asyncio.sleep(0)
            tasks.create_task(fails())
            await asyncio.Event().wait()
    assert ended == ["ended"]


async def test_what_the_block_raises_or_returns_is_its_own() -> None:
    ended: list[str] = []

    async def answer() -> int:
        async with task_scope() as tasks:
            tasks.create_task(forever(ended))
            await asyncio.sleep(0)
            return 7

    assert await answer() == 7
    with pytest.raises(KeyError):
        async with task_scope():
            raise KeyError
    assert ended == ["ended"]


async def test_cancelling_the_block_stays_a_cancellation() -> None:
    ended: list[str] = []

    async def block() -> None:
        async with task_scope() as tasks:
            tasks.create_task(forever(ended))
            await asyncio.Event().wait()

    task = asyncio.ensure_future(block())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["ended"]


async def ends_slowly(is_ending: asyncio.Event, may_end: asyncio.Event) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        is_ending.set()
        await may_end.wait()


async def empty_scope(*waits: Coroutine[Any, Any, None]) -> None:
    async with task_scope() as tasks:
        for wait in waits:
            tasks.create_task(wait)
        await asyncio.sleep(0)


@pytest.mark.parametrize("scope", [empty_scope, lambda wait: first_of(wait, asyncio.sleep(0))])
async def test_a_cancellation_while_the_tasks_end_is_one(scope: Callable[..., Coroutine[Any, Any, None]]) -> None:
    is_ending, may_end = asyncio.Event(), asyncio.Event()
    went_on = False

    async def block() -> None:
        nonlocal went_on
        await scope(ends_slowly(is_ending, may_end))
        went_on = True

    task = asyncio.ensure_future(block())
    await soon(is_ending.wait())
    task.cancel()
    await asyncio.sleep(0)
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await soon(task)
    assert not went_on


async def test_a_deadline_that_passes_while_the_tasks_end_is_one() -> None:
    is_ending, may_end = asyncio.Event(), asyncio.Event()

    async def pass_deadline(limit: asyncio.Timeout) -> None:
        await is_ending.wait()
        limit.reschedule(asyncio.get_running_loop().time())
        while not limit.expired():  # noqa: ASYNC110 - it is what looks
            await asyncio.sleep(0)
        may_end.set()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(None) as limit:
            passing = asyncio.ensure_future(pass_deadline(limit))
            await empty_scope(ends_slowly(is_ending, may_end))
    await passing


async def test_a_task_that_fails_while_a_cancelled_scope_ends_is_reported() -> None:
    async def fails_at_its_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await fails()

    task = asyncio.ensure_future(empty_scope(fails_at_its_end()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(ValueError, match="this one"):
        await soon(task)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("kind", ["soon", "later", "reader"])
def test_an_error_of_a_callback_ends_the_scope(run: Callable[..., None], kind: str) -> None:
    def fail() -> None:
        raise ValueError("this one")

    async def serve() -> None:
        loop, ready = asyncio.get_running_loop(), os.eventfd(1)
        others = loop.get_exception_handler()
        try:
            async with task_scope() as tasks:
                tasks.create_task(callback_errors())
                await asyncio.sleep(0)
                match kind:
                    case "soon":
                        loop.call_soon(fail)
                    case "later":
                        loop.call_later(0.001, fail)
                    case _:
                        loop.add_reader(ready, fail)
                await asyncio.Event().wait()
        finally:
            loop.remove_reader(ready)
            os.close(ready)
            assert loop.get_exception_handler() is others

    with pytest.raises(ValueError, match="this one"):
        run(serve())


async def test_what_no_callback_raised_is_logged_as_ever(caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.get_running_loop()
    async with task_scope() as tasks:
        tasks.create_task(callback_errors())
        await asyncio.sleep(0)
        loop.call_exception_handler({"message": "a task was left", "exception": ValueError()})
        await asyncio.sleep(0)
    assert "a task was left" in caplog.text


async def test_first_of_returns_raises_and_ends_the_others() -> None:
    ended: list[str] = []
    await first_of(asyncio.sleep(0.01), forever(ended))
    assert ended == ["ended"]
    with pytest.raises(ValueError, match="this one"):
        await first_of(forever(ended), fails())
