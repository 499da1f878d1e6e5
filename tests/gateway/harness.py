"""A gateway in the test's own loop, before a cluster of fakes, and what its answers look like."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from distkv.config import GatewayConfig, build
from distkv.gateway import process
from distkv.types import TokenLogprobs
from distkv.wire.messages.to_client import RequestEnded, TokenChunk
from distkv.wire.messages.to_rmanager import Submit
from tests.client.fakes import FakeCluster, FakeInstance, Serve
from tests.token_ids import ids_of, prompt_of

MODEL = "tiny"
WAIT_S = 20.0
FIRST = 40


class Gateway:
    """A running gateway. http: a client that knows its address. fakes: the cluster behind it."""

    def __init__(self, url: str, http: httpx.AsyncClient, fakes: FakeCluster, stop: asyncio.Event) -> None:
        self.url, self.http, self.fakes, self.stop = url, http, fakes, stop
        self.task: asyncio.Task[int]

    async def post(self, path: str, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
        return await self.http.post(path, content=json.dumps(body), headers=headers)

    async def complete(self, prompt: Any = "hello", **more: Any) -> httpx.Response:
        return await self.post("/v1/completions", prompt=prompt, **more)

    async def chat(self, *messages: tuple[str, Any], **more: Any) -> httpx.Response:
        said = [{"role": role, "content": content} for role, content in messages or [("user", "hello")]]
        return await self.post("/v1/chat/completions", messages=said, **more)

    async def events(self, path: str, **body: Any) -> list[Any]:
        """The events of a stream, decoded; the last one is "[DONE]"."""
        answer = await self.post(path, stream=True, **body)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"].startswith("text/event-stream")
        return events_of(answer.text)

    def submits(self) -> list[Submit]:
        """What the instances were asked so far."""
        return [submit for one in self.fakes.instances for submit in one.of(Submit)]

    async def is_ready(self) -> None:
        """Return when the health check passes."""
        await until(self.healthy)

    async def healthy(self) -> bool:
        return (await self.http.get("/health")).status_code == 200


@asynccontextmanager
async def started(
    model: Path, *serves: Serve, fakes: FakeCluster | None = None, **settings: Any
) -> AsyncIterator[Gateway]:
    """A gateway that is ready, with one fake instance per `serve`. It drains when the block ends."""
    fakes = fakes or FakeCluster(*serves)
    try:
        values = {"model": str(model), "served_model_name": MODEL, "gmanager": fakes.address, "port": 0}
        config = build(GatewayConfig, values | {"drain_wait_s": 0.0, "shutdown_timeout_s": 5.0} | settings)
        stop = asyncio.Event()
        facts: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(process.run(config, facts.set_result, stop))
        try:
            await asyncio.wait({task, facts}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
            url = facts.result()["address"]
            async with httpx.AsyncClient(base_url=url, timeout=WAIT_S, verify=False) as http:
                gateway = Gateway(url, http, fakes, stop)
                gateway.task = task
                if fakes.instances:
                    await gateway.is_ready()
                yield gateway
        finally:
            stop.set()
            assert await asyncio.wait_for(task, WAIT_S) == 0
    finally:
        fakes.die()


async def until(condition: Callable[[], Any]) -> None:
    """Return when the condition, which may be a coroutine function, holds."""
    async with asyncio.timeout(WAIT_S):
        while True:
            found = condition()
            if await found if asyncio.iscoroutine(found) else found:
                return
            await asyncio.sleep(0.01)


def events_of(text: str) -> list[Any]:
    """The data of server-sent events, as they were written."""
    assert text.endswith("\n\n")
    found = []
    for one in text.removesuffix("\n\n").split("\n\n"):
        assert one.startswith("data: "), one
        data = one.removeprefix("data: ")
        found.append(data if data == "[DONE]" else json.loads(data))
    return found


def error_of(answer: httpx.Response, status: int, param: str | None = None, code: str | None = None) -> str:
    """The message of an answer that must be this error."""
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert body.keys() == {"error"}
    error = body["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert (error["param"], error["code"]) == (param, code), error
    assert answer.headers["x-request-id"]
    assert ("retry-after" in answer.headers) == (status in (429, 503))
    return error["message"]


def chunk(submit: Submit, *token_ids: int, text: str = "", finish: Any = None, **more: Any) -> TokenChunk:
    logprobs = None
    if submit.params.logprobs is not None:
        logprobs = tuple(likely(one, submit.params.logprobs) for one in token_ids)
    return TokenChunk(
        request_id=submit.request_id,
        token_ids=token_ids,
        text=text,
        finish_reason=finish,
        prompt_tokens=len(prompt_of(submit)),
        logprobs=logprobs,
        **more,
    )


def likely(token_id: int, top: int) -> TokenLogprobs:
    """The token is the second of the most likely."""
    ranked = tuple((one, -0.5 * rank) for rank, one in enumerate([token_id + 1, token_id, *range(70, 88)], 1))
    return TokenLogprobs(token_id, -1.0, 2, ranked[:top])


def speak(instance: FakeInstance, route: bytes, submit: Submit) -> list[Any]:
    """max_tokens tokens from FIRST on, with texts "a ", "b ", ...; before them the logprobs of the prompt if wanted."""
    said: list[Any] = []
    params = submit.params
    if params.prompt_logprobs is not None:
        found = [None, *(likely(one, params.prompt_logprobs) for one in ids_of(submit)[1:])]
        said += [chunk(submit, prompt_logprobs=tuple(found[start : start + 2])) for start in range(0, len(found), 2)]
    for index in range(params.max_tokens):
        is_last = index == params.max_tokens - 1
        text = f"{chr(97 + index % 26)} "
        queue_s = None if index else 0.25
        said.append(chunk(submit, FIRST + index, text=text, finish="length" if is_last else None, queue_s=queue_s))
    return said


def first_words(instance: FakeInstance, route: bytes, submit: Submit) -> list[Any]:
    """One chunk, then silence."""
    return [chunk(submit, FIRST, text="a ")]


def silence(instance: FakeInstance, route: bytes, submit: Submit) -> list[Any]:
    return []


def says(*texts: str, finish: Any = "stop") -> Serve:
    """An output of these texts, a token each."""

    def serve(instance: FakeInstance, route: bytes, submit: Submit) -> list[Any]:
        *before, last = texts
        said = [chunk(submit, FIRST, text=text) for text in before]
        return [*said, chunk(submit, FIRST, text=last, finish=finish)]

    return serve


def ends(kind: Any, reason: str, *before: str, **more: Any) -> Serve:
    """Some text, then the end of the request without its answer."""

    def serve(instance: FakeInstance, route: bytes, submit: Submit) -> list[Any]:
        ended = RequestEnded(request_id=submit.request_id, kind=kind, reason=reason, **more)
        return [*(chunk(submit, FIRST, text=text) for text in before), ended]

    return serve
