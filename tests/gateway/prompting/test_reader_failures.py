"""What readers make of bodies that break the reading, and of faults of their own: an answer, whatever happens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from distkv.gateway.prompting import reader_process, readers
from distkv.gateway.prompting.reader_process import Answer, Failure, Task
from tests.gateway.harness import error_of
from tests.gateway.prompting.processes import reader_processes

Start = Callable[..., Any]
nothing: Any = None


def nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


def broken(_model: Any, _raw: bytes, _most: int | None) -> Any:
    raise ZeroDivisionError("a fault of ours")


def without_memory(_model: Any, _raw: bytes, _most: int | None) -> Any:
    raise MemoryError


async def deep_tools(gateway: Any) -> str:
    parameters = {"type": "object", "allOf": nested(900)}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    return error_of(await gateway.chat(tools=tools, tool_choice="required"), 400)


async def test_what_is_nested_too_deep_is_refused(start: Start) -> None:
    """It was a fault of the gateway's, with a traceback of 170 kB."""
    assert await deep_tools(await start()) == "the body is nested too deep"


async def test_what_is_nested_too_deep_ends_no_process(all_are_long: None, start: Start) -> None:
    """Whoever sent it was told to send it again."""
    gateway = await start()
    assert (await gateway.complete(max_tokens=1)).status_code == 200
    before = reader_processes()
    assert await deep_tools(gateway) == "the body is nested too deep"
    assert reader_processes() == before


def test_a_fault_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(reader_process.READERS, "chat", broken)
    (frame,) = reader_process.answer(nothing, Task("chat", None), b"{}")
    outcome = msgspec.msgpack.decode(frame, type=Answer).outcome
    assert isinstance(outcome, Failure)
    assert outcome.traceback.endswith("ZeroDivisionError: a fault of ours")


def test_who_has_no_memory_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(reader_process.READERS, "chat", without_memory)
    with pytest.raises(MemoryError):
        reader_process.answer(nothing, Task("chat", None), b"{}")


async def test_a_fault_of_the_process_is_one_of_the_gateway(
    all_are_long: None,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No answer that says to try again, which would end as this did."""

    async def exchange(_self: Any, _task: Task, _parts: Sequence[bytes]) -> Answer:
        return Answer(Failure("Traceback of the process"))

    gateway = await start()
    monkeypatch.setattr(readers.LongBodies, "_exchange", exchange)
    error_of(await gateway.complete(), 500, None, "internal_error")
