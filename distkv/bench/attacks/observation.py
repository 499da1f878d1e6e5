"""Health checks and ordinary streams of one gateway, and what came of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, cast

import msgspec

from distkv.bench.attacks.requests import COMPLETIONS, post

ASK_S = 0.01
ANSWER_S = 10.0
"""Of a health check."""
SILENCE_S = 60.0
"""A stream that gets nothing for so long has failed."""
STREAMS = 4
TOKENS = 100
REFUSED = ("429", "503")
RETRY_S = 1.0
LIVE = b"GET /live HTTP/1.1\r\nHost: observed\r\nConnection: close\r\n\r\n"
OK = b"HTTP/1.1 200"
EVENT, DONE, ERROR = b"data: {", b"data: [DONE]", b'"error"'


class Seen(msgspec.Struct):
    """In one window. live_s: what `/live` took; unanswered: how often it was not answered with 200, by the reason.
    late_s: by how much health checks were late to be sent. first_s: of each stream, its time to the first tokens;
    between_s: between tokens that came one after the other. finished, failed: streams, these by the reason. refused:
    those that were told to come again, and did."""

    live_s: list[float] = []
    unanswered: dict[str, int] = {}
    late_s: list[float] = []
    first_s: list[float] = []
    between_s: list[float] = []
    finished: int = 0
    refused: int = 0
    failed: dict[str, int] = {}


class Observation:
    """Health checks every ASK_S, each by a connection of its own and whether or not those before were answered, and
    STREAMS completions at any time. Tasks belong to `tasks`. seen: in this window."""

    def __init__(self, host: str, port: int, tasks: asyncio.TaskGroup) -> None:
        self.seen = Seen()
        self._host, self._port, self._tasks = host, port, tasks
        self._asked: set[asyncio.Task[None]] = set()
        tasks.create_task(self._ask())
        for number in range(STREAMS):
            tasks.create_task(self._stream(number))

    async def cut(self) -> Seen:
        """Begin another window; what was seen in the one before, when its health checks are answered."""
        seen, asked = self.seen, self._asked
        self.seen, self._asked = Seen(), set()
        if asked:
            await asyncio.wait(asked)
        return seen

    async def _ask(self) -> None:
        due_s = time.perf_counter()
        while True:
            now_s = time.perf_counter()
            self.seen.late_s.append(now_s - due_s)
            check = self._tasks.create_task(self._check(self.seen))
            self._asked.add(check)
            check.add_done_callback(self._asked.discard)
            due_s = max(due_s + ASK_S, now_s)
            await asyncio.sleep(due_s - now_s)

    async def _check(self, seen: Seen) -> None:
        answer = _Answer()
        begun_s = time.perf_counter()
        if problem := await _problem(self._answered(answer)):
            _count(seen.unanswered, problem)
        else:
            seen.live_s.append(answer.came_s - begun_s)

    async def _answered(self, answer: _Answer) -> str:
        try:
            async with asyncio.timeout(ANSWER_S):
                await asyncio.get_running_loop().create_connection(lambda: answer, self._host, self._port)
                return "" if await answer.is_ok else "another status than 200"
        finally:
            answer.cut()

    async def _stream(self, number: int) -> None:
        """One after the other."""
        body = {
            "prompt": [5, 6, 7, 8 + number],
            "max_tokens": TOKENS,
            "temperature": 0.0,
            "ignore_eos": True,
            "stream": True,
        }
        raw = post(COMPLETIONS, body)
        while True:
            problem = await _problem(self._completion(raw))
            if not problem:
                self.seen.finished += 1
            elif problem in REFUSED:
                self.seen.refused += 1
            else:
                _count(self.seen.failed, problem)
            if problem:
                await asyncio.sleep(RETRY_S)

    async def _completion(self, raw: bytes) -> str:
        """What is wrong with a stream; a status if it was not begun."""
        reader, writer = await asyncio.open_connection(self._host, self._port)
        try:
            begun_s = last_s = time.perf_counter()
            writer.write(raw)
            head = await _until(reader, b"\r\n\r\n")
            if not head.startswith(OK):
                return head[9:12].decode("latin-1")
            while DONE not in (event := await _until(reader, b"\n\n")):
                if ERROR in event:
                    return event.decode(errors="replace").strip()
                if EVENT in event:
                    now_s = time.perf_counter()
                    if last_s == begun_s:
                        self.seen.first_s.append(now_s - begun_s)
                    else:
                        self.seen.between_s.append(now_s - last_s)
                    last_s = now_s
            return ""
        finally:
            writer.close()


class _Answer(asyncio.Protocol):
    """Of a health check. came_s: when its status did."""

    def __init__(self) -> None:
        self.is_ok: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.came_s = 0.0
        self._begin = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(LIVE)

    def data_received(self, data: bytes) -> None:
        """Read the status."""
        self._begin += data
        if len(self._begin) >= len(OK) and not self.is_ok.done():
            self.came_s = time.perf_counter()
            self.is_ok.set_result(self._begin.startswith(OK))

    def connection_lost(self, error: Exception | None) -> None:
        """Before the answer, if it is not there."""
        if not self.is_ok.done():
            self.is_ok.set_exception(ConnectionResetError("the connection was lost"))

    def cut(self) -> None:
        """The rest of the answer is not needed."""
        self.is_ok.cancel()
        if self._transport is not None:
            self._transport.abort()


async def _until(reader: asyncio.StreamReader, end: bytes) -> bytes:
    async with asyncio.timeout(SILENCE_S):
        return await reader.readuntil(end)


async def _problem(work: Coroutine[Any, Any, str]) -> str:
    """What is wrong with it, as it says or as its connection does; empty if nothing is."""
    try:
        return await work
    except TimeoutError:
        return "nothing came in time"
    except asyncio.IncompleteReadError:
        return "the connection ended before the answer"
    except OSError as error:
        return error.strerror or str(error)


def _count(counts: dict[str, int], what: str) -> None:
    counts[what] = counts.get(what, 0) + 1
