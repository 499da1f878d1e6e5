"""Work in threads, where the system may give no more of them."""

from __future__ import annotations

import asyncio
import contextvars
import errno
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from threading import Thread
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


async def in_thread(executor: Executor | None, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """What the function returns, called in a thread of this executor or of the running loop's, with the caller's
    context variables. Raises as it does, and BlockingIOError where there is no thread for it."""
    work = partial(contextvars.copy_context().run, partial(function, *args, **kwargs))
    try:
        future = asyncio.get_running_loop().run_in_executor(executor, work)
    except RuntimeError as error:
        raise _none_left(error) from None
    try:
        return await future
    finally:
        del future  # it has the error that has this frame, and so would stay until garbage is looked for


def start(thread: Thread) -> None:
    """Start it. Raises BlockingIOError where there is none left."""
    try:
        thread.start()
    except RuntimeError as error:
        raise _none_left(error) from None


def _none_left(error: RuntimeError) -> BlockingIOError:
    return BlockingIOError(errno.EAGAIN, str(error))
