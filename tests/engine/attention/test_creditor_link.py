"""CreditorLink: tensors to frames and back, who is lost by what, and links that must not be used again."""

from __future__ import annotations

import time
from collections import deque

import pytest
import torch
from structlog.testing import capture_logs

from distkv.engine.attention import creditor_link
from distkv.engine.attention.answer_times import SHORTEST_S, AnswerTimes
from distkv.engine.attention.bodies import body_of, tensor_of
from distkv.engine.attention.creditor_link import TURN_S, CreditorLink
from distkv.errors import DistKVError, LinkClosed, LinkTimeout, MalformedMessage
from distkv.wire.messages.common import Epoch, SpanRef
from distkv.wire.messages.counters import Counters
from distkv.wire.messages.data import Attend, AttendEntry, AttendPlan, DataMessage, Denied, Partials

HEADS, DIM = 2, 4


class ScriptedLink:
    """Sends into a list, receives from another; an exception in it is raised."""

    stream = None

    def __init__(self) -> None:
        self.sent: list[tuple[DataMessage, bytes]] = []
        self.answers: deque[tuple[DataMessage, bytes | bytearray] | DistKVError] = deque()
        self.waited_s: list[float] = []
        self.send_timeouts_s: list[float] = []
        self.closed = False

    def send(self, header: DataMessage, *buffers: memoryview, timeout_s: float) -> None:
        if self.closed:
            raise LinkClosed("x", "gone")
        self.send_timeouts_s.append(timeout_s)
        self.sent.append((header, b"".join(buffers)))

    def recv(self, timeout_s: float) -> tuple[DataMessage, bytes | bytearray]:
        self.waited_s.append(timeout_s)
        answer = self.answers.popleft()
        if isinstance(answer, DistKVError):
            raise answer
        return answer


def plan(*rows: int) -> AttendPlan:
    span = SpanRef(span_id="s", epoch=Epoch(1, 1))
    entries = tuple(
        AttendEntry(request_id="r", span=span, index=0, num_blocks=1, first_position=0, row=0, num_rows=count)
        for count in rows
    )
    return AttendPlan(step_id=9, num_rows=2, entries=entries)


def partials(num_rows: int, layer: int = 0, step_id: int = 9, stale: tuple[int, ...] = ()) -> tuple[DataMessage, bytes]:
    out = torch.arange(num_rows * HEADS * DIM, dtype=torch.float32)
    lse = torch.arange(num_rows * HEADS, dtype=torch.float32) - 5
    return Partials(step_id=step_id, layer=layer, stale=stale), bytes(body_of(out)) + bytes(body_of(lse))


@pytest.fixture
def link() -> ScriptedLink:
    return ScriptedLink()


@pytest.fixture
def counters() -> Counters:
    return Counters()


@pytest.fixture
def creditor(link: ScriptedLink, counters: Counters) -> CreditorLink:
    return CreditorLink(link, "x", AnswerTimes(0.25), counters)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_one_layer(link: ScriptedLink, creditor: CreditorLink, counters: Counters, dtype: torch.dtype) -> None:
    lost: list[set[str]] = [set(), set()]
    creditor.begin(plan(2, 1), torch.tensor([7, 8]), slice(4, 6), lost)
    assert creditor.rows == slice(4, 6) and creditor.is_open
    q = torch.randn(3, HEADS, DIM).to(dtype)[1:]
    creditor.send(0, q)
    link.answers.append(partials(3, stale=(1,)))
    found = creditor.collect(0, time.monotonic())
    assert found is not None
    assert torch.equal(found[0], torch.arange(24, dtype=torch.float32).view(3, HEADS, DIM))
    assert torch.equal(found[1], torch.arange(6, dtype=torch.float32).view(3, HEADS) - 5)
    assert link.waited_s == [pytest.approx(0.25, abs=0.01)]
    (_, positions), (attend, body) = link.sent
    assert torch.equal(tensor_of(positions, torch.int64, (2,)), torch.tensor([7, 8]))
    assert attend == Attend(step_id=9, layer=0)
    assert torch.equal(tensor_of(body, dtype, (2, HEADS, DIM)), q)
    assert counters == Counters(query_bytes=16 + 2 * HEADS * DIM * dtype.itemsize + 3 * HEADS * (DIM + 1) * 4)
    assert lost == [set(), {"x"}], "only the stale entry's sequence"
    assert creditor.is_open and not creditor.broken


def test_partials_in_bfloat16(link: ScriptedLink, counters: Counters) -> None:
    creditor = CreditorLink(link, "x", AnswerTimes(0.25), counters, out_dtype="bfloat16")
    creditor.begin(plan(3), torch.tensor([7, 8]), slice(0, 2), [set()])
    assert (
        isinstance(link.sent[0][0], AttendPlan) and link.sent[0][0].out_dtype == creditor.plan.out_dtype == "bfloat16"
    )
    creditor.send(0, torch.zeros(2, HEADS, DIM))
    out, lse = torch.randn(3, HEADS, DIM).bfloat16(), torch.randn(3, HEADS)
    before = counters.query_bytes
    link.answers.append((Partials(step_id=9, layer=0, out_dtype="bfloat16"), bytes(body_of(out)) + bytes(body_of(lse))))
    found = creditor.collect(0, time.monotonic())
    assert found is not None and torch.equal(found[0], out) and torch.equal(found[1], lse)
    assert counters.query_bytes - before == 3 * HEADS * (2 * DIM + 4)


def test_a_creditor_that_answers_in_float32_is_asked_for_that_from_then_on(
    link: ScriptedLink, counters: Counters
) -> None:
    creditor = CreditorLink(link, "x", AnswerTimes(0.25), counters, out_dtype="bfloat16")
    for wanted in ("bfloat16", "float32"):
        creditor.begin(plan(3), torch.tensor([7, 8]), slice(0, 2), [set()])
        assert creditor.plan.out_dtype == wanted
        creditor.send(0, torch.zeros(2, HEADS, DIM))
        link.answers.append(partials(3))
        found = creditor.collect(0, time.monotonic())
        assert found is not None and found[0].dtype == torch.float32 and not creditor.broken


def test_partials_share_the_memory_of_their_frame(link: ScriptedLink, creditor: CreditorLink) -> None:
    creditor.begin(plan(1), torch.tensor([7, 8]), slice(0, 2), [set()])
    creditor.send(0, torch.zeros(2, HEADS, DIM))
    header, body = partials(1)
    frame = bytearray(body)
    link.answers.append((header, frame))
    found = creditor.collect(0, time.monotonic())
    assert found is not None
    frame[:] = bytes(len(frame))
    assert not found[0].any() and not found[1].any()


def test_nothing_is_collected_that_was_not_asked(link: ScriptedLink, creditor: CreditorLink) -> None:
    creditor.begin(plan(1), torch.tensor([7, 8]), slice(0, 2), [set()])
    assert creditor.collect(0, time.monotonic()) is None
    creditor.send(0, torch.zeros(2, HEADS, DIM))
    link.answers.append(partials(1))
    assert creditor.collect(0, time.monotonic()) is not None and creditor.collect(1, time.monotonic()) is None
    assert len(link.waited_s) == 1 and not creditor.broken


def test_a_link_is_closed_to_sequences_that_no_longer_count(creditor: CreditorLink) -> None:
    lost: list[set[str]] = [set(), {"y"}]
    creditor.begin(plan(1, 1), torch.tensor([7, 8]), slice(0, 2), lost)
    assert creditor.is_open
    lost[0].add("y")
    assert not creditor.is_open and not creditor.broken


@pytest.mark.parametrize(
    "answer",
    [
        LinkTimeout("x", 0.25),
        LinkClosed("x", "died"),
        MalformedMessage("noise"),
        partials(3, layer=1),
        partials(3, step_id=8),
        partials(2),
        partials(3, stale=(2,)),
        partials(3, stale=(-1,)),
        (Partials(step_id=9, layer=0, out_dtype="bfloat16"), bytes(3 * HEADS * (2 * DIM + 4))),
        (Denied(field="step_id", expected="1", got="2"), b""),
    ],
    ids=[
        "late",
        "closed",
        "noise",
        "other layer",
        "other step",
        "other size",
        "entry 2",
        "entry -1",
        "other dtype",
        "denied",
    ],
)
def test_after_a_wrong_answer_the_link_is_not_used_again(
    link: ScriptedLink, creditor: CreditorLink, answer: tuple[DataMessage, bytes] | DistKVError
) -> None:
    lost: list[set[str]] = [set(), set()]
    creditor.begin(plan(2, 1), torch.tensor([7, 8]), slice(0, 2), lost)
    creditor.send(0, torch.zeros(2, HEADS, DIM))
    link.answers.append(answer)
    with capture_logs() as logs:
        assert creditor.collect(0, time.monotonic()) is None
    assert creditor.broken and not creditor.is_open
    assert lost == [{"x"}, {"x"}]
    (log,) = logs
    assert (log["event"], log["peer"]) == ("a creditor failed", "x") and log["why"]
    sent = len(link.sent)
    later: list[set[str]] = [set()]
    creditor.begin(plan(1), torch.tensor([7, 8]), slice(0, 2), later)
    creditor.send(0, torch.zeros(2, HEADS, DIM))
    assert creditor.collect(0, time.monotonic()) is None
    assert later == [{"x"}], "a plan over a link that failed before"
    assert len(link.sent) == sent and len(link.waited_s) == 1


def test_who_is_usually_fast_is_not_waited_for_long(
    link: ScriptedLink, counters: Counters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a silent creditor costs the whole batch the whole timeout, and each further one as much again."""
    now_s = [100.0]
    monkeypatch.setattr(creditor_link.time, "monotonic", lambda: now_s[0])
    creditor = CreditorLink(link, "x", AnswerTimes(5.0), counters)
    creditor.begin(plan(1), torch.tensor([7, 8]), slice(0, 2), [set()])
    for layer in range(2):
        creditor.send(layer, torch.zeros(2, HEADS, DIM))
        link.answers.append(partials(1, layer))
        now_s[0] += 0.002
        assert creditor.collect(layer, now_s[0]) is not None
    assert link.waited_s == [5.0, 5.0], "one that never answered before this step"
    creditor.begin(plan(1), torch.tensor([7, 8]), slice(0, 2), [set()])
    for since_s in (now_s[0], now_s[0] - 0.3, now_s[0] - 9.0):
        creditor.send(0, torch.zeros(2, HEADS, DIM))
        link.answers.append(partials(1))
        assert creditor.collect(0, since_s) is not None
    assert link.waited_s[2:] == [pytest.approx(SHORTEST_S), pytest.approx(SHORTEST_S - 0.3), TURN_S]
    assert link.send_timeouts_s[-1] == SHORTEST_S


def test_a_send_that_fails_breaks_the_link(link: ScriptedLink, creditor: CreditorLink, counters: Counters) -> None:
    link.closed = True
    lost: list[set[str]] = [set()]
    creditor.begin(plan(1), torch.tensor([7, 8]), slice(0, 2), lost)
    assert creditor.broken and lost == [{"x"}]
    assert counters.query_bytes == 0


def test_bodies_of_any_buffer() -> None:
    tensor = torch.tensor([[1.5, -2.0], [0.25, 4.0]])
    raw = bytes(body_of(tensor.T))
    assert torch.equal(tensor_of(raw, torch.float32, (2, 2)), tensor.T)
    writable = bytearray(raw)
    shared = tensor_of(writable, torch.float32, (2, 2))
    shared[0, 0] = 9.0
    assert tensor_of(writable, torch.float32, (2, 2))[0, 0] == 9.0
    shifted = memoryview(bytearray(b"?" + raw))[1:]
    assert torch.equal(tensor_of(shifted, torch.float32, (2, 2)), tensor.T)
    with pytest.raises(MalformedMessage):
        tensor_of(raw[:-1], torch.float32, (2, 2))
