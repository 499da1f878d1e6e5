"""Prompts on their way in: text, also that of bad words, becomes token ids in a thread, so that a long one delays no
heartbeat; what an output must be becomes a grammar that the worker has compiled.

Tokenizing lets the event loop run meanwhile; what is too long for the cluster is refused by its size, or by the number
of its tokens, before there is a list of them. Token ids, whosever, are compared with the vocabulary here, once; very
many of them in several turns of the event loop.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np
import structlog

from distkv.actors.instance.grammars import Grammars, TooManyGrammars
from distkv.control import commands as c
from distkv.errors import ConfigError, InvalidParams, context_length_exceeded
from distkv.places import Places
from distkv.text.bad_words import bad_word_ids
from distkv.text.tokenizer import TextTooLong, Tokenizer
from distkv.threads import in_thread
from distkv.token_ids import ID_BYTES, unpack
from distkv.wire.messages.to_client import RequestEnded
from distkv.wire.messages.to_rmanager import Cancel, Submit

MAX_READING = 1024
MAX_WAITING_BYTES = 64 * 2**20
MAX_THREADS = 2
MAX_CHECKED = 2**19
"""Token ids that are unpacked, and compared with the vocabulary, in one turn of the event loop: in a millisecond."""


class CannotEncode(Exception):
    """The tokenizer raised something; the message says what."""


@dataclass(slots=True)
class Reading:
    """A prompt that is being read. cause: the id of what caused it."""

    cause: str
    is_cancelled: bool = False


class PromptIntake:
    """Hands tokenized requests to `handle`; remembers cancels that overtake them. What cannot be tokenized is refused
    through `answer`. most_tokens: prompt and output of the longest request that can be served, now or soon."""

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        tasks: asyncio.TaskGroup,
        handle: Callable[[c.Event, str], None],
        answer: Callable[[c.Answer, str], None],
        most_tokens: Callable[[], int],
        vocab_size: int,
        grammars: Grammars,
    ) -> None:
        self._grammars = grammars
        self._vocab_size = vocab_size
        self._tokenizer = tokenizer
        self._group = tasks
        self._handle = handle
        self._answer = answer
        self._most_tokens = most_tokens
        self._reading: dict[tuple[bytes, str], Reading] = {}
        self._num_reading = self._waiting_bytes = 0
        self._closed = ""
        self._log = structlog.get_logger()
        self._threads = Places(MAX_THREADS)

    def submit(self, submit: Submit, route: bytes, cause: str) -> None:
        """Take a request; a few token ids need no time, text does."""
        key, packed = (route, submit.request_id), submit.prompt_token_ids
        reading = self._reading.get(key)
        if reading is not None and reading.is_cancelled:
            del self._reading[key]  # its name is used again, and it is heard of no more
        elif reading is not None:
            self._refuse(key, f"a request with the id {submit.request_id!r} is running already", cause)
            return
        if packed is not None and not _has_text(submit) and len(packed) <= MAX_CHECKED * ID_BYTES:
            ids = unpack(packed)
            if reason := self._outside(ids):
                self._refuse(key, reason, cause)
            else:
                self._handle(c.Tokenized(submit, ids, route), cause)
        elif self._closed:
            self._refuse(key, self._closed, cause, retryable=True, is_draining=True)
        elif self._tokenizer is None and _has_text(submit):
            reason = "the model has no tokenizer: send the prompt as token ids, without bad_words and structured_output"
            self._refuse(key, reason, cause)
        elif self._num_reading >= MAX_READING:
            self._refuse(key, f"{MAX_READING} prompts are waiting to be read", cause, retryable=True)
        elif self._waiting_bytes + _size(submit) > MAX_WAITING_BYTES:
            reason = f"{self._waiting_bytes} bytes of prompts are waiting to be read"
            self._refuse(key, reason, cause, retryable=True)
        else:
            self._reading[key] = reading = Reading(cause)
            self._num_reading += 1
            self._waiting_bytes += _size(submit)
            self._group.create_task(self._read(submit, route, reading), name=f"read the prompt of {key[1]}")

    def close(self, reason: str) -> None:
        """The instance drains. Tokenize nothing any more: what is under way is handed back at once, as retryable, and
        so is what comes."""
        self._closed = reason
        for key, reading in self._reading.items():
            self._refuse(key, reason, reading.cause, retryable=True, is_draining=True)
        self._reading.clear()

    def cancel(self, request_id: str, route: bytes) -> bool:
        """True if the request's prompt is still being read; it is cancelled as soon as it is not."""
        reading = self._reading.get((route, request_id))
        if reading is None:
            return False
        reading.is_cancelled = True
        return True

    async def _read(self, submit: Submit, route: bytes, reading: Reading) -> None:
        key, cause = (route, submit.request_id), reading.cause
        most, max_tokens = self._most_tokens(), submit.params.max_tokens
        event: c.Tokenized | None = None
        refusal: RequestEnded | None = None
        try:
            room = max(0, most - max_tokens)
            given = None if submit.prompt_token_ids is None else await _unpacked(submit.prompt_token_ids, room)
            event = await self._tokenize(submit, given, route, room)
            if submit.params.structured_output is not None:
                grammar_id = await self._grammars.hold(submit.params.structured_output, route, cause)
                event = msgspec.structs.replace(event, grammar_id=grammar_id)
            for start in range(0, len(event.token_ids), MAX_CHECKED):
                if reason := self._outside(event.token_ids[start : start + MAX_CHECKED]):
                    refusal = RequestEnded(request_id=submit.request_id, kind="refused", reason=reason)
                    break
                await asyncio.sleep(0)
        except (InvalidParams, ConfigError, CannotEncode) as error:
            refusal = RequestEnded(request_id=submit.request_id, kind="refused", reason=str(error))
        except TooManyGrammars as error:
            refusal = RequestEnded(request_id=submit.request_id, kind="failed", reason=str(error), retryable=True)
        except TextTooLong as error:
            refusal = RequestEnded(
                request_id=submit.request_id,
                kind="refused",
                reason=context_length_exceeded(most, error.num_tokens, max_tokens, is_exact=error.is_exact),
                needed_tokens=error.num_tokens + max_tokens,
                pool_tokens=most,
            )
        except OSError as error:
            reason = f"the system has no thread or process to read the prompt with: {error.strerror}"
            refusal = RequestEnded(request_id=submit.request_id, kind="failed", reason=reason, retryable=True)
        except Exception:
            self._log.error("a prompt was not read", request_id=submit.request_id, exc_info=True)
            reason = "the instance failed to read the prompt; its log says how"
            refusal = RequestEnded(request_id=submit.request_id, kind="failed", reason=reason)
        finally:
            # From here on a cancel finds the request where it is handled.
            is_handed_back = self._reading.get(key) is not reading
            if not is_handed_back:
                del self._reading[key]
            self._num_reading -= 1
            self._waiting_bytes -= _size(submit)
        if event is not None and event.grammar_id is not None and (is_handed_back or refusal is not None):
            self._grammars.release(event.grammar_id)
        if is_handed_back:
            return
        if refusal is not None:
            self._answer(c.Answer(route, refusal), cause)
            return
        assert event is not None
        self._handle(event, cause)
        if reading.is_cancelled:
            self._handle(c.ClientRequested(route, Cancel(request_id=submit.request_id)), cause)

    async def _tokenize(self, submit: Submit, given: array[int] | None, route: bytes, most: int) -> c.Tokenized:
        if given is not None and not _has_text(submit):
            return c.Tokenized(submit, given, route)
        assert self._tokenizer is not None
        async with self._threads.take(_size(submit)):
            try:
                return await in_thread(None, tokenized, submit, given, self._tokenizer, route, most=most)
            except (InvalidParams, TextTooLong, BlockingIOError):
                raise
            except Exception as error:  # the library raises bare Exception
                raise CannotEncode(f"the tokenizer cannot encode the prompt: {error}") from error

    def _outside(self, ids: array[int]) -> str:
        """Why these are not all tokens of the model; empty if they are."""
        found = np.asarray(ids)
        # Read without a sign, negative ones are above all others.
        if not len(found) or found.view(np.uint32).max() < self._vocab_size:
            return ""
        wrong = found[(found < 0) | (found >= self._vocab_size)][0]
        return f"prompt: token ids must be in [0, {self._vocab_size}), it has {wrong}"

    def _refuse(
        self,
        key: tuple[bytes, str],
        reason: str,
        cause: str,
        *,
        retryable: bool = False,
        is_draining: bool = False,
    ) -> None:
        route, request_id = key
        kind: Literal["failed", "refused"] = "failed" if retryable else "refused"
        ended = RequestEnded(
            request_id=request_id, kind=kind, reason=reason, retryable=retryable, is_draining=is_draining
        )
        self._answer(c.Answer(route, ended), cause)


def tokenized(submit: Submit, given: array[int] | None, tokenizer: Tokenizer, route: bytes, most: int) -> c.Tokenized:
    """Blocks. given: the prompt's ids, if it is no text. Raises InvalidParams for bad words, TextTooLong for a prompt
    of more than `most` tokens, and what the tokenizer raises."""
    bad_words = bad_word_ids(tokenizer, submit.params.bad_words)
    ids = given if given is not None else array("i", tokenizer.encode(submit.prompt, most=most))
    return c.Tokenized(submit, ids, route, bad_words)


async def _unpacked(packed: memoryview, most: int) -> array[int]:
    """The ids of a prompt, in several turns of the event loop. Raises TextTooLong for more than `most`."""
    if len(packed) // ID_BYTES > most:
        raise TextTooLong(len(packed) // ID_BYTES, is_exact=True)
    ids = array("i")
    for start in range(0, len(packed), MAX_CHECKED * ID_BYTES):
        ids.extend(unpack(packed[start : start + MAX_CHECKED * ID_BYTES]))
        await asyncio.sleep(0)
    return ids


def _has_text(submit: Submit) -> bool:
    """Whether anything of it is to be tokenized."""
    params = submit.params
    return submit.prompt_token_ids is None or bool(params.bad_words) or params.structured_output is not None


def _size(submit: Submit) -> int:
    """About how many bytes are to be read."""
    ids, grammar = submit.prompt_token_ids, submit.params.structured_output
    size = sum(map(len, submit.params.bad_words)) + (len(grammar.text) if grammar else 0)
    return size + len(submit.prompt if ids is None else ids)
