"""FakeWorker: right steps give the right tokens, and a step that would read anything else is seen."""

from __future__ import annotations

import msgspec
import pytest

from distkv.checksums import pack
from distkv.sim.drawn.fake_worker import FakeWorker, expected_output, logprobs_at, next_token
from distkv.sim.machines.channel import thread_of
from distkv.wire.messages import from_worker as fw
from distkv.wire.messages import to_worker as tw
from distkv.wire.messages.common import Epoch, Member, Run, SpanRef
from tests.token_ids import packed

BLOCK = 4
PROMPT = (5, 6, 7, 8, 9)
SAMPLING = tw.Sampling(temperature=0.0, top_k=0, top_p=1.0, seed=1, prompt_tokens=len(PROMPT))
SPAN = SpanRef(span_id="s", epoch=Epoch(1, 1))


def worker(name: str = "a", slots: int = 8) -> FakeWorker:
    return FakeWorker(name, 1, slots, BLOCK)


def cluster(*names: str) -> list[FakeWorker]:
    workers = [worker(name) for name in names]
    for one in workers:
        one.peers = {other.instance_id: other for other in workers}
    return workers


def step(start: int, end: int, tokens: tuple[int, ...], *local: Run, **fields: object) -> tw.SeqStep:
    usual = {"request_id": "r", "version": 1, "attempt": 0, "sample": SAMPLING}
    return tw.SeqStep(start=start, end=end, tokens=packed(*tokens), local=local, **usual | fields)  # type: ignore[arg-type]


def result(worker: FakeWorker, seq: tw.SeqStep) -> fw.SeqResult:
    (reply,) = worker.handle(tw.Step(step_id=1, seqs=(seq,)))
    assert isinstance(reply, fw.StepResult)
    return reply.results[0]


def lent() -> tuple[FakeWorker, FakeWorker]:
    """`a` computed PROMPT, `b` pulled the first block of it into a span."""
    a, b = cluster("a", "b")
    result(a, step(0, 5, PROMPT, Run(0, 0, 2)))
    b.handle(tw.Grant(span=SPAN, slots=(3,)))
    pull = tw.Pull(
        pull_id=1,
        source_id="a",
        source_incarnation=1,
        source_slots=(0,),
        slots=(3,),
        checksums=pack([a.checksum(0)]),
        span=SPAN,
    )
    assert b.handle(pull) == [fw.Pulled(pull_id=1)]
    return a, b


REMOTE = tw.RemoteSpan(instance_id="b", span=SPAN, index=0, first_block=0, num_blocks=1)


def test_steps_sample_what_the_whole_sequence_says() -> None:
    one = worker()
    first = result(one, step(0, 5, PROMPT, Run(0, 0, 2)))
    assert first.token == expected_output(PROMPT, 1)[0] == next_token(PROMPT)
    second = result(one, step(5, 6, (), Run(0, 0, 2)))
    assert [first.token, second.token] == expected_output(PROMPT, 2), "its last token it knows itself"


def test_chunks_and_slots_anywhere_make_no_difference() -> None:
    one = worker()
    assert result(one, step(0, 4, PROMPT[:4], Run(0, 6, 1), sample=None)).token is None
    chunk = step(4, 5, PROMPT[4:], Run(0, 6, 1), Run(1, 2, 1))
    assert result(one, chunk).token == expected_output(PROMPT, 1)[0]


@pytest.mark.parametrize(
    "seq",
    [
        step(5, 6, (1,), Run(0, 0, 1), Run(1, 4, 1)),  # another slot than was written
        step(5, 6, (1,), Run(1, 1, 1)),  # without the first block
        step(5, 6, (1,), Run(0, 0, 2), Run(0, 0, 1)),  # the first block twice
        step(5, 6, (1,), Run(0, 0, 2), request_id="other"),  # of another request
        step(5, 6, (1, 2), Run(0, 0, 2)),  # more tokens than positions
    ],
)
def test_what_attention_must_not_read_is_seen(seq: tw.SeqStep) -> None:
    one = worker()
    result(one, step(0, 5, PROMPT, Run(0, 0, 2)))
    with pytest.raises(AssertionError):
        result(one, seq)


def test_a_span_is_read_where_it_lies() -> None:
    a, _ = lent()
    a.pool[0] = [None] * BLOCK
    again = step(4, 5, PROMPT[4:], Run(1, 1, 1), remote=(REMOTE,))
    assert result(a, again).token == expected_output(PROMPT, 1)[0]


@pytest.mark.parametrize("how", ["dead", "frozen", "closed", "another epoch"])
def test_a_span_that_cannot_be_read_is_lost_and_its_attempt_void(how: str) -> None:
    a, b = lent()
    remote = REMOTE
    match how:
        case "dead":
            b.alive = False
        case "frozen":
            b.frozen = True
        case "closed":
            b.close(tw.Revoke(span=SPAN))
        case "another epoch":
            remote = msgspec.structs.replace(REMOTE, span=SpanRef(span_id="s", epoch=Epoch(1, 2)))
    seq = step(4, 5, PROMPT[4:], Run(1, 1, 1), remote=(remote,))
    assert (result(a, seq).status, result(a, seq).status) == ("lost", "void")
    fresh = step(0, 5, PROMPT, Run(0, 4, 2), attempt=1)
    assert result(a, fresh).status == "ok"


def test_nothing_is_pulled_that_is_not_what_was_promised() -> None:
    a, b = lent()
    pull = tw.Pull(
        pull_id=2,
        source_id="a",
        source_incarnation=1,
        source_slots=(0,),
        slots=(5,),
        checksums=pack([a.checksum(0)]),
        span=SPAN,
    )
    problems = {
        "checksum mismatch": msgspec.structs.replace(pull, checksums=pack([1])),
        "the source is gone": msgspec.structs.replace(pull, source_incarnation=2),
        "the span is gone": msgspec.structs.replace(pull, span=SpanRef(span_id="s", epoch=Epoch(1, 2))),
    }
    for problem, wrong in problems.items():
        assert b.handle(wrong) == [fw.Pulled(pull_id=2, problem=problem)]
    assert b.pool[5] == [None] * BLOCK
    assert b.handle(msgspec.structs.replace(pull, span=None)) == [fw.Pulled(pull_id=2)]
    assert b.pool[5] == a.pool[0]


def test_history_and_logprobs() -> None:
    one = worker()
    wanted = tw.PromptLogprobs(first=1, token_ids=packed(*PROMPT[1:]), top=2)
    sampling = msgspec.structs.replace(SAMPLING, logprobs=3)
    got = result(one, step(0, 5, PROMPT, Run(0, 0, 2), history=True, sample=sampling, prompt_logprobs=wanted))
    assert got.token is not None and got.logprobs == logprobs_at(5, got.token, 3)
    assert got.prompt_logprobs == tuple(logprobs_at(i, PROMPT[i], 2) for i in range(1, 5))
    assert one.histories["r"] == dict(enumerate(PROMPT))
    one.handle(tw.Forget(request_ids=("r",)))
    assert not one.histories and not one.last_token


def test_threads() -> None:
    assert thread_of(tw.Step(step_id=1, seqs=())) == thread_of(tw.Forget(request_ids=())) == "steps"
    assert thread_of(tw.Checksum(checksum_id=1, slots=())) == "transfers"
    assert thread_of(tw.Grant(span=SPAN, slots=())) == thread_of(tw.Revoke(span=SPAN)) == "main"


def test_a_path_that_is_cut_gives_neither_partials_nor_blocks_and_the_other_way_does() -> None:
    a, b = lent()
    read = step(4, 5, PROMPT[4:], Run(1, 1, 1), remote=(tw.RemoteSpan("b", SPAN, 0, 0, 1),))
    assert result(a, read).status == "ok"
    a.cut_from.add("b")
    lost = result(a, msgspec.structs.replace(read, attempt=1))
    assert (lost.status, lost.lost) == ("lost", ("b",))
    pull = tw.Pull(
        pull_id=2, source_id="b", source_incarnation=1, source_slots=(3,), slots=(5,), checksums=pack([b.checksum(3)])
    )
    assert a.handle(pull) == [fw.Pulled(pull_id=2, problem="the source is gone")]
    back = msgspec.structs.replace(pull, source_id="a", source_slots=(0,), checksums=pack([a.checksum(0)]))
    assert b.handle(back) == [fw.Pulled(pull_id=2, problem="")]
    a.cut_from.clear()
    assert a.handle(pull) == [fw.Pulled(pull_id=2, problem="")]


def test_pulls_fail_where_they_are_to() -> None:
    a, b = lent()
    b.pulls_fail = True
    pull = tw.Pull(
        pull_id=2, source_id="a", source_incarnation=1, source_slots=(0,), slots=(5,), checksums=pack([a.checksum(0)])
    )
    assert b.handle(pull) == [fw.Pulled(pull_id=2, problem="the pull failed")]
    assert b.pool[5] == [None] * BLOCK


def test_it_reads_from_listed_peers_only() -> None:
    a, b = lent()
    listed = Member(instance_id="b", incarnation=b.incarnation, address="", state="ready")
    link = tw.Link(instance_id="b", incarnation=b.incarnation)
    news = tw.Peers(members=(listed,)), tw.Peers(members=(), gone=("b",)), tw.Peers(members=(listed,))
    for peers, problem in zip(news, ("", "no link within 1 s", ""), strict=True):
        assert a.handle(peers) == []
        assert a.handle(link) == [fw.Linked(instance_id="b", incarnation=b.incarnation, problem=problem)]
