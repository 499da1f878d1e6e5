"""What the endpoints share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import structlog
from starlette.requests import Request

from distkv.config import GatewayConfig
from distkv.errors import RequestRefused
from distkv.gateway.api.event_stream import until_disconnected
from distkv.gateway.connections.bodies import Bodies
from distkv.gateway.generation.choices import Generation
from distkv.gateway.metrics.request_metrics import Metrics
from distkv.gateway.operations.clients import client_of
from distkv.gateway.operations.cluster import Cluster
from distkv.gateway.operations.concurrency_limit import ConcurrencyLimit
from distkv.gateway.operations.held_responses import HeldResponses
from distkv.gateway.prompting.readers import Readers
from distkv.gateway.prompting.served_model import ServedModel
from distkv.gateway.schema.errors import ApiError, from_cluster, internal, too_long, unavailable
from distkv.types import SamplingParams

T = TypeVar("T")


@dataclass(frozen=True)
class Service:
    """One gateway's parts."""

    config: GatewayConfig
    model: ServedModel
    cluster: Cluster
    limit: ConcurrencyLimit
    bodies: Bodies
    held: HeldResponses
    readers: Readers
    metrics: Metrics

    @property
    def max_model_len(self) -> int:
        """The longest request in tokens, prompt and output together; 0 when no instance is ready."""
        return self._limited(self.cluster.longest_request)

    def room(self, prompt_tokens: int) -> int:
        """The output that fits beside a prompt. Raises ApiError 400 when the prompt alone is too long, 503 where it was
        not a short while ago; `Cluster.refusal` while nothing is served."""
        most = self.max_model_len
        if not most:
            raise self.cluster.refusal()
        if prompt_tokens >= most:
            if prompt_tokens < self._limited(self.cluster.longest_lately):
                raise _too_few(f"the ready instances can hold {most} tokens now, the prompt alone has {prompt_tokens}")
            raise too_long(prompt_tokens, 1, most)
        return most - prompt_tokens

    def within_room(self, params: SamplingParams, prompt_tokens: int, default: int | None) -> SamplingParams:
        """As many output tokens as the model, or else `default`, says where nobody asked for a number; all that fit
        where neither does, and no more than fit. Raises as `room`."""
        room = self.room(prompt_tokens)
        wanted = self.model.defaults.get("max_tokens", default)
        return params.of_length(room if wanted is None else min(wanted, room))

    @property
    def longest_request(self) -> int | None:
        """Prompt and output of the longest request that may fit now, or soon again, in tokens; None when that is not
        known."""
        lately = self.cluster.longest_lately
        return self._limited(lately) if lately else self.config.max_model_len

    def _limited(self, num_tokens: int) -> int:
        return min(num_tokens, self.config.max_model_len or num_tokens)

    def _is_short(self, num_tokens: int) -> bool:
        """Whether a request of so many tokens is too long now, and was not a short while ago."""
        return self.max_model_len < num_tokens <= self._limited(self.cluster.longest_lately)

    @property
    def generation(self) -> Generation:
        """Runs requests on the cluster."""
        return Generation(self.cluster, self.metrics, self.config.request_timeout_s)

    async def in_place(self, request: Request, work: Callable[[], Awaitable[T]]) -> T:
        """What `work` returns, which has a place of the request's client. It is cancelled when that disconnects, which
        raises ClientDisconnected. Raises as ConcurrencyLimit.places."""

        async def with_place() -> T:
            async with self.limit.places(client_of(request.scope)):
                return await work()

        return await until_disconnected(request.receive, with_place())

    def explain(self, error: Exception) -> ApiError:
        """An error as the user sees it. An unexpected one is logged."""
        known = from_cluster(error, draining=not self.limit.is_open)
        if isinstance(error, RequestRefused) and self._is_short(error.needed_tokens):
            # By an instance that began lately, and knows of none that is gone.
            known = _too_few(str(error))
        if known is None:
            structlog.get_logger().error("request failed unexpectedly", exc_info=error)
            return internal()
        if known.status >= 500:
            structlog.get_logger().warning("request failed", reason=str(error))
        return known


def _too_few(reason: str) -> ApiError:
    return unavailable(f"{reason}; others are starting, or gone and may come back", "too_few_instances")
