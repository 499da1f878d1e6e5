"""Requests: what a worker remembers of them from step to step."""

from __future__ import annotations

import pytest

from distkv.engine.sampling.history import Histories
from distkv.engine.sampling.sampler import SequenceOutput
from distkv.engine.step.requests import Requests
from distkv.errors import MalformedMessage
from distkv.wire.messages.common import Run
from distkv.wire.messages.from_worker import SeqResult
from distkv.wire.messages.to_worker import SeqStep, Step
from tests.engine.harness import GREEDY, seq_step

TABLE = (Run(0, 0, 4),)


@pytest.fixture
def histories() -> Histories:
    return Histories()


@pytest.fixture
def requests(histories: Histories) -> Requests:
    return Requests(histories)


def run(requests: Requests, *seqs: SeqStep, token: int | None = 9, lost: str = "") -> tuple[SeqResult, ...]:
    """A step whose sequences find `token`, unless they lose a creditor."""
    step = Step(step_id=1, seqs=seqs)
    planned = requests.plan(step)
    for one in planned:
        one.lost.update(lost)
    return requests.commit(step, planned, {one.step.request_id: SequenceOutput(token) for one in planned})


def test_the_sampled_token_fills_in_the_next_step(requests: Requests) -> None:
    (result,) = run(requests, seq_step([1, 2, 3], 0, 3, TABLE, sample=GREEDY))
    assert result == SeqResult(request_id="r", attempt=0, status="ok", token=9)
    (planned,) = requests.plan(Step(step_id=2, seqs=(seq_step((), 3, 4, TABLE),)))
    assert list(planned.tokens) == [9] and planned.lost == set()
    with pytest.raises(MalformedMessage, match="last sampled was 3"):
        requests.plan(Step(step_id=3, seqs=(seq_step((), 4, 5, TABLE),)))


def test_a_step_that_samples_nothing_fills_in_nothing(requests: Requests) -> None:
    run(requests, seq_step([1, 2, 3], 0, 3, TABLE), token=None)
    with pytest.raises(MalformedMessage, match="last sampled was -1"):
        requests.plan(Step(step_id=2, seqs=(seq_step((), 3, 4, TABLE),)))


def test_an_attempt_that_lost_a_creditor_is_void_from_then_on(requests: Requests) -> None:
    seq = seq_step([1], 0, 1, TABLE, attempt=2, sample=GREEDY)
    assert run(requests, seq, lost="yx") == (SeqResult(request_id="r", attempt=2, status="lost", lost=("x", "y")),)
    ahead = seq_step((), 1, 2, TABLE, attempt=2, sample=GREEDY)
    other = seq_step([5], 0, 1, TABLE, name="other", sample=GREEDY)
    void, done = run(requests, ahead, other)
    assert void == SeqResult(request_id="r", attempt=2, status="void")
    assert (done.request_id, done.status) == ("other", "ok"), "results are in the order of the step"
    assert run(requests, seq_step([1], 0, 1, TABLE, attempt=3, sample=GREEDY))[0].status == "ok"


def test_histories_are_written_where_the_step_wants_it(requests: Requests, histories: Histories) -> None:
    run(requests, seq_step([1, 2, 3], 0, 3, TABLE, history=True, sample=GREEDY))
    run(requests, seq_step((), 3, 4, TABLE, history=True, sample=GREEDY))
    assert histories.read("r", 4).tolist() == [1, 2, 3, 9]
    run(requests, seq_step([1, 2, 3], 0, 3, TABLE, name="other", sample=GREEDY))
    with pytest.raises(MalformedMessage):
        histories.read("other", 1)


def test_what_is_forgotten_begins_anew(requests: Requests, histories: Histories) -> None:
    run(requests, seq_step([1], 0, 1, TABLE, history=True, sample=GREEDY), lost="x")
    requests.forget(["r", "never seen"])
    assert run(requests, seq_step([1], 0, 1, TABLE, sample=GREEDY))[0].status == "ok"
    requests.forget(["r"])
    with pytest.raises(MalformedMessage, match="last sampled was -1"):
        requests.plan(Step(step_id=2, seqs=(seq_step((), 1, 2, TABLE),)))
    with pytest.raises(MalformedMessage):
        histories.read("r", 1)
