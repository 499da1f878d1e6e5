"""The same greedy request to distkv and to transformers, timed alike."""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import click
import msgspec

from distkv.bench.baselines.drivers import transformers
from distkv.client.local.cluster import LocalCluster
from distkv.types import SamplingParams

MOST_TRIES = 5


class Timing(msgspec.Struct, frozen=True):
    """A request: seconds until its first token and from there to its last, and its tokens."""

    first_s: float
    rest_s: float
    prompt_tokens: int
    token_ids: tuple[int, ...]
    first_tokens: int = 1

    @property
    def prefill_tokens_per_s(self) -> float:
        """Prompt tokens over time to first token."""
        return self.prompt_tokens / self.first_s

    @property
    def decode_tokens_per_s(self) -> float:
        """Tokens after the first ones over the time they took."""
        return (len(self.token_ids) - self.first_tokens) / self.rest_s


def first_token_s(cluster: LocalCluster, prompt: Sequence[int]) -> float:
    """Seconds until the first token, end to end, as of `ask_cluster`."""
    return _asked(cluster, prompt, 1).first_s


def ask_cluster(cluster: LocalCluster, prompt: Sequence[int], max_tokens: int) -> Timing:
    """End to end, as a user of the Python client sees it: control messages and streaming included.

    Asked again where all tokens came together, as to a client that got no processor meanwhile: there is no time between
    them. Raises RuntimeError if they do each time.
    """
    for _ in range(MOST_TRIES):
        timing = _asked(cluster, prompt, max_tokens)
        if timing.rest_s > 0:
            return timing
    raise RuntimeError(f"all {max_tokens} tokens came together, {MOST_TRIES} times: ask for more of them")


def _asked(cluster: LocalCluster, prompt: Sequence[int], max_tokens: int) -> Timing:
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    ids: list[int] = []
    first_s = last_s = 0.0
    first_tokens = 0
    sent_s = time.perf_counter()
    for chunk in cluster.stream(list(prompt), params):
        last_s = time.perf_counter()
        if not ids:
            first_s, first_tokens = last_s, len(chunk.token_ids)
        ids.extend(chunk.token_ids)
    return Timing(first_s - sent_s, last_s - first_s, len(prompt), tuple(ids), first_tokens)


def require_transformers() -> None:
    """Raises click.UsageError that says what to install."""
    if find_spec("transformers") is None:
        raise click.UsageError(
            "it compares with transformers, which is not installed; in distkv's checkout: pip install '.[bench]'"
        )


class Transformers:
    """A checkpoint in transformers, in this process: float32, `threads` CPU threads.

    A loop over `forward` with the default cache and attention: what `generate` does, without what it checks and
    prepares per call, which would count against short answers.
    """

    SETTINGS = "forward loop, inference_mode, DynamicCache, sdpa attention, logits of the last token only, no compile"

    def __init__(self, model: Path, threads: int) -> None:
        self._engine = transformers.Transformers(str(model), "float32", threads)

    def ask(self, prompt: Sequence[int], max_tokens: int) -> Timing:
        """Greedy tokens, end tokens ignored."""
        sent_s = time.perf_counter()
        came = [(token, time.perf_counter()) for _, token in self._engine.run([list(prompt)], max_tokens)]
        ids, times_s = zip(*came, strict=True)
        return Timing(times_s[0] - sent_s, times_s[-1] - times_s[0], len(prompt), ids)
