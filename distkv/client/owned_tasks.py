"""Tasks of an object that is used without a task group around it: the object owns them, and its `aclose` ends them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Self, TypeVar

import structlog

T = TypeVar("T")


class OwnedTasks:
    """Runs tasks until `aclose`, which the owner awaits; or use it in `async with`.

    A task that ends with an exception is a bug of ours, and is logged at once.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run `work` as a task. Call it under the running loop."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    async def aclose(self) -> None:
        """Cancel all tasks and return when they have ended; safe to call twice. A caller that is cancelled itself
        stays cancelled."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            structlog.get_logger().error("a task failed unexpectedly", task=task.get_name(), exc_info=error)


async def gather_limited(works: Sequence[Callable[[], Awaitable[T]]], limit: int) -> list[T]:
    """What all of them return, in order, `limit` running at the same time.

    The first that fails cancels the others, and its error is raised once they have ended.
    """
    results: dict[int, T] = {}
    rest = iter(enumerate(works))

    async def run() -> None:
        for index, work in rest:
            results[index] = await work()

    failures: list[BaseException] = []
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(limit, len(works))):
                group.create_task(run())
        return [results[index] for index in range(len(works))]
    except BaseExceptionGroup as failed:
        failures.append(first_of(failed))
    except asyncio.CancelledError as cancelled:
        forget_frames(cancelled)
        raise
    raise failures.pop()


def first_of(failed: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error of a task group, to be raised behind its `except` and kept in no variable there: else the two
    refer to each other, and what their frames hold stays, as in `forget_frames`."""
    forget_frames(failed)
    return failed.exceptions[0]


def forget_frames(error: BaseException) -> None:
    """Of what a task group raised, whose frame has it in a variable: they would stay until garbage is looked for, and
    all that they hold, as the body of a request or its output."""
    error.__traceback__ = None
