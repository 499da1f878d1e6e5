"""The same greedy request to distkv and to transformers, timed alike."""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import msgspec

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
        import torch

        self._torch: Any = torch
        self._threads = threads
        transformers: Any = importlib.import_module("transformers")
        transformers.utils.logging.disable_progress_bar()
        self._model = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()

    def ask(self, prompt: Sequence[int], max_tokens: int) -> Timing:
        """Greedy tokens, end tokens ignored."""
        torch = self._torch
        torch.set_num_threads(self._threads)
        ids: list[int] = []
        sent_s = time.perf_counter()
        with torch.inference_mode():
            output = self._model(torch.tensor([list(prompt)]), use_cache=True, logits_to_keep=1)
            ids.append(int(output.logits[0, -1].argmax()))
            first_s = time.perf_counter()
            while len(ids) < max_tokens:
                last = torch.tensor([ids[-1:]])
                cache = output.past_key_values
                output = self._model(last, past_key_values=cache, use_cache=True, logits_to_keep=1)
                ids.append(int(output.logits[0, -1].argmax()))
        return Timing(first_s - sent_s, time.perf_counter() - first_s, len(prompt), tuple(ids))
