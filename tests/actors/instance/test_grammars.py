"""Grammars of an instance: compiled once for all that have the same, and forgotten with the last of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from distkv.actors.instance import grammars as module
from distkv.actors.instance.grammars import Grammars, TooManyGrammars
from distkv.errors import InvalidParams
from distkv.structured_output import StructuredOutput
from distkv.wire.messages.envelope import ToWorker
from distkv.wire.messages.from_worker import Compiled
from distkv.wire.messages.to_worker import Compile, Forget
from tests.waiting import until

A, B = StructuredOutput.regex("a+"), StructuredOutput.regex("b+")


class Checker:
    """Passes everything but what has parentheses."""

    def __init__(self) -> None:
        self.checked: list[StructuredOutput] = []

    def check(self, output: StructuredOutput) -> None:
        self.checked.append(output)
        if "(" in output.text:
            raise InvalidParams("structured_output", "a better one", output.text)

    def close(self) -> None:
        pass


class Worker:
    """Answers when it is told."""

    def __init__(self) -> None:
        self.sent: list[ToWorker] = []
        self.grammars = Grammars(lambda body, cause: self.sent.append(body))
        self.grammars._checker = self.checker = Checker()  # type: ignore[assignment]

    def answer(self, grammar_id: int, problem: str = "") -> None:
        self.grammars.compiled(Compiled(grammar_id=grammar_id, problem=problem))


@pytest.fixture
async def worker() -> AsyncIterator[Worker]:
    made = Worker()
    yield made
    made.grammars.close()


async def test_the_same_output_is_compiled_once_and_forgotten_with_the_last(worker: Worker) -> None:
    holding = [asyncio.create_task(worker.grammars.hold(output, b"client", "why")) for output in (A, A, B)]
    await until(lambda: len(worker.sent) == 2)
    assert worker.sent == [Compile(grammar_id=1, output=A), Compile(grammar_id=2, output=B)]
    for grammar_id in (2, 1):
        worker.answer(grammar_id)
    assert [await one for one in holding] == [1, 1, 2]
    worker.grammars.release(1)
    assert len(worker.sent) == 2
    worker.grammars.release(1)
    assert worker.sent[2:] == [Forget(grammar_ids=(1,))]
    again = asyncio.create_task(worker.grammars.hold(A, b"client", "why"))
    await until(lambda: len(worker.sent) == 4)
    worker.answer(3)
    assert await again == 3


async def test_one_that_is_refused_is_held_by_nobody(worker: Worker) -> None:
    with pytest.raises(InvalidParams, match="a better one"):
        await worker.grammars.hold(StructuredOutput.regex("(a)"), b"client", "why")
    assert worker.sent == []
    holding = [asyncio.create_task(worker.grammars.hold(A, b"client", "why")) for _ in range(2)]
    await until(lambda: worker.sent and worker.grammars._held[1].users == 2)
    worker.answer(1, "no tokenizer.json")
    worker.answer(1)
    for one in holding:
        with pytest.raises(InvalidParams, match=r"that this model's tokens can follow \(no tokenizer.json\)"):
            await one
    assert worker.sent[1:] == [Forget(grammar_ids=(1,))]


async def test_what_a_worker_holds_is_bounded(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_HELD_BYTES", 3)
    holding = asyncio.create_task(worker.grammars.hold(A, b"client", "why"))
    await until(lambda: worker.sent)
    with pytest.raises(TooManyGrammars, match="3 bytes of grammars are in use"):
        await worker.grammars.hold(B, b"client", "why")
    worker.answer(1)
    worker.grammars.release(await holding)
    other = asyncio.create_task(worker.grammars.hold(B, b"client", "why"))
    await until(lambda: len(worker.sent) == 3)
    worker.answer(2)
    assert await other == 2
