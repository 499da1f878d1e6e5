"""Lifetimes of asyncio actors: tasks live in a group that ends, and is awaited, with the block that opened it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any


class _BlockEnded(Exception):
    """The block of a scope is over: what still runs in it is cancelled."""


@asynccontextmanager
async def task_scope() -> AsyncIterator[asyncio.TaskGroup]:
    """A task group for tasks that never end by themselves. When the block ends they are cancelled and awaited.

    A task that fails ends the block and the other tasks; its error is raised as it is, not in a group. Cancelling the
    block cancels the tasks and stays a cancellation, also while they are awaited.
    """
    current = asyncio.current_task()
    assert current is not None
    cancelled_before = current.cancelling()
    try:
        async with asyncio.TaskGroup() as tasks:
            yield tasks
            raise _BlockEnded
    except BaseExceptionGroup as ended:
        _, failures = ended.split(_BlockEnded)
        if failures is not None:
            raise _first(failures) from None
        # A group that has an error to raise, ours among them, keeps a cancellation of its last wait to itself.
        if current.cancelling() > cancelled_before:
            raise asyncio.CancelledError from None


async def first_of(*waits: Coroutine[Any, Any, object]) -> None:
    """Return when one of them does, raise what one raises; the others are cancelled and awaited."""
    done = asyncio.Event()

    async def run(wait: Coroutine[Any, Any, object]) -> None:
        await wait
        done.set()

    async with task_scope() as tasks:
        for wait in waits:
            tasks.create_task(run(wait))
        await done.wait()


async def callback_errors() -> None:
    """Raise the first error of a callback of the running loop, until cancelled. As a task of a scope it ends that with
    the error, as a task would; the loop itself would only log it, and what the callback was for would be undone."""
    loop = asyncio.get_running_loop()
    failed: asyncio.Future[None] = loop.create_future()

    def note(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if "handle" in context and isinstance(error, Exception) and not failed.done():
            failed.set_exception(error)
        else:
            loop.default_exception_handler(context)

    before = loop.get_exception_handler()
    loop.set_exception_handler(note)
    try:
        await failed
    finally:
        loop.set_exception_handler(before)


async def every(period_s: float, call: Callable[[], None]) -> None:
    """Call again and again, `period_s` apart, until cancelled."""
    while True:
        await asyncio.sleep(period_s)
        call()


def _first(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = failures
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
