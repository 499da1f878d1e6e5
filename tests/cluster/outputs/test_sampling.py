"""Penalties, bias and logprobs through a real cluster, also where a prompt is longer than one pool."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from distkv import RequestRefused, SamplingParams
from distkv.types import TokenLogprobs
from distkv.wire.messages.to_worker import Sampling
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


@pytest.mark.parametrize("length", [40, 1100])
def test_what_is_left_out_is_that_of_transformers(three, checkpoint, length):
    """Steps run ahead of the tokens that bad words are looked for in."""
    prompt = prompt_ids(length, seed=3)
    allowed = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True, allowed_token_ids=tuple(range(40, 140)))
    tokens = reference_penalized(checkpoint, prompt, 24, allowed)
    ended = msgspec.structs.replace(allowed, min_tokens=12, stop_token_ids=(tokens[3], tokens[20]))
    without_end = Sampling(
        temperature=0.0, top_k=0, top_p=1.0, seed=0, allowed_token_ids=allowed.allowed_token_ids or (),
        forbidden_token_ids=ended.stop_token_ids,
    )  # fmt: skip
    first = reference_penalized(checkpoint, prompt, 12, without_end)
    whole, early = three.generate([prompt, prompt], [allowed, ended])
    assert whole.token_ids == tokens
    assert early.token_ids[:12] == first and not set(first) & set(ended.stop_token_ids)
    assert early.finish_reason == ("stop" if early.token_ids[-1] in ended.stop_token_ids else "length")


def test_bad_words_never_come(three):
    plain = SamplingParams(max_tokens=48, temperature=0.0, ignore_eos=True)
    (whole,) = three.generate([TEXT[:200]], plain)
    word = next(
        whole.text[i : i + 4]
        for i in range(len(whole.text))
        if whole.text[i : i + 4].isascii() and whole.text[i] != " "
    )
    (other,) = three.generate([TEXT[:200]], msgspec.structs.replace(plain, bad_words=(word,)))
    assert other.text != whole.text and other.token_ids != whole.token_ids
    with pytest.raises(RequestRefused, match="bad_words: expected words that become at least one token"):
        three.generate([TEXT[:200]], msgspec.structs.replace(plain, bad_words=(" ",)))


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
