"""FramedCreditor: tensors to frames and back, and links that must not be used again."""

from __future__ import annotations

from collections import deque

import pytest
import torch

from distkv.engine.attention.bodies import body_of, tensor_of
from distkv.engine.attention.remote import FramedCreditor
from distkv.errors import DistKVError, LinkClosed, LinkError, LinkTimeout, MalformedMessage
from distkv.wire.messages.common import Epoch, SpanRef
from distkv.wire.messages.data import Attend, AttendEntry, AttendPlan, DataMessage, Denied, Partials

HEADS, DIM = 2, 4


class ScriptedLink:
    """Sends into a list, receives from another; an exception in it is raised."""

    def __init__(self) -> None:
        self.sent: list[tuple[DataMessage, bytes]] = []
        self.answers: deque[tuple[DataMessage, bytes] | DistKVError] = deque()
        self.waited_s: list[float] = []
        self.closed = False

    def send(self, header: DataMessage, *buffers: memoryview) -> None:
        if self.closed:
            raise LinkClosed("x", "gone")
        self.sent.append((header, b"".join(buffers)))

    def recv(self, timeout_s: float) -> tuple[DataMessage, bytes]:
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
def counted() -> list[int]:
    return []


@pytest.fixture
def creditor(link: ScriptedLink, counted: list[int]) -> FramedCreditor:
    return FramedCreditor(link, "x", HEADS, DIM, 0.25, counted.append)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_one_layer(link: ScriptedLink, creditor: FramedCreditor, counted: list[int], dtype: torch.dtype) -> None:
    creditor.plan(plan(2, 1), torch.tensor([7, 8]))
    q = torch.randn(3, HEADS, DIM).to(dtype)[1:]
    creditor.send(0, q)
    link.answers.append(partials(3, stale=(1,)))
    out, lse, stale = creditor.collect(0)
    assert stale == (1,)
    assert torch.equal(out, torch.arange(24, dtype=torch.float32).view(3, HEADS, DIM))
    assert torch.equal(lse, torch.arange(6, dtype=torch.float32).view(3, HEADS) - 5)
    assert link.waited_s == [0.25]
    (_, positions), (attend, body) = link.sent
    assert torch.equal(tensor_of(positions, torch.int64, (2,)), torch.tensor([7, 8]))
    assert attend == Attend(step_id=9, layer=0)
    assert torch.equal(tensor_of(body, dtype, (2, HEADS, DIM)), q)
    assert counted == [16, 2 * HEADS * DIM * dtype.itemsize, 3 * HEADS * (DIM + 1) * 4]


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
        (Denied(field="step_id", expected="1", got="2"), b""),
    ],
    ids=["late", "closed", "noise", "other layer", "other step", "other size", "unknown entry", "denied"],
)
def test_after_a_wrong_answer_the_link_is_not_used_again(
    link: ScriptedLink, creditor: FramedCreditor, answer: tuple[DataMessage, bytes] | DistKVError
) -> None:
    creditor.plan(plan(2, 1), torch.tensor([7, 8]))
    creditor.send(0, torch.zeros(2, HEADS, DIM))
    link.answers.append(answer)
    with pytest.raises(LinkError):
        creditor.collect(0)
    assert creditor.broken
    sent = len(link.sent)
    with pytest.raises(LinkClosed, match="failed before"):
        creditor.plan(plan(1), torch.tensor([7, 8]))
    with pytest.raises(LinkClosed):
        creditor.collect(0)
    assert len(link.sent) == sent


def test_a_send_that_fails_breaks_the_link(link: ScriptedLink, creditor: FramedCreditor, counted: list[int]) -> None:
    link.closed = True
    with pytest.raises(LinkClosed):
        creditor.plan(plan(1), torch.tensor([7, 8]))
    assert creditor.broken
    assert counted == []


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
