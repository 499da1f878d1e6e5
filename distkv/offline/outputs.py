"""What `LLM` returns: vLLM's RequestOutput and CompletionOutput, with their names of fields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from distkv.text.tokenizer import Tokenizer
from distkv.types import FinishReason, RequestOutput, TokenLogprobs


@dataclass(frozen=True)
class Logprob:
    """How likely the model found a token. rank: from 1, the most likely. decoded_token: None without a tokenizer."""

    logprob: float
    rank: int
    decoded_token: str | None = None


Candidates = dict[int, Logprob]
"""By token id: the chosen token first, then the most likely ones."""


@dataclass(frozen=True)
class CompletionOutput:
    """One output of a prompt.

    stop_reason: the stop string, or the one of `stop_token_ids`, that ended it; None for the model's own end and for a
    length. logprobs: of each token, if asked for; cumulative_logprob: their sum.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None
    logprobs: list[Candidates] | None
    finish_reason: FinishReason
    stop_reason: int | str | None

    def finished(self) -> bool:
        """Always: outputs come when they are complete."""
        return True


@dataclass(frozen=True)
class PromptOutput:
    """All outputs of one prompt. prompt: its text, None where token ids were given. request_id: counts the prompts of
    an LLM. prompt_logprobs: of each token of the prompt, None for the first, if asked for."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[Candidates | None] | None
    outputs: list[CompletionOutput]
    finished: bool = True


def prompt_output(
    request_id: str,
    prompt: str | None,
    prompt_token_ids: Sequence[int],
    found: Sequence[RequestOutput],
    tokenizer: Tokenizer | None,
) -> PromptOutput:
    """Of what the cluster gave for one prompt."""
    of_prompt = found[0].prompt_logprobs
    return PromptOutput(
        request_id=request_id,
        prompt=prompt,
        prompt_token_ids=list(prompt_token_ids),
        prompt_logprobs=None
        if of_prompt is None
        else [None if one is None else _candidates(one, tokenizer) for one in of_prompt],
        outputs=[_completion(index, one, tokenizer) for index, one in enumerate(found)],
    )


def _completion(index: int, output: RequestOutput, tokenizer: Tokenizer | None) -> CompletionOutput:
    logprobs = output.logprobs
    return CompletionOutput(
        index=index,
        text=output.text,
        token_ids=output.token_ids,
        cumulative_logprob=None if logprobs is None else sum(one.logprob for one in logprobs),
        logprobs=None if logprobs is None else [_candidates(one, tokenizer) for one in logprobs],
        finish_reason=output.finish_reason,
        stop_reason=output.stop_reason,
    )


def _candidates(found: TokenLogprobs, tokenizer: Tokenizer | None) -> Candidates:
    ranked = {found.token_id: (found.logprob, found.rank)}
    for rank, (token_id, logprob) in enumerate(found.top, 1):
        ranked.setdefault(token_id, (logprob, rank))
    return {
        token_id: Logprob(logprob, rank, None if tokenizer is None else _text(tokenizer, token_id))
        for token_id, (logprob, rank) in ranked.items()
    }


def _text(tokenizer: Tokenizer, token_id: int) -> str:
    return tokenizer.token_bytes(token_id).decode(errors="replace")
