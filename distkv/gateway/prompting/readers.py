"""Where bodies are read: short ones in a thread, long ones in a process of their own.

A thread would hold the event loop up for as long as decoding a body, rendering a template or listing tokens takes:
about 14 ns for each byte of a body, so short ones cost it at most about 4 ms.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec
import structlog

from distkv.client.prompts import TokenIds
from distkv.config import GatewayConfig
from distkv.errors import InvalidParams
from distkv.gateway.generation.structured_outputs import refused
from distkv.gateway.prompting.reader_process import FRAME, Answer, Failure, Kind, Outcome, Refusal, Task, read
from distkv.gateway.prompting.reading import ChatRead, CompletionRead, Prompt, Written
from distkv.gateway.prompting.served_model import ServedModel
from distkv.gateway.schema.errors import ApiError, unavailable
from distkv.places import SharedPlaces
from distkv.text.grammar_checker import GrammarChecker
from distkv.threads import in_thread

SHORT_BYTES = 64 * 2**10
THREADS = 2
READ_S = 60.0
"""A body that takes longer to be read is refused, whatever its template does."""
LEFT_S = 1.0
"""So long the reading of a body whose client has left goes on: as long as another process would take to start."""
RETIRE_BYTES = 2**20
"""After a body over this the process ends, and gives back the memory that tokenizing took: 150 times the text."""
MAX_TOKENIZED_BYTES = 4 * 2**20
"""Of a body for /tokenize or /detokenize, for which nothing is too long, as it would be for an instance."""
PIECE_BYTES = 2**18
"""So much of a body, or of what is written, is handed over in one turn of the event loop."""
T = TypeVar("T", bound=Outcome)
C = TypeVar("C", CompletionRead, ChatRead)
# Made here, for that takes ten milliseconds.
_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


class Readers:
    """Reads bodies for one gateway; a few at the same time, the others wait, also for those whose client has left: next
    is the shortest, and the time after that the one that has waited longest. Of each client as many may be next as are
    read at the same time: two short ones, and a long one. Close it, or processes stay."""

    def __init__(self, config: GatewayConfig, model: ServedModel) -> None:
        self._model = model
        self._places = SharedPlaces(THREADS, smallest_first=True)
        self._threads = ThreadPoolExecutor(THREADS, "read")
        self._check_place = SharedPlaces()
        self._checks = ThreadPoolExecutor(1, "check")
        self._checker = GrammarChecker()
        self._long, self._longest = LongBodies(config), LongBodies(config)

    async def completion(self, parts: Sequence[bytes], most: int | None, client: str) -> CompletionRead:
        """See `reading.read_completion`."""
        return await self._checked(await self._read("completion", parts, most, client, CompletionRead), client)

    async def chat(self, parts: Sequence[bytes], most: int | None, client: str) -> ChatRead:
        """See `reading.read_chat`."""
        return await self._checked(await self._read("chat", parts, most, client, ChatRead), client)

    async def tokenize(self, parts: Sequence[bytes], max_model_len: int | None, client: str) -> Written:
        """See `reading.tokenize`. Raises ApiError 413 for a body over MAX_TOKENIZED_BYTES."""
        _check_size(parts)
        return await self._read("tokenize", parts, max_model_len, client, Written)

    async def detokenize(self, parts: Sequence[bytes], client: str) -> Written:
        """See `reading.detokenize`. Raises as `tokenize`."""
        _check_size(parts)
        return await self._read("detokenize", parts, None, client, Written)

    async def aclose(self) -> None:
        """End the threads, and the processes, if there are some; safe to call twice."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._checks.shutdown(wait=False, cancel_futures=True)
        self._checker.close()
        await self._long.aclose()
        await self._longest.aclose()

    async def _checked(self, read: C, client: str) -> C:
        """The same if its output can be what it must be. Who sends the same again and again waits for nobody; others
        wait for one of each other client at most, for a hostile one takes seconds, however short."""
        output = read.params.structured_output
        if output is None or self._checker.has_passed(output):
            return read
        try:
            async with self._check_place.take(client, len(output.text)):
                await in_thread(self._checks, self._checker.check, output)
        except InvalidParams as error:
            raise refused(read.constraint_param, error) from None
        except OSError as error:
            raise _not_read(f"the system has no thread or process for it: {error.strerror}") from None
        return read

    async def _read(self, kind: Kind, parts: Sequence[bytes], most: int | None, client: str, expected: type[T]) -> T:
        if (size := sum(map(len, parts))) > SHORT_BYTES:
            # What others send that takes many seconds holds up no chat of some pages.
            long = self._long if size <= RETIRE_BYTES else self._longest
            found = await long.read(Task(kind, most), parts, client)
        else:
            async with self._places.take(client, size):
                try:
                    found = await in_thread(self._threads, read, self._model, kind, b"".join(parts), most)
                except BlockingIOError as error:
                    raise _not_read(f"the system has no thread for it: {error.strerror}") from None
        assert isinstance(found, expected)
        return found


class ReadingFailed(Exception):
    """An error that a reader process did not expect: its traceback."""


class LongBodies:
    """A reader process, started when the first long body comes; it reads one after the other, of clients as
    `SharedPlaces` takes them."""

    def __init__(self, config: GatewayConfig) -> None:
        self._config = config
        self._process: asyncio.subprocess.Process | None = None
        self._place = SharedPlaces(smallest_first=True)

    async def read(self, task: Task, parts: Sequence[bytes], client: str) -> Outcome:
        """What came of a body. Raises ApiError: what reading raised, or 503 if the process failed or took too long;
        ReadingFailed."""
        async with self._place.take(client, sum(map(len, parts))):
            try:
                answer = await self._answer(task, parts)
            except (asyncio.IncompleteReadError, OSError):
                raise _not_read("the process that reads long bodies ended") from None
        if answer is None:
            raise _not_read(f"reading the body took longer than {READ_S:.0f} s")
        if isinstance(answer.outcome, Failure):
            raise ReadingFailed(answer.outcome.traceback)
        if isinstance(answer.outcome, Refusal):
            facts = answer.outcome.facts
            raise ApiError(answer.outcome.status, facts.message, param=facts.param, code=facts.code)
        if isinstance(answer.outcome, Written):
            return answer.outcome
        prompts = [Prompt(TokenIds.of_packed(one.ids), one.text) for one in answer.prompts]
        return msgspec.structs.replace(answer.outcome, prompts=prompts)

    async def aclose(self) -> None:
        """End the process, if there is one; safe to call twice."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()

    async def _answer(self, task: Task, parts: Sequence[bytes]) -> Answer | None:
        """That of the process; None if it took too long. The process ends, unless it has answered and the body was not
        too long."""
        exchange = asyncio.create_task(self._exchange(task, parts))
        try:
            await asyncio.wait([exchange], timeout=READ_S)
            return exchange.result() if exchange.done() else None
        except asyncio.CancelledError:
            await asyncio.wait([exchange], timeout=LEFT_S)
            raise
        finally:
            has_answered = exchange.done() and not exchange.cancelled() and exchange.exception() is None
            exchange.cancel()
            if not has_answered or sum(map(len, parts)) > RETIRE_BYTES:
                await self.aclose()
                await asyncio.wait([exchange])

    async def _exchange(self, task: Task, parts: Sequence[bytes]) -> Answer:
        process = self._process
        if process is None or process.returncode is not None:
            process = self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "distkv.gateway.prompting.reader_process"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
            await _write_frame(process, [msgspec.msgpack.encode(self._config)])
        await _write_frame(process, [msgspec.msgpack.encode(task)])
        await _write_frame(process, parts)
        assert process.stdout is not None
        answer = _answers.decode(b"".join(await _read_frame(process.stdout)))
        if isinstance(answer.outcome, Written):
            answer = msgspec.structs.replace(answer, outcome=Written(await _read_frame(process.stdout)))
        return answer


def _check_size(parts: Sequence[bytes]) -> None:
    if sum(map(len, parts)) > MAX_TOKENIZED_BYTES:
        problem = f"the body is over the limit of {MAX_TOKENIZED_BYTES} bytes of this endpoint"
        raise ApiError(413, problem, code="body_too_large")


def _not_read(why: str) -> ApiError:
    structlog.get_logger().warning("a body was not read", reason=why)
    return unavailable(why, "body_not_read")


async def _write_frame(process: asyncio.subprocess.Process, parts: Sequence[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.write(FRAME.pack(sum(map(len, parts))))
    for piece in _pieces(parts):
        process.stdin.write(piece)
        await process.stdin.drain()
        await asyncio.sleep(0)


async def _read_frame(stream: asyncio.StreamReader) -> list[bytes]:
    """Its parts. Raises IncompleteReadError when the stream ends before."""
    (left,) = FRAME.unpack(await stream.readexactly(FRAME.size))
    parts = []
    while left:
        parts.append(await stream.readexactly(min(left, PIECE_BYTES)))
        left -= len(parts[-1])
    return parts


def _pieces(parts: Sequence[bytes]) -> Iterator[bytes]:
    """The same, PIECE_BYTES at most in each."""
    for part in parts:
        for start in range(0, len(part), PIECE_BYTES):
            yield part[start : start + PIECE_BYTES]
