"""Requests that hold a grammar: they end where it does, and give it back once, however they end."""

from __future__ import annotations

from array import array

import pytest

from distkv.control.commands import ReleaseGrammar, Tokenized
from distkv.control.request.answer.output import OutputText
from distkv.structured_output import StructuredOutput
from distkv.types import SamplingParams
from distkv.wire.messages.to_client import RequestEnded, TokenChunk
from distkv.wire.messages.to_rmanager import Submit
from tests.control.parts import lend
from tests.control.request.test_lifecycle import CLIENT, Serving, ok
from tests.control.request.test_output import EOS, Letters
from tests.token_ids import prompt_fields


def submit(serving: Serving, name: str = "r", **params: object) -> None:
    sampling = SamplingParams(
        **{"max_tokens": 4, "temperature": 0.0, "structured_output": StructuredOutput.json_object()} | params  # type: ignore[arg-type]
    )
    prompt = array("i", (1, 2))
    event = Tokenized(Submit(request_id=name, params=sampling, **prompt_fields((1, 2))), prompt, CLIENT, grammar_id=7)
    serving.requests.submit(event, serving.clock.now())


def released(serving: Serving) -> list[int]:
    return [command.grammar_id for command in serving.state.commands if isinstance(command, ReleaseGrammar)]


def test_it_ends_with_its_grammar_and_releases_it_when_no_step_names_it() -> None:
    serving = Serving()
    submit(serving, ignore_eos=True, min_tokens=3)
    first, ahead = serving.step(), serving.step()
    assert first.seqs[0].sample is not None and first.seqs[0].sample.grammar_id == 7
    serving.answer(first, ok(9, complete=True))
    assert released(serving) == [], "a step in flight names it"
    assert [one.finish_reason for one in serving.answers() if isinstance(one, TokenChunk)] == ["stop"]
    serving.answer(ahead, ok(5))
    assert released(serving) == [7] and not serving.state.sequences


def test_what_cannot_go_on_is_refused_with_the_workers_words() -> None:
    serving = Serving()
    submit(serving)
    serving.answer(serving.step(), ok(9, problem="structured_output: its grammar leaves no token"))
    (ended,) = (one for one in serving.answers() if isinstance(one, RequestEnded))
    assert ended.kind == "refused" and not ended.retryable
    assert ended.reason == "structured_output: its grammar leaves no token"
    assert serving.state.pool.num_free == 16


def test_a_fault_of_the_model_ends_the_request_alone() -> None:
    """It is no refusal, and no other instance of the same model does better."""
    serving = Serving()
    submit(serving)
    submit(serving, "other")
    step = serving.step()
    serving.answer(step, ok(9, problem="no numbers", is_fault=True), ok(9, name="other"))
    (ended,) = (one for one in serving.answers() if isinstance(one, RequestEnded))
    assert (ended.request_id, ended.kind, ended.reason, ended.retryable) == ("r", "failed", "no numbers", False)
    assert list(serving.state.sequences) == ["other"]


def test_what_other_requests_are_to_blame_for_may_come_again() -> None:
    serving = Serving()
    submit(serving)
    serving.answer(serving.step(), ok(9, problem="no thread", may_come_again=True))
    (ended,) = (one for one in serving.answers() if isinstance(one, RequestEnded))
    assert (ended.kind, ended.reason, ended.retryable) == ("failed", "no thread", True)


def test_a_fault_in_which_creditors_took_part_may_be_theirs() -> None:
    """One of them computes nonsense, and the request would do well without it."""
    serving = Serving()
    submit(serving)
    step = serving.step()
    lend(serving.state.sequences["r"], "p", 1)
    serving.answer(step, ok(9, problem="no numbers", is_fault=True))
    (ended,) = (one for one in serving.answers() if isinstance(one, RequestEnded))
    assert (ended.kind, ended.retryable) == ("failed", True)
    assert ended.reason == "no numbers; or what p computed for it is wrong"


def test_one_that_is_refused_or_cancelled_releases_it_too() -> None:
    serving = Serving()
    submit(serving, max_tokens=10_000)
    assert released(serving) == [7]
    serving.state.commands.clear()
    submit(serving)
    serving.requests.cancel("r", serving.clock.now(), CLIENT)
    assert released(serving) == [7]


@pytest.mark.parametrize(
    ("token", "params", "text"),
    [
        (1, {}, "fb"),
        (0, {}, "f"),
        (0, {"ignore_eos": True}, "f"),
        (0, {"min_tokens": 9, "max_tokens": 9}, "f"),
        (1, {"max_tokens": 2}, "fb"),
        (1, {"stop": ("b",)}, "f"),
        (1, {"stop": ("bc",)}, "fb"),
    ],
)
def test_the_last_token_of_a_grammar_ends_the_text(token: int, params: dict[str, object], text: str) -> None:
    """An end token is no text, wherever it comes; text that was held back for a stop string is."""
    output = OutputText(Letters(), SamplingParams(**params), EOS)  # type: ignore[arg-type]
    before, finish = output.push(5)
    assert finish is None
    after, finish = output.push(token, is_complete=True)
    assert finish == "stop" and before + after == text
