"""An event loop in a thread of its own, for callers that block."""

from __future__ import annotations

import asyncio
import os
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
    """Runs coroutines for threads that may have an event loop themselves. `stop` ends it; safe to call twice.

    A process that was forked has no such thread: nothing can be run there, and `stop` does nothing.
    """

    def __init__(self, name: str) -> None:
        self._loop = uvloop.new_event_loop()
        self._stopping = False
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=_run, args=(self._loop,), name=name, daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and return its result; an interrupt of the caller cancels it. Raises as `start` and
        `check_thread`."""
        try:
            self.check_thread()
        except RuntimeError:
            work.close()
            raise
        future = self.start(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def iterate(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        """The items of an asynchronous generator; closing this one closes that one, without waiting for it. Raises as
        `start` and `check_thread`."""
        self.check_thread()
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
            while (got := self._next(ready)) is not None:
                if isinstance(got, asyncio.CancelledError):
                    raise RuntimeError("the client was closed while the stream was open")
                if isinstance(got, BaseException):
                    raise got
                self._soon(places.release)
                yield got[0]
        finally:
            future.cancel()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin to run a coroutine; its result comes when it is done. Raises RuntimeError once stopped, and in a
        process that was forked."""
        if self._is_forked:
            work.close()
            raise self._elsewhere()
        # What comes before `stop` is run or cancelled by it; what came later would never end.
        with self._lock:
            if self._stopping:
                work.close()
                raise RuntimeError("the client is closed")
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def check_thread(self) -> None:
        """Raises RuntimeError in the loop's own thread, which cannot wait for itself."""
        if threading.current_thread() is self._thread:
            raise RuntimeError(
                "called from on_output, which the client's own thread runs; use another thread, or a client of its own"
            )

    def stop(self) -> None:
        """Cancel what still runs, and end the thread. Raises as `check_thread`."""
        if self._is_forked:
            return
        self.check_thread()
        with self._lock:
            if not self._stopping:
                self._stopping = True
                self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def stop_after(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine and then stop, without waiting for either. Raises as `start`."""

        async def last() -> None:
            try:
                await work
            finally:
                asyncio.get_running_loop().stop()

        try:
            self.start(last())
        except RuntimeError:
            work.close()
            raise
        self._stopping = True

    @property
    def _is_forked(self) -> bool:
        """To be looked at before the lock, which a thread may have held that is not here."""
        return os.getpid() != self._pid

    def _elsewhere(self) -> RuntimeError:
        return RuntimeError(f"the client belongs to process {self._pid}, which forked this one; make one here")

    def _next(self, ready: queue.SimpleQueue[T]) -> T:
        if self._is_forked:
            raise self._elsewhere()
        self.check_thread()
        return ready.get()

    def _soon(self, callback: Callable[[], None]) -> None:
        with self._lock:
            if not self._stopping:
                self._loop.call_soon_threadsafe(callback)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        rest = asyncio.all_tasks(loop)
        for task in rest:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*rest, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()
