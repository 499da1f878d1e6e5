"""What the gateway measures about requests, with vLLM's names."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector

from distkv.types import Chunk

_TTFT_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_ITL_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_REQUEST_S = (
    *(0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_TOKENS = (1, 2, 5, 10, 20, 50, *(base * 10**power for power in range(2, 6) for base in (1, 2, 5)), 10**6, 2 * 10**6)
REASONS = ("stop", "length", "abort", "error")
"""abort: the user left. error: the cluster refused or lost the request."""


class Metrics:
    """Counters and histograms of one gateway, in a registry of their own."""

    def __init__(self, model_name: str) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            made = Histogram(f"distkv:{name}", text, ["model_name"], buckets=buckets, registry=self.registry)
            return made.labels(model_name)

        def counter(name: str, text: str) -> Counter:
            return Counter(f"distkv:{name}", text, ["model_name"], registry=self.registry).labels(model_name)

        self.time_to_first_token_s = histogram(
            "time_to_first_token_seconds", "Time from a request's start to its first token.", _TTFT_S
        )
        self.inter_token_latency_s = histogram(
            "inter_token_latency_seconds", "Time between two chunks of output.", _ITL_S
        )
        self.e2e_request_latency_s = histogram(
            "e2e_request_latency_seconds", "Time from a request's start to its end.", _REQUEST_S
        )
        self.time_per_output_token_s = histogram(
            "time_per_output_token_seconds",
            "For each token but the first ones: time since the chunk before, by the tokens that came with it.",
            _ITL_S,
        )
        self.request_time_per_output_token_s = histogram(
            "request_time_per_output_token_seconds", "Decode time of a request by its tokens but the first.", _ITL_S
        )
        self.request_queue_time_s = histogram(
            "request_queue_time_seconds", "Time a request waited in its instance before it first ran.", _REQUEST_S
        )
        self.request_prefill_time_s = histogram(
            "request_prefill_time_seconds", "Time from when a request first ran to its first token.", _REQUEST_S
        )
        self.request_decode_time_s = histogram(
            "request_decode_time_seconds", "Time from a request's first token to its last.", _REQUEST_S
        )
        self.request_inference_time_s = histogram(
            "request_inference_time_seconds", "Time from when a request first ran to its last token.", _REQUEST_S
        )
        self.request_prompt_tokens = histogram("request_prompt_tokens", "Tokens of a request's prompt.", _TOKENS)
        self.request_generation_tokens = histogram(
            "request_generation_tokens", "Tokens of a request's output.", _TOKENS
        )
        self.request_params_max_tokens = histogram(
            "request_params_max_tokens", "Most tokens that a request's output may have.", _TOKENS
        )
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens of requests that got an answer.")
        self.generation_tokens = counter("generation_tokens", "Tokens given to users.")
        success = Counter(
            "distkv:request_success",
            "Requests that ended, by why their output did.",
            ["model_name", "finished_reason"],
            registry=self.registry,
        )
        self.success = {reason: success.labels(model_name, reason) for reason in REASONS}
        self.http_requests = Counter(
            "distkv:http_requests", "HTTP requests.", ["method", "path", "status"], registry=self.registry
        )
        self.http_request_duration_s = Histogram(
            "distkv:http_request_duration_seconds",
            "Time from an HTTP request's head to the end of its answer.",
            ["method", "path"],
            buckets=_REQUEST_S,
            registry=self.registry,
        )

    @contextmanager
    def request(self, prompt_tokens: int, max_tokens: int, fate: Fate) -> Iterator[RequestRecord]:
        """Measures one request to the cluster while the block lasts. fate: shared with those that end with it."""
        self.request_params_max_tokens.observe(max_tokens)
        record = RequestRecord(self, prompt_tokens)
        try:
            yield record
        except (asyncio.CancelledError, GeneratorExit):
            record.end("error" if fate.has_failed else "abort")
            raise
        except Exception:
            fate.has_failed = True
            record.end("error")
            raise
        else:
            record.end()


@dataclass
class Fate:
    """That of requests to the cluster which end together when one fails."""

    has_failed: bool = False


class RequestRecord:
    """The times and tokens of one request."""

    def __init__(self, metrics: Metrics, prompt_tokens: int) -> None:
        self._metrics = metrics
        self._prompt_tokens = prompt_tokens
        self._generation_tokens = 0
        self._reason = ""
        self._start_s = time.perf_counter()
        self._queue_s = 0.0
        self._first_s = 0.0
        self._last_s = 0.0
        self._first_tokens = 0

    def chunk(self, chunk: Chunk) -> None:
        """Take the next chunk."""
        if chunk.queue_s is not None:
            self._queue_s = chunk.queue_s
            self._metrics.request_queue_time_s.observe(chunk.queue_s)
        if chunk.token_ids:
            self._tokens(len(chunk.token_ids), time.perf_counter())
        self._reason = chunk.finish_reason or self._reason

    def _tokens(self, count: int, now_s: float) -> None:
        metrics = self._metrics
        if self._last_s:
            metrics.inter_token_latency_s.observe(now_s - self._last_s)
            for _ in range(count):
                metrics.time_per_output_token_s.observe((now_s - self._last_s) / count)
        else:
            self._first_s, self._first_tokens = now_s, count
            metrics.time_to_first_token_s.observe(now_s - self._start_s)
            metrics.prompt_tokens.inc(self._prompt_tokens)
        self._last_s = now_s
        self._generation_tokens += count
        metrics.generation_tokens.inc(count)

    def end(self, reason: str = "") -> None:
        """The request is over; without a reason it is that of the last chunk."""
        metrics = self._metrics
        metrics.success[reason or self._reason].inc()
        metrics.request_prompt_tokens.observe(self._prompt_tokens)
        metrics.request_generation_tokens.observe(self._generation_tokens)
        metrics.e2e_request_latency_s.observe(time.perf_counter() - self._start_s)
        if self._generation_tokens:
            self._phases()

    def _phases(self) -> None:
        """What it waited for is known from its instance, the rest of the time to its first token is prefill."""
        metrics, later_tokens = self._metrics, self._generation_tokens - self._first_tokens
        prefill_s = max(0.0, self._first_s - self._start_s - self._queue_s)
        decode_s = self._last_s - self._first_s
        metrics.request_prefill_time_s.observe(prefill_s)
        metrics.request_decode_time_s.observe(decode_s)
        metrics.request_inference_time_s.observe(prefill_s + decode_s)
        if later_tokens:
            metrics.request_time_per_output_token_s.observe(decode_s / later_tokens)
