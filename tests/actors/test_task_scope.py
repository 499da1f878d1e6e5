"""Scopes: tasks end with their block, the first failure is raised as it is, and cancellation stays what it is."""

from __future__ import annotations

import asyncio

import pytest

from distkv.actors.task_scope import first_of, task_scope


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


async def test_first_of_returns_raises_and_ends_the_others() -> None:
    ended: list[str] = []
    await first_of(asyncio.sleep(0.01), forever(ended))
    assert ended == ["ended"]
    with pytest.raises(ValueError, match="this one"):
        await first_of(forever(ended), fails())
