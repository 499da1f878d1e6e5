"""Prompts on their way in: text becomes token ids in a thread, so that a long one delays no heartbeat."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal

from distkv.control import commands as c
from distkv.text.tokenizer import Tokenizer
from distkv.wire.messages.to_client import RequestEnded
from distkv.wire.messages.to_rmanager import Cancel, Submit

MAX_TOKENIZING = 1024
MAX_THREADS = 2


class PromptIntake:
    """Hands tokenized requests to `handle`; remembers cancels that overtake them. What cannot be tokenized is refused
    through `answer`."""

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        tasks: asyncio.TaskGroup,
        handle: Callable[[c.Event, str], None],
        answer: Callable[[c.Answer, str], None],
    ) -> None:
        self._tokenizer = tokenizer
        self._group = tasks
        self._handle = handle
        self._answer = answer
        self._tokenizing: set[tuple[bytes, str]] = set()
        self._cancelled: set[tuple[bytes, str]] = set()
        self._threads = asyncio.Semaphore(MAX_THREADS)

    def submit(self, submit: Submit, route: bytes, cause: str) -> None:
        """Take a request; token ids need no time, text does."""
        key = (route, submit.request_id)
        if not isinstance(submit.prompt, str):
            self._handle(c.Tokenized(submit, submit.prompt, route), cause)
            return
        if self._tokenizer is None:
            self._refuse(key, "the model has no tokenizer: send the prompt as token ids", cause)
        elif key in self._tokenizing:
            self._refuse(key, f"a request with the id {submit.request_id!r} is running already", cause)
        elif len(self._tokenizing) >= MAX_TOKENIZING:
            self._refuse(key, f"{MAX_TOKENIZING} prompts are waiting to be tokenized", cause, retryable=True)
        else:
            self._tokenizing.add(key)
            self._group.create_task(self._tokenize(submit, submit.prompt, route, cause), name=f"tokenize {key[1]}")

    def cancel(self, request_id: str, route: bytes) -> bool:
        """True if the request is still being tokenized; it is cancelled as soon as it is not."""
        key = (route, request_id)
        if key in self._tokenizing:
            self._cancelled.add(key)
            return True
        return False

    async def _tokenize(self, submit: Submit, text: str, route: bytes, cause: str) -> None:
        assert self._tokenizer is not None
        key = (route, submit.request_id)
        try:
            async with self._threads:
                ids = await asyncio.to_thread(self._tokenizer.encode, text)
        except Exception as error:  # the library raises bare Exception
            self._refuse(key, f"the tokenizer cannot encode the prompt: {error}", cause)
            return
        finally:
            # From here on a cancel finds the request where it is handled.
            self._tokenizing.discard(key)
            is_cancelled = key in self._cancelled
            self._cancelled.discard(key)
        self._handle(c.Tokenized(submit, tuple(ids), route), cause)
        if is_cancelled:
            self._handle(c.ClientRequested(route, Cancel(request_id=submit.request_id)), cause)

    def _refuse(self, key: tuple[bytes, str], reason: str, cause: str, *, retryable: bool = False) -> None:
        route, request_id = key
        kind: Literal["failed", "refused"] = "failed" if retryable else "refused"
        ended = RequestEnded(request_id=request_id, kind=kind, reason=reason, retryable=retryable)
        self._answer(c.Answer(route, ended), cause)
