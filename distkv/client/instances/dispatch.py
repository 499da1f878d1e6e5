"""One request's way to an instance: find one, submit, take its chunks, go to another one if that instance is gone."""

from __future__ import annotations

import asyncio
import math
import secrets
from typing import NamedTuple, Self

import msgspec

from distkv.client.instances.connection import Connection
from distkv.client.instances.directory import ANSWER_S, Directory, Target
from distkv.client.instances.events import ConnectionLost, RequestEvents
from distkv.client.prompts import estimate_tokens
from distkv.errors import FrameTooLarge, RequestFailed, RequestRefused
from distkv.wire.messages.to_client import RequestEnded, TokenChunk
from distkv.wire.messages.to_gmanager import Locate
from distkv.wire.messages.to_rmanager import Submit

MAX_DISPATCHES = 4
MAX_MOVES = 3
# An instance that says no so soon did not try: it drains, or is too full even to queue.
AT_ONCE_S = 1.0


class _Submission(NamedTuple):
    """A request at an instance; `events` is what comes for it, under the id that it has there."""

    target: Target
    connection: Connection
    events: RequestEvents
    started_s: float


class Dispatch:
    """Gets one request served by the cluster; use it as `with Dispatch(...) as request`. Leaving cancels the request.

    A request that fails before its first output because its instance died, cannot be reached or drains is sent to
    another one, MAX_DISPATCHES times in all, while its `timeout_s` has not run out: each try gets what is left of it.
    One that waits where memory is short goes where its instance says that there is some, or again to one that did not
    hear of this client for a while, MAX_MOVES times in all; one that is too long for its instance goes to one that
    takes it, if there is any. Wherever it goes it keeps its place by what it has waited.
    """

    def __init__(self, directory: Directory, submit: Submit) -> None:
        self._directory, self._submit = directory, submit
        self._submission: _Submission | None = None
        self._excluded: tuple[str, ...] = ()
        self._failure: RequestFailed | None = None
        self._has_output = self._ended = False
        self._go_to, self._moves = "", 0
        self._needed_tokens = 0
        timeout_s = math.inf if submit.timeout_s is None else submit.timeout_s
        self._begun_s = asyncio.get_running_loop().time()
        self._deadline_s = self._begun_s + timeout_s

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._detach(cancel=True)

    async def next_chunk(self) -> TokenChunk | None:
        """The next chunk; None after the one with the finish reason.

        Raises RequestRefused, RequestFailed, ClusterUnreachable; the request is over then.
        """
        while not self._ended:
            submission = self._submission or await self._submit_somewhere()
            match await submission.events.get():
                case TokenChunk() as chunk:
                    self._has_output = True
                    if chunk.finish_reason is not None:
                        self._ended = True
                        self._detach()
                    return chunk
                case RequestEnded(kind="refused") as refused:
                    self._detach()
                    self._on_refused(submission.target, refused)
                case RequestEnded(go_to=elsewhere) if elsewhere and not self._has_output and self._moves < MAX_MOVES:
                    self._detach()
                    self._go_to, self._moves = elsewhere, self._moves + 1
                case RequestEnded() as failed:
                    self._detach()
                    await self._on_failed(submission, failed)
                case ConnectionLost() as lost:
                    self._detach()
                    self._on_lost(submission.target, lost)
        return None

    async def _submit_somewhere(self) -> _Submission:
        """Submit to an instance that was not tried. Raises the last failure when there is none, or no try is left."""
        tried = len(self._excluded)
        if self._failure is not None and (tried == MAX_DISPATCHES or self._is_late()):
            raise self._last_failure()
        # The first instance may still know the id, so another one gets its own, which nobody else can choose.
        is_first = not tried and not self._moves
        name = self._submit.request_id if is_first else f"{self._submit.request_id}~{secrets.token_hex(8)}"
        target = await self._target(name)
        try:
            connection = self._directory.connection(target.address)
        except ConnectionLost as lost:
            if self._directory.closed:
                raise RequestFailed(False, lost.why) from None
            self._on_lost(target, lost)
            return await self._submit_somewhere()
        submission = _Submission(target, connection, connection.attach(name), asyncio.get_running_loop().time())
        self._submission = submission
        try:
            await connection.established(ANSWER_S)
            async with self._directory.encoding(self._submit):
                if not connection.submit(self._submit_as(name, target), submission.events):
                    raise ConnectionLost("its queue is full")
        except ConnectionLost as lost:
            submission.events.put(lost)
        except FrameTooLarge as too_large:
            self._detach()
            raise RequestRefused(0, 0, f"the request does not fit a message: {too_large}") from None
        return submission

    async def _target(self, name: str) -> Target:
        """Where the request was told to go, else where the directory says."""
        go_to, self._go_to = self._go_to, ""
        if go_to not in self._excluded and (target := self._directory.target(go_to)) is not None:
            return target
        prompt_tokens = estimate_tokens(self._submit)
        num_tokens = max(prompt_tokens + self._submit.params.max_tokens, self._needed_tokens)
        query = Locate(request_id=name, num_tokens=num_tokens, prompt_tokens=prompt_tokens, exclude=self._excluded)
        try:
            return await self._directory.locate(query)
        except RequestFailed:
            if self._failure is None:
                raise
            raise self._last_failure() from None

    def _submit_as(self, name: str, target: Target) -> Submit:
        """What an instance gets: the request by this name, with what is left of its time, and how long it has waited
        elsewhere. It stays at an instance whose own address the user gave."""
        now_s, timeout_s = asyncio.get_running_loop().time(), self._submit.timeout_s
        if timeout_s is not None:
            timeout_s = max(0.0, self._deadline_s - now_s)
        can_move = self._moves < MAX_MOVES and target.address != self._directory.address
        waited_s = now_s - self._begun_s if self._moves or self._excluded else 0.0
        return msgspec.structs.replace(
            self._submit, request_id=name, timeout_s=timeout_s, can_move=can_move, waited_s=waited_s
        )

    def _on_refused(self, target: Target, ended: RequestEnded) -> None:
        """Exclude an instance that does not decide for the cluster: another one takes what is too long for it, or had
        taken the request in. Raises RequestRefused in any other case."""
        self._needed_tokens = ended.needed_tokens
        elsewhere = ""
        if ended.needed_tokens:
            elsewhere = self._directory.taking(ended.needed_tokens, target.instance_id, self._excluded)
        if self._has_output or not (self._moves or elsewhere):
            raise _refusal(ended)
        self._exclude(target, RequestFailed(True, f"{target.instance_id}: {_refusal(ended)}"))
        self._go_to = elsewhere

    async def _on_failed(self, submission: _Submission, failed: RequestEnded) -> None:
        """Exclude an instance that could not take the request. Raises RequestFailed when it did begin."""
        instance_id = submission.target.instance_id
        if self._has_output or not failed.retryable:
            raise _failure(instance_id, failed)
        waited_s = asyncio.get_running_loop().time() - submission.started_s
        did_try = waited_s >= AT_ONCE_S and not failed.is_draining
        if did_try and await self._directory.is_ready(instance_id):
            raise _failure(instance_id, failed)
        self._exclude(submission.target, _failure(instance_id, failed))

    def _on_lost(self, target: Target, lost: ConnectionLost) -> None:
        """Exclude an instance that is gone. Raises RequestFailed when output of it came, or it rejected the message."""
        instance_id, address = target
        if lost.rejected:
            raise RequestFailed(False, f"instance {instance_id}: {lost.why}")
        self._directory.suspect(instance_id)
        reason = f"instance {instance_id} at {address}: {lost.why}"
        if self._has_output:
            raise RequestFailed(True, reason)
        self._exclude(target, RequestFailed(True, reason))

    def _last_failure(self) -> RequestFailed:
        """To be raised, and here no more. As with all errors of this module no variable has what is raised: its frame
        would stay, with the prompt, until garbage is looked for."""
        failure, self._failure = self._failure, None
        assert failure is not None
        return failure

    def _is_late(self) -> bool:
        return asyncio.get_running_loop().time() >= self._deadline_s

    def _exclude(self, target: Target, failure: RequestFailed) -> None:
        """That there is too little memory says more than that one more instance is gone: a shorter request may fit."""
        if self._failure is None or failure.pool_tokens or not self._failure.pool_tokens:
            self._failure = failure
        self._excluded += (target.instance_id,)

    def _detach(self, *, cancel: bool = False) -> None:
        """Forget the submission; with `cancel` the instance stops working on it."""
        submission, self._submission = self._submission, None
        if submission is not None:
            submission.connection.detach(submission.events.request_id, cancel=cancel)


def _refusal(ended: RequestEnded) -> RequestRefused:
    return RequestRefused(ended.needed_tokens, ended.pool_tokens, ended.reason)


def _failure(instance_id: str, failed: RequestEnded) -> RequestFailed:
    return RequestFailed(failed.retryable, f"{instance_id}: {failed.reason}", failed.retry_after_s, failed.pool_tokens)
