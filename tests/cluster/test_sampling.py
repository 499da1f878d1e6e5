"""Penalties, bias and logprobs through a real cluster, also where a prompt is longer than one pool."""

from __future__ import annotations

from pathlib import Path

import pytest

from distkv import RequestRefused, SamplingParams
from distkv.types import TokenLogprobs
from tests.checkpoints import TEXT, check_logprobs, prompt_ids, reference_logits, reference_penalized
from tests.cluster.driving import driving

PENALIZED = {
    "repetition_penalty": 1.2,
    "presence_penalty": 1.0,
    "frequency_penalty": 0.5,
    "logit_bias": {7: 18.0, 8: 17.0, 9: -100.0},
}


def check_all(
    checkpoint: Path,
    prompt: list[int],
    tokens: list[int],
    prompt_logprobs: list[TokenLogprobs | None],
    logprobs: list[TokenLogprobs],
) -> None:
    """Prompt and output against the raw logits of transformers, the two most likely tokens included."""
    ids = [*prompt, *tokens]
    logits = reference_logits(checkpoint, ids)
    told = [*prompt_logprobs, *logprobs]
    assert told[0] is None and len(prompt_logprobs) == len(prompt) and len(logprobs) == len(tokens)
    for position in range(1, len(ids)):
        check_logprobs(told[position], logits[position - 1], ids[position], 2)


@pytest.mark.parametrize("length", [40, 1100])
async def test_penalties_and_logprobs_are_those_of_transformers(three, checkpoint, length):
    """The short prompt fits into one pool; the long one needs three. Steps run ahead of their tokens all the time."""
    prompt = prompt_ids(length, seed=3)
    params = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True, logprobs=2, prompt_logprobs=2, **PENALIZED)
    async with driving(three) as driver:
        run = await driver.start(prompt, **{name: getattr(params, name) for name in params.__struct_fields__})
        tokens = await run.finished()
        assert tokens == reference_penalized(checkpoint, prompt, 24, params)
        of_prompt = [one for chunk in run.chunks for one in chunk.prompt_logprobs or ()]
        of_output = [one for chunk in run.chunks for one in chunk.logprobs or ()]
        check_all(checkpoint, prompt, tokens, of_prompt, of_output)
        first = next(index for index, chunk in enumerate(run.chunks) if chunk.token_ids)
        assert all(chunk.prompt_logprobs and chunk.logprobs is None for chunk in run.chunks[:first])
        assert all(
            chunk.prompt_logprobs is None and len(chunk.logprobs) == len(chunk.token_ids)
            for chunk in run.chunks[first:]
        )
        assert [chunk.queue_s is not None for chunk in run.chunks].index(True) == first
        assert sum(chunk.queue_s is not None for chunk in run.chunks) == 1
        assert {chunk.prompt_tokens for chunk in run.chunks} == {length}
        await driver.settled()


def test_outputs_have_what_was_asked_for(three, checkpoint):
    prompt = prompt_ids(20, seed=5)
    both = SamplingParams(max_tokens=5, seed=1, min_p=0.2, ignore_eos=True, logprobs=2, prompt_logprobs=2)
    none = SamplingParams(max_tokens=5, seed=1, min_p=0.2, ignore_eos=True)
    told, silent = three.generate([prompt, prompt], [both, none])
    assert told.token_ids == silent.token_ids
    assert silent.logprobs is silent.prompt_logprobs is None
    check_all(checkpoint, prompt, told.token_ids, told.prompt_logprobs, told.logprobs)


def test_every_token_has_its_logprobs_also_where_a_stop_string_ends_the_text(three):
    params = SamplingParams(max_tokens=48, temperature=0.0, logprobs=0)
    (whole,) = three.generate([TEXT[:200]], params)
    stop = next(whole.text[i : i + 2] for i in range(10, len(whole.text)) if whole.text[i : i + 2].isascii())
    (out,) = three.generate([TEXT[:200]], SamplingParams(max_tokens=48, temperature=0.0, logprobs=0, stop=stop))
    assert out.finish_reason == "stop"
    assert [one.token_id for one in out.logprobs] == out.token_ids
    assert out.logprobs == whole.logprobs[: len(out.logprobs)]


def test_a_bias_beyond_the_vocabulary_is_refused(three):
    with pytest.raises(RequestRefused, match=r"logit_bias: token ids must be in \[0, 320\), it has 320"):
        three.generate([[1, 2]], SamplingParams(max_tokens=2, logit_bias={320: 1.0}))
