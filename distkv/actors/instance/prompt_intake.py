"""Prompts on their way in: text, also that of bad words, becomes token ids in a thread, so that a long one delays no
heartbeat.

Tokenizing lets the event loop run meanwhile; what is too long for the cluster is refused by its size, or by the number
of its tokens, before there is a list of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal

from distkv.control import commands as c
from distkv.errors import InvalidParams
from distkv.text.bad_words import bad_word_ids
from distkv.text.tokenizer import TextTooLong, Tokenizer
from distkv.wire.messages.to_client import RequestEnded
from distkv.wire.messages.to_rmanager import Cancel, Submit

MAX_TOKENIZING = 1024
MAX_WAITING_BYTES = 64 * 2**20
MAX_THREADS = 2


class PromptIntake:
    """Hands tokenized requests to `handle`; remembers cancels that overtake them. What cannot be tokenized is refused
    through `answer`. most_tokens: prompt and output of the longest request that can be served now."""

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        tasks: asyncio.TaskGroup,
        handle: Callable[[c.Event, str], None],
        answer: Callable[[c.Answer, str], None],
        most_tokens: Callable[[], int],
    ) -> None:
        self._tokenizer = tokenizer
        self._group = tasks
        self._handle = handle
        self._answer = answer
        self._most_tokens = most_tokens
        self._tokenizing: dict[tuple[bytes, str], str] = {}  # and the id of what caused it
        self._waiting_bytes = 0
        self._cancelled: set[tuple[bytes, str]] = set()
        self._closed = ""
        self._threads = asyncio.Semaphore(MAX_THREADS)

    def submit(self, submit: Submit, route: bytes, cause: str) -> None:
        """Take a request; token ids need no time, text does."""
        key = (route, submit.request_id)
        if not isinstance(submit.prompt, str) and not submit.params.bad_words:
            self._handle(c.Tokenized(submit, submit.prompt, route), cause)
            return
        num_bytes = _num_bytes(submit)
        if self._closed:
            self._refuse(key, self._closed, cause, retryable=True)
        elif self._tokenizer is None:
            self._refuse(key, "the model has no tokenizer: send the prompt as token ids, without bad_words", cause)
        elif key in self._tokenizing:
            self._refuse(key, f"a request with the id {submit.request_id!r} is running already", cause)
        elif len(self._tokenizing) >= MAX_TOKENIZING:
            self._refuse(key, f"{MAX_TOKENIZING} prompts are waiting to be tokenized", cause, retryable=True)
        elif self._waiting_bytes + num_bytes > MAX_WAITING_BYTES:
            reason = f"{self._waiting_bytes} bytes of prompts are waiting to be tokenized"
            self._refuse(key, reason, cause, retryable=True)
        else:
            self._tokenizing[key] = cause
            self._waiting_bytes += num_bytes
            self._group.create_task(self._tokenize(submit, self._tokenizer, route, cause), name=f"tokenize {key[1]}")

    def close(self, reason: str) -> None:
        """Tokenize nothing any more: what is under way is handed back at once, as retryable, and so is what comes."""
        self._closed = reason
        for key, cause in self._tokenizing.items():
            self._refuse(key, reason, cause, retryable=True)
        self._tokenizing.clear()

    def cancel(self, request_id: str, route: bytes) -> bool:
        """True if the request is still being tokenized; it is cancelled as soon as it is not."""
        key = (route, request_id)
        if key in self._tokenizing:
            self._cancelled.add(key)
            return True
        return False

    async def _tokenize(self, submit: Submit, tokenizer: Tokenizer, route: bytes, cause: str) -> None:
        key = (route, submit.request_id)
        most, max_tokens = self._most_tokens(), submit.params.max_tokens
        event: c.Tokenized | None = None
        refusal: RequestEnded | None = None
        try:
            async with self._threads:
                event = await asyncio.to_thread(tokenized, submit, tokenizer, route, most=max(0, most - max_tokens))
        except InvalidParams as error:
            refusal = RequestEnded(request_id=submit.request_id, kind="refused", reason=str(error))
        except TextTooLong as error:
            refusal = RequestEnded(
                request_id=submit.request_id,
                kind="refused",
                reason=too_long(error, max_tokens, most),
                needed_tokens=error.num_tokens + max_tokens,
                pool_tokens=most,
            )
        except Exception as error:  # the library raises bare Exception
            reason = f"the tokenizer cannot encode the prompt: {error}"
            refusal = RequestEnded(request_id=submit.request_id, kind="refused", reason=reason)
        finally:
            # From here on a cancel finds the request where it is handled.
            is_handed_back = self._tokenizing.pop(key, None) is None
            self._waiting_bytes -= _num_bytes(submit)
            is_cancelled = key in self._cancelled
            self._cancelled.discard(key)
        if is_handed_back:
            return
        if refusal is not None:
            self._answer(c.Answer(route, refusal), cause)
            return
        assert event is not None
        self._handle(event, cause)
        if is_cancelled:
            self._handle(c.ClientRequested(route, Cancel(request_id=submit.request_id)), cause)

    def _refuse(self, key: tuple[bytes, str], reason: str, cause: str, *, retryable: bool = False) -> None:
        route, request_id = key
        kind: Literal["failed", "refused"] = "failed" if retryable else "refused"
        ended = RequestEnded(request_id=request_id, kind=kind, reason=reason, retryable=retryable)
        self._answer(c.Answer(route, ended), cause)


def tokenized(submit: Submit, tokenizer: Tokenizer, route: bytes, most: int) -> c.Tokenized:
    """Blocks. Raises InvalidParams for bad words, TextTooLong for a prompt of more than `most` tokens."""
    bad_words = bad_word_ids(tokenizer, submit.params.bad_words)
    ids = tuple(tokenizer.encode(submit.prompt, most=most)) if isinstance(submit.prompt, str) else submit.prompt
    return c.Tokenized(submit, ids, route, bad_words)


def _num_bytes(submit: Submit) -> int:
    """About how much text is to be tokenized."""
    return sum(map(len, submit.params.bad_words)) + (len(submit.prompt) if isinstance(submit.prompt, str) else 0)


def too_long(error: TextTooLong, max_tokens: int, most: int) -> str:
    """The sentence for a text that cannot be served."""
    at_least = "" if error.is_exact else "at least "
    return (
        f"the prompt has {at_least}{error.num_tokens} tokens, with max_tokens {error.num_tokens + max_tokens}; "
        f"a request of at most {most} tokens can be served"
    )
