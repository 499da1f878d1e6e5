"""The way of one request: find an instance, submit, read its chunks, go elsewhere if that instance is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from distkv.client.connection import Connection, ConnectionLost, Event
from distkv.client.directory import ANSWER_S, Directory, Target
from distkv.client.prompts import estimate_tokens
from distkv.errors import RequestFailed, RequestRefused
from distkv.wire.messages.to_client import RequestEnded, TokenChunk
from distkv.wire.messages.to_gmanager import Locate
from distkv.wire.messages.to_rmanager import Submit

MAX_ATTEMPTS = 4
# An instance that says no so soon did not try: it drains, or is too full even to queue.
AT_ONCE_S = 1.0


class _Elsewhere(Exception):
    """The instance is gone or does not want the request; no output of it was seen."""

    def __init__(self, failure: RequestFailed) -> None:
        super().__init__(failure.reason)
        self.failure = failure


async def run_request(directory: Directory, submit: Submit) -> AsyncGenerator[TokenChunk, None]:
    """Yield the chunks of a request until its finish reason. Closing the generator cancels the request.

    A request that fails before its first output because its instance died, cannot be reached or drains is sent to
    another one, at most MAX_ATTEMPTS times in all. Raises RequestRefused, RequestFailed, ClusterUnreachable.
    """
    excluded: tuple[str, ...] = ()
    failure: RequestFailed | None = None
    for attempt in range(MAX_ATTEMPTS):
        # The first instance may still know the id, so another one gets its own.
        wire_id = submit.request_id if attempt == 0 else f"{submit.request_id}~{attempt}"
        query = Locate(request_id=wire_id, num_tokens=estimate_tokens(submit.prompt, submit.params), exclude=excluded)
        try:
            target = await directory.locate(query)
        except RequestFailed as nowhere:
            raise failure or nowhere from None
        renamed = Submit(request_id=wire_id, prompt=submit.prompt, params=submit.params, timeout_s=submit.timeout_s)
        chunks = _run_at(directory, target, renamed)
        try:
            async for chunk in chunks:
                yield chunk
            return
        except _Elsewhere as gone:
            failure = gone.failure
            excluded += (target.instance_id,)
        finally:
            await chunks.aclose()
    assert failure is not None
    raise failure


async def _run_at(directory: Directory, target: Target, submit: Submit) -> AsyncGenerator[TokenChunk, None]:
    try:
        connection = directory.connection(target.address)
    except ConnectionLost as closed:
        raise RequestFailed(False, closed.why) from None
    started_s = asyncio.get_running_loop().time()
    ended = heard = False
    events = connection.attach(submit.request_id)
    try:
        await _submit(connection, submit, events)
        while not ended:
            match await events.get():
                case TokenChunk() as chunk:
                    heard = True
                    ended = chunk.finish_reason is not None
                    yield chunk
                case RequestEnded(kind="refused") as refused:
                    ended = True
                    raise RequestRefused(refused.needed_tokens, refused.pool_tokens, refused.reason)
                case RequestEnded() as failed:
                    ended = True
                    failure = RequestFailed(failed.retryable, f"{target.instance_id}: {failed.reason}")
                    waited_s = asyncio.get_running_loop().time() - started_s
                    unheard = failed.retryable and not heard
                    if unheard and (waited_s < AT_ONCE_S or not await directory.is_ready(target.instance_id)):
                        raise _Elsewhere(failure)
                    raise failure
                case ConnectionLost() as lost:
                    ended = True
                    if lost.rejected:
                        raise RequestFailed(False, f"instance {target.instance_id}: {lost.why}")
                    directory.suspect(target.instance_id)
                    failure = RequestFailed(True, f"instance {target.instance_id} at {target.address}: {lost.why}")
                    raise failure if heard else _Elsewhere(failure)
    finally:
        connection.detach(submit.request_id, cancel=not ended)


async def _submit(connection: Connection, submit: Submit, events: asyncio.Queue[Event]) -> None:
    try:
        await connection.established(ANSWER_S)
        if not connection.send(submit):
            raise ConnectionLost("its queue is full")
    except ConnectionLost as lost:
        events.put_nowait(lost)
