"""RequestLifecycle: what a step's result becomes, and every way a request ends."""

from __future__ import annotations

import math
from array import array

import pytest

from distkv import events
from distkv.control.commands import Publish, Tokenized
from distkv.control.loan.debtor.paths import Path
from distkv.control.request.sequence import SeqState
from distkv.control.rmanager.peers.member_table import GONE
from distkv.types import SamplingParams, TokenLogprobs
from distkv.wire.messages.from_worker import SeqResult, StepResult
from distkv.wire.messages.to_client import RequestEnded, TokenChunk
from distkv.wire.messages.to_rmanager import Submit
from distkv.wire.messages.to_worker import Forget, RemoteSpan
from tests.control.parts import calls, issued, make_member
from tests.control.request.serving import CLIENT, Letters, Serving, ok
from tests.token_ids import packed, prompt_fields
from tests.wire.golden.values import SPAN


@pytest.mark.parametrize("skip", [True, False])
def test_special_tokens_are_text_where_they_are_wanted(skip: bool) -> None:
    serving = Serving(decoder=Letters)
    serving.submit(max_tokens=2, skip_special_tokens=skip)
    serving.answer(serving.step(), ok(ord("E")))
    serving.answer(serving.step(), ok(ord("e")))
    assert "".join(chunk.text for chunk in serving.answers() if isinstance(chunk, TokenChunk)) == (
        "e" if skip else "Ee"
    )


def test_what_ends_a_request_may_not_come_before_its_least_number_of_tokens() -> None:
    """Also the model's own end tokens when they are ignored; ids that are no tokens end nothing."""
    serving = Serving(eos_token_ids=frozenset({3, 2000}))
    serving.requests.submit(
        Tokenized(
            Submit(
                request_id="r",
                params=SamplingParams(
                    max_tokens=9,
                    temperature=0.0,
                    min_tokens=2,
                    stop_token_ids=(7, 1000),
                    ignore_eos=True,
                    bad_words=("x",),
                ),
                **prompt_fields((1, 2)),
            ),
            array("i", (1, 2)),
            CLIENT,
            ((5,), (6, 8)),
        ),
        serving.clock.now(),
    )
    samples = []
    for token in (40, 41, 3, 7):
        step = serving.step()
        samples.append(step.seqs[0].sample)
        assert step.seqs[0].history
        serving.answer(step, ok(token))
    assert [one.forbidden_token_ids for one in samples if one is not None] == [(3, 5, 7), (3, 5, 7), (5,), (5,)]
    assert {one.bad_words for one in samples if one is not None} == {((6, 8),)}
    chunks = [answer for answer in serving.answers() if isinstance(answer, TokenChunk)]
    assert [chunk.finish_reason for chunk in chunks] == [None, None, None, "stop"]


def test_tokens_reach_the_client_until_the_last_one_says_so() -> None:
    serving = Serving()
    serving.submit(max_tokens=2)
    first = serving.step()
    serving.clock.advance(0.5)
    second = serving.step()
    serving.answer(first, ok(42))
    (chunk,) = serving.answers()
    assert isinstance(chunk, TokenChunk) and (chunk.token_ids, chunk.finish_reason, chunk.queue_s) == ((42,), None, 0.0)
    serving.answer(second, ok(43))
    (chunk,) = [answer for answer in serving.answers() if isinstance(answer, TokenChunk)]
    assert (chunk.token_ids, chunk.finish_reason, chunk.queue_s) == ((43,), "length", None)
    assert not serving.state.sequences and serving.state.pool.num_free == 16
    assert serving.state.counters.generation_tokens == 2


def test_the_worker_forgets_a_name_once_no_step_names_it_unless_it_is_in_use_again() -> None:
    serving = Serving()
    serving.submit()
    step = serving.step()
    serving.requests.cancel("r", serving.clock.now(), CLIENT)
    assert [chunk.finish_reason for chunk in serving.answers() if isinstance(chunk, TokenChunk)] == ["abort"]
    serving.submit()
    assert serving.state.sequences["r"].attempt == 1, "no outcome of the step in flight is the new one's"
    serving.answer(step, ok(9))
    serving.requests.forget_ended()
    assert issued(serving.state, Forget) == [] and list(serving.state.sequences["r"].request.tokens) == [1, 2, 3]
    serving.requests.cancel("r", serving.clock.now())
    serving.requests.forget_ended()
    assert [forget.request_ids for forget in issued(serving.state, Forget)] == [("r",)]


def test_only_its_client_cancels_a_request() -> None:
    serving = Serving()
    serving.submit()
    serving.requests.cancel("r", serving.clock.now(), b"a stranger")
    serving.requests.cancel("unknown", serving.clock.now(), CLIENT)
    assert "r" in serving.state.sequences and serving.answers() == []


def test_a_lost_step_is_computed_again_and_its_creditors_are_named() -> None:
    serving = Serving()
    serving.submit()
    step = serving.step()
    serving.answer(step, SeqResult(request_id="r", attempt=0, status="lost", lost=("p",)))
    seq = serving.state.sequences["r"]
    assert serving.lost == [(seq, ("p",))] and seq.attempt == 1 and list(seq.uncomputed) == [(0, 3)]
    again = serving.step()
    assert (again.seqs[0].start, again.seqs[0].end, again.seqs[0].attempt) == (0, 3, 1)
    serving.answer(again, ok(5, attempt=1))
    assert list(seq.request.tokens) == [1, 2, 3, 5] and serving.state.counters.recomputed_tokens == 0


def test_keys_that_queries_attended_to_are_counted_and_those_at_creditors() -> None:
    serving = Serving()
    serving.submit()
    step = serving.step()
    span = RemoteSpan(instance_id="p", span=SPAN, index=0, first_block=0, num_blocks=2)
    serving.state.scheduler.in_flight[0].planned["r"].remote = (span,)
    serving.answer(step, ok(5))
    counters = serving.state.counters
    assert counters.attended_tokens == 1 + 2 + 3
    assert counters.remote_attended_tokens == 3 * 2 * serving.state.settings.block_tokens


@pytest.mark.parametrize("step_id", [0, 2, 99])
def test_a_result_that_no_step_waits_for_changes_nothing(step_id: int) -> None:
    serving = Serving()
    serving.requests.on_result(StepResult(step_id=step_id, results=()), 10.0)
    serving.submit()
    step = serving.step()
    serving.requests.on_result(StepResult(step_id=step_id, results=(ok(7),)), 10.0)
    unexpected = [command.event for command in serving.state.commands if isinstance(command, Publish)]
    assert unexpected.count(events.UnexpectedMessage(sender="worker", type="StepResult")) == 2
    serving.answer(step, ok(8))
    assert serving.state.sequences["r"].request.tokens[-1] == 8
    serving.requests.on_result(StepResult(step_id=step.step_id, results=(ok(9),)), 10.0)
    assert serving.state.sequences["r"].request.tokens[-1] == 8, "answered once"


@pytest.mark.parametrize(
    "results",
    [
        (),
        (ok(None),),
        (ok(7, attempt=3),),
        (ok(7, name="somebody else"),),
        (ok(7, prompt_logprobs=(TokenLogprobs(1, -1.0, 1),)),),
        (SeqResult(request_id="r", attempt=0, status="void"),),
    ],
    ids=["nothing", "no token", "another attempt", "another request", "logprobs nobody wanted", "void"],
)
def test_a_result_that_does_not_answer_its_step_is_computed_again(results: tuple[SeqResult, ...]) -> None:
    serving = Serving()
    serving.submit()
    serving.answer(serving.step(), *results)
    seq = serving.state.sequences["r"]
    assert list(seq.request.tokens) == [1, 2, 3] and list(seq.uncomputed) == [(0, 3)] and seq.pending == 0
    serving.answer(serving.step(), ok(5, attempt=seq.attempt))
    assert list(seq.request.tokens) == [1, 2, 3, 5]


def test_one_token_for_a_sequence_that_is_named_twice() -> None:
    serving = Serving()
    serving.submit()
    serving.answer(serving.step(), ok(5), ok(6))
    assert list(serving.state.sequences["r"].request.tokens) == [1, 2, 3, 5]


def test_logprobs_of_the_prompt_come_before_the_first_token() -> None:
    serving = Serving()
    serving.submit(prompt_logprobs=0)
    step = serving.step()
    wanted = step.seqs[0].prompt_logprobs
    assert wanted is not None and (wanted.first, wanted.token_ids) == (1, packed(2, 3))
    news = (TokenLogprobs(2, -0.5, 1), TokenLogprobs(3, -0.25, 1))
    serving.answer(step, ok(5, prompt_logprobs=news))
    first, second = serving.answers()
    assert isinstance(first, TokenChunk) and first.prompt_logprobs == (None, *news) and first.token_ids == ()
    assert isinstance(second, TokenChunk) and second.token_ids == (5,)


def test_a_request_waits_for_memory_until_its_deadline() -> None:
    serving = Serving(num_blocks=2)
    serving.submit("holder", (1, 2, 3, 4), max_tokens=4)
    serving.admission.admit(serving.clock.now())
    serving.submit("r", tuple(range(7)), timeout_s=2.0, max_tokens=1)
    serving.admission.admit(serving.clock.now())
    assert serving.state.sequences["r"].state is SeqState.WAITING and serving.demand.waiting_blocks() == 2
    serving.requests.tick(serving.clock.advance(1.9))
    assert serving.answers() == []
    serving.requests.tick(serving.clock.advance(0.2))
    ended = serving.refusal()
    assert (ended.request_id, ended.kind, ended.retryable) == ("r", "failed", True)
    assert ended.reason == (
        "it had not begun by its deadline, after 2.1 s: it needs KV memory for 8 tokens, 4 are free here, "
        "live instances together can give 8"
    )


def test_one_that_waited_for_a_place_of_the_batch_is_not_told_that_memory_is_lacking() -> None:
    serving = Serving(max_num_seqs=1)
    serving.submit("runs")
    serving.admission.admit(serving.clock.now())
    serving.submit("r", timeout_s=2.0)
    serving.requests.tick(serving.clock.advance(2.1))
    assert serving.refusal().reason == (
        "it had not begun by its deadline, after 2.1 s: the batch is full, max_num_seqs is 1"
    )


def test_one_whose_time_is_over_at_once_is_not_told_that_there_is_no_memory() -> None:
    serving = Serving()
    serving.submit(timeout_s=1e-9)
    serving.requests.tick(serving.clock.now() + 1e-3)
    assert serving.refusal().reason.startswith(
        "it had not begun by its deadline, after 0.001 s: it needs KV memory for 4 tokens, 64 are free here"
    )


def test_memory_that_was_lost_may_come_back_for_a_while() -> None:
    serving = Serving(num_blocks=2, request_timeout_s=5.0)
    serving.state.members["p"] = make_member("p")
    serving.submit("r", tuple(range(20)), max_tokens=4)
    seq = serving.state.sequences["r"]
    serving.requests.tick(serving.clock.now())
    assert seq.starved_since is None
    serving.state.suspects["p"] = GONE
    serving.requests.tick(serving.clock.now())
    assert seq.starved_since == serving.clock.now()
    serving.requests.tick(serving.clock.advance(4.9))
    assert serving.answers() == []
    serving.requests.tick(serving.clock.advance(0.2))
    assert "did not come back" in serving.refusal().reason and not serving.state.sequences


@pytest.mark.parametrize("path", [Path("me", "p"), Path("p", "me")])
def test_memory_that_no_data_comes_through_to_is_waited_for_as_long_as_what_was_lost(path: Path) -> None:
    """A peer that grants, while a firewall closes the way of its blocks or of ours: such requests never ended."""
    serving = Serving(num_blocks=2, request_timeout_s=5.0)
    paths = serving.state.paths
    serving.state.members["p"] = make_member("p")
    serving.submit("large", tuple(range(20)), max_tokens=4)
    serving.submit("small")
    for _ in range(5):
        paths.failed(path, "no answer", serving.clock.now())
        serving.requests.tick(serving.clock.now())
        paths.tick(serving.clock.advance(0.99))
    assert serving.answers() == []
    serving.requests.tick(serving.clock.advance(0.1))
    ended = serving.refusal()
    assert (ended.request_id, ended.kind, ended.retryable) == ("large", "failed", True)
    assert ended.reason.startswith("memory elsewhere was out of reach for 5 s: it needs KV memory for 20 tokens")
    assert ended.reason.endswith(f"; {path.reader} could not read from {path.source}: no answer")
    assert list(serving.state.sequences) == ["small"]


def test_one_that_works_meanwhile_is_not_out_of_reach() -> None:
    serving = Serving(num_blocks=2, request_timeout_s=5.0)
    paths, path = serving.state.paths, Path("p", "me")
    serving.state.members["p"] = make_member("p")
    serving.submit("r", tuple(range(20)), max_tokens=4)
    paths.failed(path, "no answer", serving.clock.now())
    paths.worked(path)
    paths.failed(path, "no answer", serving.clock.advance(4.0))
    serving.requests.tick(serving.clock.advance(4.9))
    assert serving.answers() == []
    serving.requests.tick(serving.clock.advance(0.2))
    assert not serving.state.sequences


def test_what_comes_when_a_path_is_to_be_tried_again_tries_it() -> None:
    """It ended at once, so that a path which worked again was found out only when it was forgotten, minutes later."""
    serving = Serving(num_blocks=2, request_timeout_s=5.0)
    paths, path = serving.state.paths, Path("me", "p")
    serving.state.members["p"] = make_member("p")
    for _ in range(8):
        paths.failed(path, "no answer", serving.clock.now())
        paths.tick(serving.clock.advance(paths.next_deadline() - serving.clock.now()))
    serving.submit("r", tuple(range(20)), max_tokens=4)
    serving.requests.tick(serving.clock.now())
    assert serving.answers() == [] and list(serving.state.sequences) == ["r"]
    paths.failed(path, "no answer", serving.clock.now())
    serving.requests.tick(serving.clock.now())
    assert serving.refusal().retryable and not serving.state.sequences


def test_a_tick_costs_the_same_however_many_paths_fail_where_nobody_waits_for_them() -> None:
    serving = Serving(num_blocks=2, request_timeout_s=5.0)
    serving.submit("small")
    for number in range(1000):
        serving.state.members[f"p{number}"] = make_member(f"p{number}")
        serving.state.paths.failed(Path("me", f"p{number}"), "no answer", serving.clock.now())
    now = serving.clock.advance(6.0)
    assert calls(lambda: serving.requests.tick(now)) < 100


def test_time_runs_out_on_the_way_too_and_the_client_keeps_what_came() -> None:
    serving = Serving()
    serving.submit(timeout_s=2.0, max_tokens=40)
    step = serving.step()
    serving.clock.advance(1.0)
    serving.answer(step, ok(42))
    assert [answer.token_ids for answer in serving.answers() if isinstance(answer, TokenChunk)] == [(42,)]
    assert serving.requests.next_deadline() == 12.0
    serving.requests.tick(serving.clock.advance(1.0))
    ended = serving.refusal()
    assert (ended.kind, ended.retryable) == ("failed", False)
    assert ended.reason == "its 2 s ran out: 1 of at most 40 tokens were generated"
    assert not serving.state.sequences and serving.requests.next_deadline() == math.inf


def test_text_that_was_held_back_comes_before_the_end() -> None:
    serving = Serving(decoder=Letters)
    serving.submit(timeout_s=2.0, max_tokens=40, stop=("ab",))
    serving.answer(serving.step(), ok(ord("a")))
    (chunk,) = serving.answers()
    assert isinstance(chunk, TokenChunk) and chunk.text == "", "it may become the stop string"
    serving.requests.tick(serving.clock.advance(2.0))
    last, ended = serving.answers()
    assert isinstance(last, TokenChunk) and (last.text, last.finish_reason) == ("a", None)
    assert isinstance(ended, RequestEnded)


def test_a_token_that_comes_while_its_request_waits_again_makes_it_larger() -> None:
    """A request that lost memory waits while a step is under way that computed for it."""
    serving = Serving()
    serving.submit("r", (1, 2, 3, 4), max_tokens=8)
    step = serving.step()
    seq = serving.state.sequences["r"]
    serving.state.sequences.wait(seq, 0.0)
    serving.requests.on_result(StepResult(step_id=step.step_id, results=(ok(5),)), serving.clock.now())
    assert seq.size_blocks == 2 and serving.state.sequences.take_touched()
    serving.state.validate()
