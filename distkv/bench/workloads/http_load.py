"""A cheap source of streamed completions over HTTP, as a program of its own: what it costs must not count.

    python -m distkv.bench.workloads.http_load HOST:PORT --concurrency N --requests N ...

It keeps N requests open on as many connections, and writes a `LoadResult` in JSON when all are answered or time is up.
A stream is only searched for its end; a refusal (429, 503) is tried again after a second, as its Retry-After says.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from typing import cast

import click
import msgspec
import uvloop

RETRY_S = 1.0
DONE = b"data: [DONE]"
END = b"0\r\n\r\n"
REFUSED = ("429", "503")


class LoadResult(msgspec.Struct, frozen=True):
    """What came of it. seconds: until the last answer, or the deadline. refused: tries answered 429 or 503.
    failed: by reason. first_s: of every finished request, its time to the first event, retries included. cpu_s: of
    this program."""

    seconds: float
    finished: int
    unfinished: int
    refused: int
    failed: dict[str, int]
    first_s: list[float]
    cpu_s: float


class Load:
    """All requests of one run."""

    def __init__(self, host: str, port: int, requests: int, body: bytes) -> None:
        self.host, self.port = host, port
        self.request = b"\r\n".join(
            (
                b"POST /v1/completions HTTP/1.1",
                f"Host: {host}:{port}".encode(),
                b"Content-Type: application/json",
                f"Content-Length: {len(body)}".encode(),
                b"",
                body,
            )
        )
        self.left = self.total = requests
        self.finished = self.refused = 0
        self.failed: Counter[str] = Counter()
        self.first_s: list[float] = []
        self.open: set[Stream] = set()
        self.done = asyncio.Event()

    def take(self) -> bool:
        """Whether there is another request to send."""
        self.left -= 1
        return self.left >= 0

    def answered(self) -> None:
        """A request finished or failed."""
        if self.finished + sum(self.failed.values()) == self.total:
            self.done.set()

    async def connect(self) -> None:
        """One more connection, if there is a request for it."""
        if not self.take():
            return
        await self.again(time.perf_counter())

    async def again(self, sent_s: float) -> None:
        """Send a request that was first sent at `sent_s` on a connection of its own."""
        try:
            await asyncio.get_running_loop().create_connection(lambda: Stream(self, sent_s), self.host, self.port)
        except OSError as error:
            self.failed[f"connecting: {error.strerror}"] += 1
            self.answered()


class Stream(asyncio.Protocol):
    """One connection with a request on it at any time."""

    def __init__(self, load: Load, sent_s: float) -> None:
        self._load, self._sent_s = load, sent_s
        self._transport: asyncio.Transport
        self._status = ""
        self._tail = b""
        self._is_done = self._is_over = False
        self._first_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first request."""
        self._transport = cast("asyncio.Transport", transport)
        self._load.open.add(self)
        self._transport.write(self._load.request)

    def data_received(self, data: bytes) -> None:
        """Look for the status of an answer, its first event and its end."""
        if not self._status:
            self._status = data[9:12].decode("latin-1")
        if self._status != "200":
            self._give_up()
            return
        seen = self._tail + data
        if not self._first_s and b"data: {" in seen:
            self._first_s = time.perf_counter() - self._sent_s
        self._is_done = self._is_done or DONE in seen
        self._tail = seen[-16:]
        if self._is_done and seen.endswith(END):
            self._next()

    def connection_lost(self, error: Exception | None) -> None:
        """Before the end of the answer: it failed."""
        self._load.open.discard(self)
        if not self._is_over:
            self._is_over = True
            self._load.failed["the connection was lost"] += 1
            self._load.answered()

    def abort(self) -> None:
        """Time is up."""
        self._is_over = True
        self._transport.abort()

    def _next(self) -> None:
        load = self._load
        load.finished += 1
        load.first_s.append(self._first_s)
        load.answered()
        if not load.take():
            self._is_over = True
            self._transport.close()
            return
        self._status, self._tail, self._is_done, self._first_s = "", b"", False, 0.0
        self._sent_s = time.perf_counter()
        self._transport.write(load.request)

    def _give_up(self) -> None:
        if self._is_over:
            return
        load, self._is_over = self._load, True
        self._transport.close()
        if self._status in REFUSED:
            load.refused += 1
            loop = asyncio.get_running_loop()
            loop.call_later(RETRY_S, lambda: loop.create_task(load.again(self._sent_s)))
            return
        load.failed[f"status {self._status}"] += 1
        load.answered()


async def run(host: str, port: int, concurrency: int, requests: int, body: bytes, deadline_s: float) -> LoadResult:
    """Answer all requests, or as many as can be until the deadline."""
    load = Load(host, port, requests, body)
    begun_s = time.perf_counter()
    connecting = [asyncio.ensure_future(load.connect()) for _ in range(concurrency)]
    try:
        async with asyncio.timeout(deadline_s):
            await load.done.wait()
    except TimeoutError:
        pass
    seconds = time.perf_counter() - begun_s
    for task in connecting:
        task.cancel()
    for stream in list(load.open):
        stream.abort()
    failed = sum(load.failed.values())
    return LoadResult(
        seconds,
        load.finished,
        load.total - load.finished - failed,
        load.refused,
        dict(load.failed),
        load.first_s,
        time.process_time(),
    )


@click.command()
@click.argument("address")
@click.option("--concurrency", type=click.IntRange(min=1), required=True)
@click.option("--requests", type=click.IntRange(min=1), required=True)
@click.option("--prompt-tokens", type=click.IntRange(min=1), default=16)
@click.option("--max-tokens", type=click.IntRange(min=1), default=16)
@click.option("--deadline-s", type=float, default=60.0)
def main(address: str, concurrency: int, requests: int, prompt_tokens: int, max_tokens: int, deadline_s: float) -> None:
    """Greedy completions of one prompt, end tokens ignored."""
    host, _, port = address.rpartition(":")
    body = {
        "prompt": list(range(1, prompt_tokens + 1)),
        "max_tokens": max_tokens,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
    }
    result = uvloop.run(run(host, int(port), concurrency, requests, msgspec.json.encode(body), deadline_s))
    sys.stdout.buffer.write(msgspec.json.encode(result))


if __name__ == "__main__":
    main()
