"""The asynchronous client: what users import, and what the blocking client and the command line use."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from functools import partial
from typing import Any, Self

from distkv.client.instances.directory import ANSWER_S, Directory
from distkv.client.instances.dispatch import Dispatch
from distkv.client.instances.events import ConnectionLost
from distkv.client.owned_tasks import gather_limited
from distkv.client.prompts import (
    check_count,
    check_n,
    check_params,
    check_prompt,
    check_request_id,
    check_timeout,
    each_prompt,
)
from distkv.client.views.cluster_status import StatusCollector, as_dict
from distkv.client.views.explaining import Explanation, explain
from distkv.config import DEFAULT_GMANAGER, parse_address
from distkv.errors import InvalidParams, RequestFailed
from distkv.types import Chunk, RequestOutput, SamplingParams, TokenLogprobs
from distkv.wire.envelope_factory import EnvelopeFactory
from distkv.wire.messages.common import Member
from distkv.wire.messages.to_client import ClusterState, Status
from distkv.wire.messages.to_rmanager import Submit

# Of the outputs of one call, or of one HTTP request; more would only wait in the instances' queues, where waiting has a
# limit.
MAX_AT_ONCE = 128


class AsyncClient:
    """Sends requests to a cluster; use it as `async with AsyncClient("tcp://127.0.0.1:7070") as client`.

    address: that of a gManager or of any instance. Entering does not wait for it; the first call does. Leaving
    cancels the requests that still run. All methods raise ClusterUnreachable when nothing answers there, and
    RuntimeError in another event loop than that in which the client was entered.
    """

    def __init__(self, address: str = DEFAULT_GMANAGER) -> None:
        self.address = parse_address(address)
        self._envelopes = EnvelopeFactory(f"client-{os.getpid()}-{secrets.token_hex(3)}")
        self._directory: Directory | None = None
        self._statuses = StatusCollector()
        self._live: set[str] = set()

    async def __aenter__(self) -> Self:
        if self._directory is None:
            self._directory = Directory(self.address, self._envelopes)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Cancel what still runs and disconnect; safe to call twice."""
        directory, self._directory = self._directory, None
        if directory is not None:
            await directory.aclose()

    @property
    def address_answers(self) -> bool:
        """Whether `address` answered the last query; while it does not, members are those that were known."""
        return self._open().bootstrap_answers

    @property
    def is_settling(self) -> bool:
        """Whether the first instance joined seconds ago, so that others may not have joined yet; False once closed."""
        return self._directory is not None and self._directory.is_settling

    async def stream(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        timeout_s: float | None = None,
    ) -> AsyncGenerator[Chunk, None]:
        """Yield the output as it comes; the last chunk has a finish_reason. Leaving the loop cancels the request.

        timeout_s: how long the request may take, waiting and all instances included. Raises RequestRefused when the
        cluster can never serve it, RequestFailed when it was lost (retryable or not), InvalidParams and TypeError
        before anything is sent.
        """
        with self._dispatched(prompt, params, request_id, timeout_s) as (name, request):
            while (chunk := await request.next_chunk()) is not None:
                yield Chunk(
                    request_id=name,
                    token_ids=list(chunk.token_ids),
                    text=chunk.text,
                    finish_reason=chunk.finish_reason,
                    prompt_tokens=chunk.prompt_tokens,
                    logprobs=None if chunk.logprobs is None else list(chunk.logprobs),
                    prompt_logprobs=None if chunk.prompt_logprobs is None else list(chunk.prompt_logprobs),
                    queue_s=chunk.queue_s,
                    stop_reason=chunk.stop_reason,
                )

    async def submit(
        self,
        prompt: str | list[int],
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        timeout_s: float | None = None,
    ) -> RequestOutput:
        """The whole output. Cancelling the task that awaits it cancels the request. Raises as `stream`."""
        started_s = time.monotonic()
        params = check_params(params)
        ids: list[int] = []
        logprobs: list[TokenLogprobs] = []
        prompt_logprobs: list[TokenLogprobs | None] = []
        text: list[str] = []
        finish_reason, stop_reason, first_s, prompt_tokens = None, None, 0.0, 0
        with self._dispatched(prompt, params, request_id, timeout_s) as (name, request):
            while (chunk := await request.next_chunk()) is not None:
                if chunk.token_ids and not ids:
                    first_s = time.monotonic() - started_s
                ids.extend(chunk.token_ids)
                logprobs.extend(chunk.logprobs or ())
                prompt_logprobs.extend(chunk.prompt_logprobs or ())
                text.append(chunk.text)
                prompt_tokens = chunk.prompt_tokens or prompt_tokens
                finish_reason, stop_reason = chunk.finish_reason, chunk.stop_reason
        assert finish_reason is not None
        return RequestOutput(
            request_id=name,
            token_ids=ids,
            text="".join(text),
            finish_reason=finish_reason,
            prompt_tokens=prompt_tokens,
            time_to_first_token_s=first_s,
            latency_s=time.monotonic() - started_s,
            logprobs=None if params.logprobs is None else logprobs,
            prompt_logprobs=None if params.prompt_logprobs is None else prompt_logprobs,
            stop_reason=stop_reason,
        )

    async def generate(
        self,
        prompts: str | Sequence[int] | Sequence[str | Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        n: int = 1,
        at_once: int = MAX_AT_ONCE,
        on_output: Callable[[RequestOutput], None] | None = None,
        retries: int = 0,
    ) -> list[RequestOutput]:
        """The outputs of one or several prompts, in their order; params are for all or one each.

        n: outputs of each prompt, one after the other; with a seed, output i of a prompt has seed + i. at_once: how
        many are under way at the same time. on_output: is called with each as it is complete. retries: how often
        one is begun anew that was lost and may be tried again. The first request that fails cancels the others, and its
        error is raised.
        """
        check_n(n)
        check_count("at_once", at_once, 1)
        check_count("retries", retries, 0)
        all_prompts = each_prompt(prompts)
        each = list(params) if isinstance(params, list | tuple) else [params] * len(all_prompts)
        if len(each) != len(all_prompts):
            raise InvalidParams("params", f"one for all or one for each of {len(all_prompts)} prompts", len(each))
        for prompt, one in zip(all_prompts, each, strict=True):
            check_prompt(prompt)
            check_params(one)

        async def submit(prompt: Any, one: SamplingParams) -> RequestOutput:
            for left in reversed(range(retries + 1)):
                try:
                    output = await self.submit(prompt, one)
                    break
                except RequestFailed as failed:
                    if not failed.retryable or not left:
                        raise
                    await asyncio.sleep(failed.retry_after_s)
            if on_output is not None:
                on_output(output)
            return output

        works = [
            partial(submit, prompt, check_params(one).of_choice(index))
            for prompt, one in zip(all_prompts, each, strict=True)
            for index in range(n)
        ]
        return await gather_limited(works, at_once)

    async def members(self) -> tuple[Member, ...]:
        """The members of the cluster, as it last listed them if nobody answers now."""
        return await self._here().members()

    async def statuses(self) -> tuple[Status, ...]:
        """The status of every member, queried at the same time; those silent for 1 s are "unreachable" or "dead",
        those that were drained have "left"."""
        directory = self._here()
        return await self._statuses.collect(directory, await directory.members())

    async def cluster(self) -> ClusterState | None:
        """What the gManager knows of the whole cluster: who owes whom; None where `address` is an instance's, or does
        not answer."""
        directory = self._here()
        await directory.members()
        if not directory.bootstrap_answers:
            return None
        try:
            state = await directory.connection(directory.address).cluster(ANSWER_S)
        except ConnectionLost:
            return None
        return state if state.policy else None

    async def status(self) -> dict[str, Any]:
        """The dict of `distkv status --json`: `{"instances": [...], "requests": [...], "cluster": {...}}`."""
        statuses = await self.statuses()
        return as_dict(statuses, await self.cluster())

    async def explain(self, request_id: str) -> Explanation:
        """Why the rBlocks of a request lie where they lie; its `sentences` say it in words. Raises RequestUnknown."""
        name, directory = check_request_id(request_id), self._here()
        return await explain(directory, await directory.members(), name)

    def _open(self) -> Directory:
        if self._directory is None:
            raise RuntimeError("the client is not open; use it as 'async with AsyncClient(address) as client'")
        return self._directory

    def _here(self) -> Directory:
        """Its sockets and tasks are those of one event loop, and of its thread."""
        directory = self._open()
        if directory.loop is not asyncio.get_running_loop():
            raise RuntimeError("the client was opened in another event loop; open one in each")
        return directory

    @contextlib.contextmanager
    def _dispatched(
        self, prompt: object, params: object, request_id: str | None, timeout_s: float | None
    ) -> Iterator[tuple[str, Dispatch]]:
        """A request and its id; leaving the block cancels it."""
        directory, checked = self._here(), check_prompt(prompt)
        submit = Submit(
            request_id=check_request_id(request_id),
            prompt=checked if isinstance(checked, str) else "",
            prompt_token_ids=None if isinstance(checked, str) else checked.packed,
            params=check_params(params),
            timeout_s=check_timeout(timeout_s),
        )
        name = submit.request_id
        if name in self._live:
            raise InvalidParams("request_id", "an id that no running request has", name)
        self._live.add(name)
        try:
            with Dispatch(directory, submit) as request:
                yield name, request
        finally:
            self._live.discard(name)
