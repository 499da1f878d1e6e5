"""The same questions to distkv: on one instance, and spread over several that could not hold the document alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from distkv.bench.harness.command import Say
from distkv.bench.recall_cells.answer_cache import AnswerCache, Answers
from distkv.bench.recall_cells.cells import digest_of, digest_of_model
from distkv.client.local.cluster import LocalCluster
from distkv.types import SamplingParams

SPREAD_OVER = 4
SPARE_TOKENS = 512  # of all pools together: the question, the answer, and what spreading leaves unused
GREEDY = SamplingParams(max_tokens=32, temperature=0.0)


def distkv_answers(
    model: Path, prompts: Sequence[str], num_tokens: int, instances: int, threads: int, cache: AnswerCache, say: Say
) -> Answers:
    """Greedy tokens in float32, the end included, for prompts of about `num_tokens` tokens, one after the other.

    The pools of the instances hold one prompt together. Nothing is started when all the answers are in the cache.
    """
    pool_tokens = (num_tokens + SPARE_TOKENS) // instances
    digest = digest_of_model(model)
    keys = {prompt: digest_of("distkv", digest, str(instances), prompt) for prompt in prompts}
    missing = [prompt for prompt in prompts if cache.find(keys[prompt]) is None]
    if missing:
        with LocalCluster(
            model, instances=instances, kv_tokens=pool_tokens, dtype="float32", threads=threads, gateway=False
        ) as cluster:
            for number, prompt in enumerate(missing, 1):
                say(f"distkv, {instances} of {pool_tokens:,} tokens: question {number} of {len(missing)}")
                cache.add(keys[prompt], [output.token_ids for output in cluster.generate([prompt], GREEDY)])
    return [(cache.find(keys[prompt]) or [])[0] for prompt in prompts]
