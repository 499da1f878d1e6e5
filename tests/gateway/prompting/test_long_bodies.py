"""What long bodies of one client cost others: one of each, and no process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from distkv.config import GatewayConfig, build
from distkv.gateway.prompting import readers, reading
from distkv.gateway.prompting.reader_process import Answer, Task
from distkv.gateway.prompting.reading import CompletionRead
from distkv.types import SamplingParams
from tests.gateway.harness import WAIT_S, error_of, until
from tests.gateway.prompting.processes import reader_processes, unread_bytes

Start = Callable[..., Any]
nothing: Any = None
BODY = (b'{"prompt": "hello"}',)


class HeldReading:
    """Stands for the exchange with the process: each body is held until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[str] = []
        self.go_on = asyncio.Semaphore(0)
        held = self

        async def exchange(_self: Any, _task: Task, parts: Sequence[bytes]) -> Answer:
            held.begun.append(parts[0].decode())
            await held.go_on.acquire()
            return Answer(CompletionRead(nothing, SamplingParams(), 1))

        monkeypatch.setattr(readers.LongBodies, "_exchange", exchange)
        self.readers = readers.Readers(nothing, nothing)

    async def come(self, tasks: asyncio.TaskGroup, client: str, *bodies: str) -> None:
        for body in bodies:
            tasks.create_task(self.readers.completion((body.encode(),), None, client))
            for _ in range(4):
                await asyncio.sleep(0)


async def test_who_sends_many_delays_another_client_by_one(all_are_long: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of 70 kB waited for 35 s behind two of 4.5 MB."""
    held = HeldReading(monkeypatch)
    async with asyncio.TaskGroup() as tasks:
        await held.come(tasks, "a", "a1", "a2", "a3")
        await held.come(tasks, "b", "b, which is longer")
        for _ in range(4):
            held.go_on.release()
    await held.readers.aclose()
    assert held.begun == ["a1", "b, which is longer", "a2", "a3"]


async def test_the_longest_have_a_place_of_their_own(all_are_long: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "RETIRE_BYTES", 5)
    held = HeldReading(monkeypatch)
    async with asyncio.TaskGroup() as tasks:
        await held.come(tasks, "a", "over it", "over it too")
        await held.come(tasks, "a", "under", "least")
        assert held.begun == ["over it", "under"]
        for _ in range(4):
            held.go_on.release()
    await held.readers.aclose()


async def test_who_leaves_ends_no_process_that_answers(
    all_are_long: None, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another takes a second to start, for which everybody's long bodies waited."""
    monkeypatch.setattr(readers, "LEFT_S", WAIT_S)
    config = build(GatewayConfig, {"model": str(checkpoint)})
    made = readers.Readers(config, nothing)
    expected = await made.completion(BODY, None, "a")
    (process,) = reader_processes()
    process.suspend()
    await until(lambda: process.status() == psutil.STATUS_STOPPED)
    request = asyncio.create_task(made.completion(BODY, None, "a"))
    await until(lambda: unread_bytes(process))
    request.cancel()
    for _ in range(10):
        await asyncio.sleep(0)
    process.resume()
    with pytest.raises(asyncio.CancelledError):
        await request
    assert reader_processes() == [process]
    assert await made.completion(BODY, None, "b") == expected
    await made.aclose()


async def test_who_leaves_twice_ends_it(all_are_long: None, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway that closes waits for nothing that is read, and nobody gets the answer to another body."""
    monkeypatch.setattr(readers, "LEFT_S", WAIT_S)
    config = build(GatewayConfig, {"model": str(checkpoint)})
    made = readers.Readers(config, nothing)
    expected = await made.completion(BODY, None, "a")
    (process,) = reader_processes()
    process.suspend()
    await until(lambda: process.status() == psutil.STATUS_STOPPED)
    request = asyncio.create_task(made.completion((b'{"prompt": "bye"}',), None, "a"))
    await until(lambda: unread_bytes(process))
    for _ in range(2):
        request.cancel()
        for _ in range(10):
            await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await request
    assert process not in reader_processes()
    assert await made.completion(BODY, None, "a") == expected
    await made.aclose()


async def test_what_is_too_long_to_be_tokenized(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = await start()
    monkeypatch.setattr(readers, "MAX_TOKENIZED_BYTES", 60)
    assert (await gateway.post("/tokenize", prompt="x" * 20)).status_code == 200
    error_of(await gateway.post("/tokenize", prompt="x" * 60), 413, None, "body_too_large")
    assert (await gateway.post("/detokenize", tokens=[50] * 5)).status_code == 200
    error_of(await gateway.post("/detokenize", tokens=[50] * 60), 413, None, "body_too_large")
    monkeypatch.setattr(reading, "MAX_TEXT", 4)
    error_of(await gateway.post("/detokenize", tokens=[50] * 5), 400, "tokens", "response_too_large")
