"""The grammars of one instance: compiled by its worker, each once for all requests that have it at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from distkv.errors import DistKVError, InvalidParams
from distkv.places import SharedPlaces
from distkv.structured_output import FIELD, StructuredOutput
from distkv.text.grammar_checker import GrammarChecker
from distkv.threads import in_thread
from distkv.wire.messages.envelope import ToWorker
from distkv.wire.messages.from_worker import Compiled
from distkv.wire.messages.to_worker import Compile, Forget

MAX_HELD_BYTES = 2**20
"""Of text, at a time: compiled it takes the worker a hundred times as much memory."""


class TooManyGrammars(DistKVError):
    """There is no room for another grammar before some of the others are needed no more."""

    def __init__(self) -> None:
        super().__init__(f"{MAX_HELD_BYTES} bytes of grammars are in use")


@dataclass(slots=True)
class _Held:
    output: StructuredOutput
    problem: asyncio.Future[str]
    users: int = 0


class Grammars:
    """Whoever holds a grammar releases it. send(message, cause): to the worker. Close it, or a process stays."""

    def __init__(self, send: Callable[[ToWorker, str], None]) -> None:
        self._send = send
        self._checker, self._place = GrammarChecker(), SharedPlaces()
        self._held: dict[int, _Held] = {}
        self._ids: dict[StructuredOutput, int] = {}
        self._last_id = 0
        self._held_bytes = 0

    async def hold(self, output: StructuredOutput, route: bytes, cause: str) -> int:
        """The id of its grammar, which the worker has. Raises InvalidParams, TooManyGrammars, ConfigError.

        A grammar of a stranger is compiled by a process that may die of it, then by the worker, beside its steps.
        """
        if output not in self._ids:
            # One at a time: threads are for the prompts of others.
            async with self._place.take(route, len(output.text)):
                await in_thread(None, self._checker.check, output)
        grammar_id = self._ids.get(output)
        if grammar_id is None:
            if self._held_bytes + len(output.text) > MAX_HELD_BYTES:
                raise TooManyGrammars
            self._last_id = grammar_id = self._last_id + 1
            self._ids[output] = grammar_id
            self._held[grammar_id] = _Held(output, asyncio.get_running_loop().create_future())
            self._held_bytes += len(output.text)
            self._send(Compile(grammar_id=grammar_id, output=output), cause)
        held = self._held[grammar_id]
        held.users += 1
        problem = await asyncio.shield(held.problem)
        if problem:
            self.release(grammar_id)
            raise InvalidParams(FIELD, f"a {output.kind} that this model's tokens can follow ({problem})", output.text)
        return grammar_id

    def compiled(self, message: Compiled) -> None:
        """The worker has it, or says why not."""
        held = self._held.get(message.grammar_id)
        if held is not None and not held.problem.done():
            held.problem.set_result(message.problem)

    def release(self, grammar_id: int) -> None:
        """One of those who hold it needs it no more; the worker forgets it with the last."""
        held = self._held[grammar_id]
        held.users -= 1
        if not held.users:
            del self._held[grammar_id], self._ids[held.output]
            self._held_bytes -= len(held.output.text)
            self._send(Forget(grammar_ids=(grammar_id,)), "")

    def close(self) -> None:
        """End the process that checks, if there is one."""
        self._checker.close()
