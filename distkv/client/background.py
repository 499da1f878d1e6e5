"""An event loop in a thread of its own, for callers that block."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

import uvloop

T = TypeVar("T")

MAX_AHEAD = 64
"""Items of an iteration that wait for its thread; more wait where they come from."""


class BackgroundLoop:
    """Runs coroutines for threads that may have an event loop themselves. `stop` ends it; safe to call twice."""

    def __init__(self, name: str) -> None:
        self._loop = uvloop.new_event_loop()
        self._stopping = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and return its result; an interrupt of the caller cancels it."""
        future = self.start(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def iterate(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        """The items of an asynchronous generator; closing this one closes that one, without waiting for it."""
        ready: queue.SimpleQueue[tuple[T] | BaseException | None] = queue.SimpleQueue()
        places = asyncio.Semaphore(MAX_AHEAD)

        async def pump() -> None:
            try:
                async for item in items:
                    await places.acquire()
                    ready.put((item,))
                ready.put(None)
            except BaseException as error:
                ready.put(error)
                raise
            finally:
                await items.aclose()

        future = self.start(pump())
        try:
            while (got := ready.get()) is not None:
                if isinstance(got, asyncio.CancelledError):
                    raise RuntimeError("the client was closed while the stream was open")
                if isinstance(got, BaseException):
                    raise got
                self._soon(places.release)
                yield got[0]
        finally:
            future.cancel()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin to run a coroutine; its result comes when it is done. Raises RuntimeError once stopped."""
        # What comes before `stop` is run or cancelled by it; what came later would never end.
        with self._lock:
            if self._stopping:
                work.close()
                raise RuntimeError("the client is closed")
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def stop(self) -> None:
        """Cancel what still runs, and end the thread."""
        with self._lock:
            if not self._stopping:
                self._stopping = True
                self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _soon(self, callback: Callable[[], None]) -> None:
        with self._lock:
            if not self._stopping:
                self._loop.call_soon_threadsafe(callback)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            rest = asyncio.all_tasks(self._loop)
            for task in rest:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*rest, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()
