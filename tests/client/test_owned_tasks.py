from __future__ import annotations

import asyncio
from functools import partial

import pytest
from structlog.testing import capture_logs

from distkv.client.owned_tasks import OwnedTasks, gather_limited


async def forever(ended: list[str], name: str) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0)
        ended.append(name)


async def test_closing_cancels_all_tasks_and_waits_for_their_ends() -> None:
    tasks, ended = OwnedTasks(), []
    for name in "ab":
        tasks.start(forever(ended, name), name)
    await asyncio.sleep(0)
    await tasks.aclose()
    assert sorted(ended) == ["a", "b"]
    await tasks.aclose()


async def test_who_closes_and_is_cancelled_meanwhile_stays_cancelled() -> None:
    stubborn = asyncio.Event()

    async def slow_to_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await stubborn.wait()

    tasks = OwnedTasks()
    tasks.start(slow_to_end(), "slow")
    await asyncio.sleep(0)
    closing = asyncio.create_task(tasks.aclose())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    stubborn.set()
    await tasks.aclose()


async def test_a_task_that_fails_is_logged_and_ends_no_other() -> None:
    async def fail() -> None:
        raise ValueError("no")

    ended: list[str] = []
    with capture_logs() as logs:
        async with OwnedTasks() as tasks:
            tasks.start(fail(), "failing")
            tasks.start(forever(ended, "a"), "a")
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert ended == []
    assert ended == ["a"]
    (line,) = logs
    assert (line["event"], line["task"], line["log_level"]) == ("a task failed unexpectedly", "failing", "error")


async def test_results_come_in_order_and_few_run_at_once() -> None:
    running = most = 0

    async def work(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001 * (5 - number))
        running -= 1
        return number

    assert await gather_limited([partial(work, number) for number in range(5)], 2) == list(range(5))
    assert most == 2
    assert await gather_limited([], 2) == []


async def test_the_first_failure_ends_the_others_and_is_raised_as_it_is() -> None:
    ended: list[str] = []

    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await gather_limited([partial(forever, ended, "a"), fail, partial(forever, ended, "b")], 3)
    assert sorted(ended) == ["a", "b"]


async def test_cancelling_the_caller_cancels_all() -> None:
    ended: list[str] = []
    task = asyncio.create_task(gather_limited([partial(forever, ended, name) for name in "ab"], 2))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(ended) == ["a", "b"]
