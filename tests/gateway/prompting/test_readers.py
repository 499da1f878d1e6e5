"""Long bodies are read in a process of their own, and nobody sees a difference."""

from __future__ import annotations

import asyncio
import errno
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psutil
import pytest

from distkv.gateway.prompting import reader_process, readers
from distkv.gateway.prompting.reading import CompletionRead
from distkv.gateway.schema.errors import ApiError
from distkv.process_priority import STEP
from distkv.structured_output import StructuredOutput
from distkv.types import SamplingParams
from tests.gateway.harness import Gateway, error_of, until
from tests.gateway.prompting.processes import reader_processes, unread_bytes
from tests.threads import no_threads
from tests.token_ids import prompt_of

Start = Callable[..., Any]


async def answers(gateway: Gateway) -> list[Any]:
    """Answers of every kind, without what differs anyway."""
    found = [
        await gateway.complete(["hello", "you"], n=2, max_tokens=2, echo=True, logprobs=1, stop=["q"], seed=5),
        await gateway.complete([1, 2, 3], max_tokens=2, echo=True, logit_bias={"5": 1.5}),
        await gateway.chat(("user", "hi"), ("assistant", "ho"), max_tokens=2, add_generation_prompt=True),
        await gateway.post("/tokenize", prompt="hello", return_token_strs=True),
        await gateway.post("/detokenize", tokens=[50, 60]),
        await gateway.complete("x", temperature=-1),
        await gateway.complete("x", model="another"),
        await gateway.complete("x" * 5000),
        await gateway.complete(list(range(300)) * 5),
        await gateway.chat(("user", "x" * 5000)),
        await gateway.http.post("/v1/completions", content=b"{"),
    ]
    bodies = [one.json() for one in found]
    for body in bodies:
        body.pop("id", None)
        body.pop("created", None)
    return [(one.status_code, body) for one, body in zip(found, bodies, strict=True)]


async def test_long_bodies_get_the_same_answers(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = await start()
    expected = await answers(gateway)
    seen = [(prompt_of(one), one.params) for one in gateway.submits()]
    assert [status for status, _ in expected] == [200] * 5 + [400, 404] + [400] * 4
    assert [body["error"]["code"] for _, body in expected[7:10]] == ["context_length_exceeded"] * 3
    monkeypatch.setattr(readers, "SHORT_BYTES", 0)
    monkeypatch.setattr(readers, "PIECE_BYTES", 100)
    assert await answers(gateway) == expected
    assert sorted(map(repr, [(prompt_of(one), one.params) for one in gateway.submits()])) == sorted(map(repr, seen * 2))


async def test_one_process_reads_them_all_but_large_ones(all_are_long: None, start: Start) -> None:
    """Each of those has one that ends, so that what it needed is free again."""
    gateway = await start()
    for _ in range(2):
        assert (await gateway.complete(max_tokens=1)).status_code == 200
        (process,) = reader_processes()
    assert process.is_running()
    assert process.nice() == min(19, psutil.Process().nice() + 2 * STEP), "event loops go before it"
    error_of(await gateway.complete("x" * readers.RETIRE_BYTES), 400, None, "context_length_exceeded")
    assert reader_processes() == [process]
    assert (await gateway.complete(max_tokens=1)).status_code == 200


async def test_a_process_that_dies_costs_one_request(all_are_long: None, start: Start) -> None:
    gateway = await start()
    assert (await gateway.complete(max_tokens=1)).status_code == 200
    (process,) = reader_processes()
    process.suspend()
    # Until it is stopped it may still read.
    await until(lambda: process.status() == psutil.STATUS_STOPPED)
    request = asyncio.create_task(gateway.complete(max_tokens=1))
    await until(lambda: unread_bytes(process))
    process.kill()
    error_of(await request, 503, None, "body_not_read")
    assert (await gateway.complete(max_tokens=1)).status_code == 200


async def test_who_leaves_ends_the_reading(
    all_are_long: None, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "LEFT_S", 0.1)
    gateway = await start(chat_template=str(endless(tmp_path)))
    request = asyncio.create_task(gateway.chat())
    await until(reader_processes)
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)
    await until(lambda: not reader_processes())
    assert (await gateway.complete(max_tokens=1)).status_code == 200


def endless(directory: Path) -> Path:
    """A template."""
    template = directory / "endless.jinja"
    template.write_text("{% for a in range(99999) %}{% for b in range(99999) %}{{ b }}{% endfor %}{% endfor %}")
    return template


async def test_a_template_without_end_is_ended(
    all_are_long: None, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = await start(chat_template=str(endless(tmp_path)))
    assert (await gateway.complete(max_tokens=1)).status_code == 200
    monkeypatch.setattr(readers, "READ_S", 0.3)
    error_of(await gateway.chat(), 503, None, "body_not_read")
    assert not reader_processes()


async def test_who_leaves_makes_no_room_for_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a thread does goes on; what nobody waits for any more is not begun."""
    begun: list[bytes] = []
    go_on = threading.Event()

    def slow(_model: Any, raw: bytes, _most: int | None) -> None:
        begun.append(raw)
        go_on.wait(10)

    monkeypatch.setitem(reader_process.READERS, "completion", slow)
    nothing: Any = None
    made = readers.Readers(nothing, nothing)
    for index in range(8):
        request = asyncio.create_task(made.completion((b"%d" % index,), None, "a"))
        await until(lambda: len(begun) >= min(index + 1, readers.THREADS))  # noqa: B023
        for _ in range(10):
            await asyncio.sleep(0)
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
    go_on.set()
    await made.aclose()
    assert begun == [b"0", b"1"]


async def test_a_short_body_does_not_wait_for_all_the_longer_ones_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chat waited for 18 s behind texts of 240 kB that another client had sent at once."""
    nothing: Any = None
    begun: list[int] = []
    go_on = threading.Semaphore(0)

    def slow(_model: Any, raw: bytes, _most: int | None) -> CompletionRead:
        begun.append(len(raw))
        go_on.acquire(timeout=10)
        return CompletionRead(nothing, SamplingParams(), 1)

    monkeypatch.setitem(reader_process.READERS, "completion", slow)
    made = readers.Readers(nothing, nothing)
    async with asyncio.TaskGroup() as tasks:
        for size in (101, 102, 103, 104, 105, 3):
            tasks.create_task(made.completion((b"x" * size,), None, "a"))
            await asyncio.sleep(0)
        for count in range(6):
            await until(lambda: len(begun) >= min(count + readers.THREADS, 6))  # noqa: B023
            go_on.release()
    await made.aclose()
    assert begun == [101, 102, 3, 103, 104, 105]


async def test_who_floods_with_short_bodies_delays_another_client_by_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one's chat was read behind all the shorter bodies, and every second time behind the older ones."""
    nothing: Any = None
    begun: list[bytes] = []
    go_on = threading.Semaphore(0)

    def slow(_model: Any, raw: bytes, _most: int | None) -> CompletionRead:
        begun.append(raw)
        go_on.acquire(timeout=10)
        return CompletionRead(nothing, SamplingParams(), 1)

    monkeypatch.setitem(reader_process.READERS, "completion", slow)
    made = readers.Readers(nothing, nothing)
    async with asyncio.TaskGroup() as tasks:
        for _ in range(9):
            tasks.create_task(made.completion((b"a",), None, "a"))
            await asyncio.sleep(0)
        tasks.create_task(made.completion((b"b" * 99,), None, "b"))
        for count in range(10):
            await until(lambda: len(begun) >= min(count + readers.THREADS, 10))  # noqa: B023
            go_on.release()
    await made.aclose()
    assert begun.index(b"b" * 99) == readers.THREADS


async def test_what_there_is_no_thread_for_may_be_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was a fault of the gateway's, until the system had threads again."""
    nothing: Any = None
    read = CompletionRead(nothing, SamplingParams(), 1)
    monkeypatch.setitem(reader_process.READERS, "completion", lambda *_: read)
    made = readers.Readers(nothing, nothing)
    with no_threads(), pytest.raises(ApiError) as refused:
        await made.completion((b"x",), None, "a")
    assert (refused.value.status, refused.value.body.error.code) == (503, "body_not_read")
    assert await made.completion((b"x",), None, "a") == read
    await made.aclose()


async def test_what_there_is_no_process_for_may_be_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing: Any = None
    read = CompletionRead(nothing, SamplingParams(structured_output=StructuredOutput.regex("a")), 1)
    monkeypatch.setitem(reader_process.READERS, "completion", lambda *_: read)
    made = readers.Readers(nothing, nothing)
    monkeypatch.setattr(subprocess, "Popen", Mock(side_effect=BlockingIOError(errno.EAGAIN, "no process")))
    with pytest.raises(ApiError) as refused:
        await made.completion((b"x",), None, "a")
    assert (refused.value.status, refused.value.body.error.code) == (503, "body_not_read")
    monkeypatch.undo()
    await made.aclose()


async def test_a_grammar_that_there_is_no_thread_for_may_be_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the threads of the gateway and the process that checks are there: each check has a watchdog."""
    nothing: Any = None

    def read(_model: Any, raw: bytes, _most: int | None) -> CompletionRead:
        return CompletionRead(nothing, SamplingParams(structured_output=StructuredOutput.regex(raw.decode())), 1)

    monkeypatch.setitem(reader_process.READERS, "completion", read)
    made = readers.Readers(nothing, nothing)
    for _ in range(2):
        await asyncio.gather(*(made.completion((b"a",), None, "a") for _ in range(readers.THREADS)))
    with no_threads(), pytest.raises(ApiError) as refused:
        await made.completion((b"b",), None, "a")
    assert (refused.value.status, refused.value.body.error.code) == (503, "body_not_read")
    assert (await made.completion((b"b",), None, "a")).params.structured_output == StructuredOutput.regex("b")
    await made.aclose()


async def test_who_floods_with_grammars_delays_another_client_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one's schema waited for more than 400 s behind twenty that took 2 s of processor time each."""
    nothing: Any = None
    checked: list[str] = []
    go_on = threading.Semaphore(0)

    def slow(output: StructuredOutput) -> None:
        checked.append(output.text)
        go_on.acquire(timeout=10)

    def read(_model: Any, raw: bytes, _most: int | None) -> CompletionRead:
        return CompletionRead(nothing, SamplingParams(structured_output=StructuredOutput.regex(raw.decode())), 1)

    monkeypatch.setitem(reader_process.READERS, "completion", read)
    made = readers.Readers(nothing, nothing)
    monkeypatch.setattr(made._checker, "check", slow)
    async with asyncio.TaskGroup() as tasks:
        for text in ("a1", "a2", "a3", "a4"):
            tasks.create_task(made.completion((text.encode(),), None, "a"))
        await until(lambda: checked)
        flood = len(checked)
        other = tasks.create_task(made.completion((b"b is longer",), None, "b"))
        await until(lambda: made._check_place._of.get("b") is not None)
        go_on.release()
        await until(lambda: len(checked) > flood)
        for _ in range(5):
            go_on.release()
    await made.aclose()
    assert other.result() is not None
    assert checked.index("b is longer") == flood
