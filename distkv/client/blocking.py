"""The client for code that blocks: the same as AsyncClient, behind a thread with its own event loop."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

from distkv.client.async_client import MAX_AT_ONCE, AsyncClient
from distkv.client.background import BackgroundLoop
from distkv.client.views.explaining import Explanation
from distkv.config import DEFAULT_GMANAGER
from distkv.types import Chunk, RequestOutput, SamplingParams
from distkv.wire.messages.common import Member
from distkv.wire.messages.to_client import ClusterState, Status


class Client:
    """Sends requests to a cluster; `with Client("tcp://127.0.0.1:7070") as client`, or call `close` when done.
    One that nothing refers to any more, nor to a stream of it, is closed, too.

    Works in any thread, also one whose event loop runs, but not in a process that is forked, which needs a client of
    its own. Methods and errors are those of AsyncClient.
    """

    def __init__(self, address: str = DEFAULT_GMANAGER) -> None:
        self._client = AsyncClient(address)
        self.address = self._client.address
        self._loop = BackgroundLoop(f"distkv client {self.address}")
        try:
            self._loop.call(self._client.__aenter__())
        except BaseException:
            self._loop.stop()
            raise
        self._forgotten = weakref.finalize(self, _close_soon, self._client, self._loop)
        self._forgotten.atexit = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check_thread(self) -> None:
        """Raises RuntimeError in the client's own thread, which runs `on_output`: no method can be called there."""
        self._loop.check_thread()

    def close(self) -> None:
        """Cancel what still runs and disconnect; safe to call twice."""
        self.check_thread()
        self._forgotten.detach()
        with contextlib.suppress(RuntimeError):
            self._loop.call(self._client.close())
        self._loop.stop()

    @property
    def address_answers(self) -> bool:
        """Whether `address` answered the last query; while it does not, members are those that were known."""
        return self._client.address_answers

    def stream(
        self,
        prompt: str | list[int],
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        timeout_s: float | None = None,
    ) -> Iterator[Chunk]:
        """Yield the output as it comes; leaving the loop or closing the generator cancels the request."""
        yield from self._loop.iterate(self._client.stream(prompt, params, request_id=request_id, timeout_s=timeout_s))

    def submit(
        self,
        prompt: str | list[int],
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        timeout_s: float | None = None,
    ) -> RequestOutput:
        """The whole output of one prompt."""
        return self._loop.call(self._client.submit(prompt, params, request_id=request_id, timeout_s=timeout_s))

    def generate(
        self,
        prompts: str | Sequence[int] | Sequence[str | Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        n: int = 1,
        at_once: int = MAX_AT_ONCE,
        on_output: Callable[[RequestOutput], None] | None = None,
        retries: int = 0,
    ) -> list[RequestOutput]:
        """See `AsyncClient.generate`; `on_output` is called in the client's thread, where this client's own methods
        raise RuntimeError."""
        work = self._client.generate(prompts, params, n=n, at_once=at_once, on_output=on_output, retries=retries)
        return self._loop.call(work)

    def members(self) -> tuple[Member, ...]:
        """The members of the cluster, as it last listed them if nobody answers now."""
        return self._loop.call(self._client.members())

    def statuses(self) -> tuple[Status, ...]:
        """The status of every member, queried at the same time; those silent for 1 s are "unreachable" or "dead",
        those that were drained have "left"."""
        return self._loop.call(self._client.statuses())

    def cluster(self) -> ClusterState | None:
        """What the gManager knows of the whole cluster: who owes whom; None where `address` is an instance's, or does
        not answer."""
        return self._loop.call(self._client.cluster())

    def status(self) -> dict[str, Any]:
        """The dict of `distkv status --json`: `{"instances": [...], "requests": [...], "cluster": {...}}`."""
        return self._loop.call(self._client.status())

    def explain(self, request_id: str) -> Explanation:
        """Why the rBlocks of a request lie where they lie; its `sentences` say it in words. Raises RequestUnknown."""
        return self._loop.call(self._client.explain(request_id))


def _close_soon(client: AsyncClient, loop: BackgroundLoop) -> None:
    """From whatever thread collects garbage."""
    with contextlib.suppress(RuntimeError):
        loop.stop_after(client.close())
