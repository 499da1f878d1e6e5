"""Prompts on their way in: text becomes token ids in a thread, so that a long one delays no heartbeat."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from distkv.control import commands as c
from distkv.engine.tokenizer import Tokenizer
from distkv.wire.messages.to_rmanager import Cancel, Submit

MAX_TOKENIZING = 256


class Intake:
    """Hands tokenized requests to `handle`; remembers cancels that overtake them."""

    def __init__(self, tokenizer: Tokenizer | None, handle: Callable[[c.Event, str], None]) -> None:
        self._tokenizer = tokenizer
        self._handle = handle
        self._tasks: dict[tuple[bytes, str], asyncio.Task[None]] = {}
        self._cancelled: set[tuple[bytes, str]] = set()
        self._one_at_a_time = asyncio.Semaphore(2)

    def submit(self, submit: Submit, route: bytes, cause: str) -> None:
        """Take a request; token ids need no time, text does."""
        key = (route, submit.request_id)
        if not isinstance(submit.prompt, str) or self._tokenizer is None or key in self._tasks:
            ids = () if isinstance(submit.prompt, str) else submit.prompt
            self._handle(c.Tokenized(submit, ids, route), cause)
            return
        task = asyncio.create_task(self._tokenize(submit, submit.prompt, route, cause))
        self._tasks[key] = task
        task.add_done_callback(lambda _task: self._tasks.pop(key, None))

    def cancel(self, request_id: str, route: bytes) -> bool:
        """True if the request is still being tokenized; it is cancelled as soon as it is not."""
        key = (route, request_id)
        if key in self._tasks:
            self._cancelled.add(key)
            return True
        return False

    async def _tokenize(self, submit: Submit, text: str, route: bytes, cause: str) -> None:
        assert self._tokenizer is not None
        async with self._one_at_a_time:
            ids = await asyncio.to_thread(self._tokenizer.encode, text)
        self._handle(c.Tokenized(submit, tuple(ids), route), cause)
        key = (route, submit.request_id)
        if key in self._cancelled:
            self._cancelled.discard(key)
            self._handle(c.Received("client", Cancel(request_id=submit.request_id), route), cause)
