"""Outcome: what a client gets, and what no instance may send."""

from __future__ import annotations

import pytest

from distkv.sim.drawn.client import Outcome
from distkv.types import TokenLogprobs
from distkv.wire.messages.envelope import ToClient
from distkv.wire.messages.to_client import Located, RequestEnded, TokenChunk

LOGPROB = TokenLogprobs(7, -0.5, 1)


def chunk(*tokens: int, **fields: object) -> TokenChunk:
    return TokenChunk(request_id="r", token_ids=tokens, **fields)  # type: ignore[arg-type]


def test_chunks_add_up() -> None:
    outcome = Outcome()
    outcome.receive(chunk(prompt_logprobs=(None, LOGPROB)))
    outcome.receive(chunk(1, queue_s=0.25, logprobs=(LOGPROB,)))
    assert not outcome.done
    outcome.receive(chunk(2, 3, logprobs=(LOGPROB, LOGPROB), finish_reason="length"))
    assert outcome == Outcome([1, 2, 3], [LOGPROB] * 3, [None, LOGPROB], 0.25, "length")
    assert outcome.done


@pytest.mark.parametrize(
    ("before", "message", "complaint"),
    [
        ([chunk(1, queue_s=0.0)], chunk(prompt_logprobs=(LOGPROB,)), "the prompt comes before the output"),
        ([], chunk(1), "with the first token, once"),
        ([], chunk(queue_s=0.0), "with the first token, once"),
        ([chunk(1, queue_s=0.0)], chunk(2, queue_s=0.0), "with the first token, once"),
        ([chunk(finish_reason="abort")], chunk(1, queue_s=0.0), "after the end"),
        ([RequestEnded(request_id="r", kind="failed", reason="x")], chunk(1, queue_s=0.0), "after the end"),
        ([], Located(request_id="r"), "no request is answered by"),
    ],
)
def test_a_broken_promise_is_seen(before: list[ToClient], message: ToClient, complaint: str) -> None:
    outcome = Outcome()
    for one in before:
        outcome.receive(one)
    with pytest.raises(AssertionError, match=complaint):
        outcome.receive(message)
