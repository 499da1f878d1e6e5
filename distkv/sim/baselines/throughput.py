"""Tokens each second where all requests are equally long and as many as fit decode at once (001 Fig. 9, 000 Fig. 7)."""

from __future__ import annotations

from distkv.control.performance.model import PerformanceModel
from distkv.wire.messages.profile import Profile


def largest_batch(profile: Profile, kv_tokens: int, length: int) -> int:
    """Requests of `length` tokens, at least 1, that an instance's memory holds, in whole rBlocks."""
    blocks = -(-length // profile.block_tokens)
    return kv_tokens // profile.block_tokens // blocks


def separate_tokens_per_s(profile: Profile, kv_tokens: int, length: int, instances: int = 1, stages: int = 1) -> float:
    """Of instances that share nothing, each with its largest batch: vLLM-multi, or, with the profile and memory of one
    instance over all GPUs, vLLM-single. 0 where a request of this length does not fit.

    stages: of each one's pipeline, which attends in as many at a time as there are sequences.
    """
    batch = largest_batch(profile, kv_tokens, length)
    if not batch:
        return 0.0
    waited_for = batch * length * stages // min(batch, stages)
    return instances * batch / PerformanceModel(profile).step_s(batch, waited_for)
