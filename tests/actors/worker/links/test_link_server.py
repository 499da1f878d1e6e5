"""LinkServer: what peers may ask of a worker, and what becomes of those who send nonsense."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from structlog.testing import capture_logs

from distkv.actors.worker.links.link_server import MAX_LINKS
from distkv.engine.attention.bodies import body_of, tensor_of
from distkv.engine.model.config import ModelConfig
from distkv.errors import HandshakeRefused, LinkClosed
from distkv.log.line_limit import BURST_LINES
from distkv.wire.links import TensorLink, connect, hello_to
from distkv.wire.messages.common import DataEndpoint, SpanRef, Value
from distkv.wire.messages.data import (
    Attach,
    Attached,
    Attend,
    AttendEntry,
    AttendPlan,
    Blocks,
    DataMessage,
    Hello,
    Partials,
    ReadBlocks,
    Slots,
    SlotsQuery,
    SpanPart,
)
from tests.actors.links import DEADLINE_S, Worker, identity, model_config, span
from tests.threads import NO_THREAD, no_threads

POSITIONS = body_of(torch.tensor([40, 41]))


@pytest.fixture
def config(tmp_path: Path) -> ModelConfig:
    return model_config(tmp_path)


@pytest.fixture
def worker(config: ModelConfig) -> Iterator[Worker]:
    worker = Worker("creditor", config)
    worker.registry.grant(span("s"), (5, 2, 7))
    with worker.serves():
        yield worker
    worker.close()


@pytest.fixture
def link(worker: Worker) -> Iterator[TensorLink]:
    link = join(worker)
    yield link
    link.close()


def join(worker: Worker, incarnation: int = 1) -> TensorLink:
    return connect(worker.listener.endpoint, hello_to(identity("asker"), worker.name, incarnation), DEADLINE_S)


def plan(ref: SpanRef, num_blocks: int = 3, step_id: int = 4) -> AttendPlan:
    entry = AttendEntry(request_id="r", span=ref, index=0, num_blocks=num_blocks, first_position=0, row=0, num_rows=2)
    return AttendPlan(step_id=step_id, num_rows=2, entries=(entry,))


def queries(config: ModelConfig) -> memoryview:
    return body_of(torch.ones(2, config.num_heads, config.head_dim))


def attend(link: TensorLink, config: ModelConfig, layer: int = 0, step_id: int = 4) -> tuple[Partials, torch.Tensor]:
    link.send(Attend(step_id=step_id, layer=layer), queries(config))
    header, body = link.recv(DEADLINE_S)
    assert isinstance(header, Partials)
    rows = config.num_heads * (config.head_dim + 1)
    return header, tensor_of(body, torch.float32, (2 * rows,))[-2 * config.num_heads :]


def ended(link: TensorLink) -> str:
    """Why the other end hung up."""
    with pytest.raises(LinkClosed) as failure:
        link.recv(DEADLINE_S)
    return failure.value.why


def test_attention_layer_by_layer_under_one_plan(worker: Worker, link: TensorLink, config: ModelConfig) -> None:
    link.send(plan(span("s")), POSITIONS)
    for layer in range(config.num_layers):
        header, lse = attend(link, config, layer)
        assert (header.layer, header.stale) == (layer, ())
        assert torch.isfinite(lse).all()
    link.send(plan(span("s"), step_id=5), POSITIONS)
    assert attend(link, config, step_id=5)[0].stale == ()


def test_a_span_that_is_revoked_is_stale_at_the_next_layer(
    worker: Worker, link: TensorLink, config: ModelConfig
) -> None:
    link.send(plan(span("s")), POSITIONS)
    assert attend(link, config, 0)[0].stale == ()
    revoked: list[bool] = []
    worker.registry.revoke(span("s"), lambda: revoked.append(True))
    assert revoked == [True], "no reader holds it between layers"
    header, lse = attend(link, config, 1)
    assert header.stale == (0,) and torch.isneginf(lse).all()


def test_another_life_of_a_span_is_stale(worker: Worker, link: TensorLink, config: ModelConfig) -> None:
    link.send(plan(span("s", counter=2)), POSITIONS)
    assert attend(link, config)[0].stale == (0,)


def test_blocks_are_read_whole(worker: Worker, link: TensorLink) -> None:
    link.send(ReadBlocks(slots=(6, 7, 1)))
    header, body = link.recv(DEADLINE_S)
    assert header == Blocks(num_blocks=3)
    assert bytes(body) == worker.slot(6) + worker.slot(7) + worker.slot(1)


@pytest.mark.parametrize(
    ("frame", "body", "why"),
    [
        (ReadBlocks(slots=(8,)), b"", "slots should be from 0 to 7"),
        (Attend(step_id=4, layer=0), b"", "a plan, queries after a plan, or a read"),
        (Blocks(num_blocks=1), b"", "got Blocks"),
        (plan(span("s"), num_blocks=9), bytes(POSITIONS), "one that fits its spans"),
        (plan(span("s")), b"12345678", "one that fits its spans"),
    ],
    ids=["slot", "no plan", "out of order", "span", "positions"],
)
def test_frames_that_make_no_sense_end_the_link_and_are_counted(
    worker: Worker, link: TensorLink, frame: DataMessage, body: bytes, why: str
) -> None:
    other = join(worker)
    link.send(frame, body)
    assert why in ended(link)
    assert until_counted(worker, other) == 1


@pytest.mark.parametrize(("layer", "step_id", "size"), [(99, 4, None), (0, 5, None), (0, 4, 7)])
def test_queries_that_do_not_fit_their_plan(
    worker: Worker, link: TensorLink, config: ModelConfig, layer: int, step_id: int, size: int | None
) -> None:
    other = join(worker)
    link.send(plan(span("s")), POSITIONS)
    link.send(Attend(step_id=step_id, layer=layer), queries(config)[:size])
    assert "those of the plan" in ended(link)
    assert until_counted(worker, other) == 1
    assert worker.registry.pins(span("s")) == 0


def until_counted(worker: Worker, other: TensorLink) -> int:
    """Another link goes on as before; by the time many answers came over it, the first link's thread has counted."""
    for _ in range(10_000):
        other.send(ReadBlocks(slots=(0,)))
        assert other.recv(DEADLINE_S)[0] == Blocks(num_blocks=1)
        if worker.serving.counters.malformed_messages:
            break
    other.close()
    return worker.serving.counters.malformed_messages


def test_a_wrong_life_is_not_let_in(worker: Worker) -> None:
    with pytest.raises(HandshakeRefused, match="incarnation should be '1'"):
        join(worker, incarnation=2)
    assert worker.listener.refused == 1


def test_a_peer_that_goes_away_is_no_error(worker: Worker, link: TensorLink) -> None:
    link.abort()
    other = join(worker)
    other.send(ReadBlocks(slots=(0,)))
    assert other.recv(DEADLINE_S)[0] == Blocks(num_blocks=1)
    other.close()
    assert worker.serving.counters.malformed_messages == 0


def test_a_link_for_which_there_is_no_thread_ends_and_no_other(worker: Worker, link: TensorLink) -> None:
    link.send(ReadBlocks(slots=(0,)))
    assert link.recv(DEADLINE_S)[0] == Blocks(num_blocks=1), "it has its thread"
    with no_threads(), capture_logs() as lines:
        refused = join(worker)
        assert ended(refused)
        refused.close()
        assert [line["problem"] for line in lines if line["log_level"] == "warning"] == [NO_THREAD]
        for _ in range(3 * BURST_LINES):
            refused = join(worker)
            assert ended(refused)
            refused.close()
        assert sum(line["log_level"] == "warning" for line in lines) <= 2 * BURST_LINES, "it tries again and again"
    other = join(worker)
    for one in (link, other):
        one.send(ReadBlocks(slots=(0,)))
        assert one.recv(DEADLINE_S)[0] == Blocks(num_blocks=1)
    other.close()


def test_a_peer_has_so_many_links_at_most_and_loses_the_oldest(worker: Worker, link: TensorLink) -> None:
    other = connect(worker.listener.endpoint, hello_to(identity("other"), worker.name, 1), DEADLINE_S)
    with capture_logs() as lines:
        links = [join(worker) for _ in range(MAX_LINKS)]
        assert ended(link)
        for one in (*links, other):
            one.send(ReadBlocks(slots=(0,)))
            assert one.recv(DEADLINE_S)[0] == Blocks(num_blocks=1)
    assert [(line["event"], line["peer"]) for line in lines if line["log_level"] == "warning"] == [
        ("a peer opened too many tensor links", "asker")
    ]
    for one in (*links, other):
        one.close()


def slots_of(link: TensorLink, *parts: SpanPart, with_slots: bool = True) -> tuple[tuple[int, ...], list[int]]:
    """The stale parts, and the slots of the others."""
    link.send(SlotsQuery(parts=parts, with_slots=with_slots))
    header, body = link.recv(DEADLINE_S)
    assert isinstance(header, Slots)
    return header.stale, tensor_of(body, torch.int64, (len(body) // 8,)).tolist()


def test_where_spans_lie_and_whether_they_still_do(worker: Worker, link: TensorLink) -> None:
    worker.registry.grant(span("t"), (1, 3))
    parts = SpanPart(span=span("s"), index=1, num_blocks=2), SpanPart(span=span("t"), index=0, num_blocks=1)
    assert slots_of(link, *parts) == ((), [2, 7, 1])
    assert slots_of(link, *parts, with_slots=False) == ((), [])
    worker.registry.revoke(span("s"), lambda: None, (0,))
    assert slots_of(link, *parts) == ((), [2, 7, 1]), "another part of it is closed"
    worker.registry.revoke(span("s"), lambda: None, (2,))
    assert slots_of(link, *parts) == ((0,), [1])
    assert slots_of(link, SpanPart(span=span("t", 2), index=0, num_blocks=1)) == ((0,), []), "another epoch"


@pytest.mark.parametrize(("num_blocks", "why"), [(4, "of a span of 3 rBlocks"), (1 << 21, "more than")])
def test_parts_beyond_a_span_are_refused(link: TensorLink, num_blocks: int, why: str) -> None:
    link.send(SlotsQuery(parts=(SpanPart(span=span("s"), index=0, num_blocks=num_blocks),)))
    assert why in ended(link)


class Carrier:
    """A Registration that notes who is attached."""

    offer = Value()

    def __init__(self) -> None:
        self.attached: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.detached: queue.SimpleQueue[str] = queue.SimpleQueue()

    def connect(self, endpoint: DataEndpoint, hello: Hello, timeout_s: float) -> TensorLink:
        raise AssertionError("the worker is the owner here")

    def attach(self, link: TensorLink, body: memoryview) -> bytes:
        self.attached.put(link.peer)
        return bytes(body) + b", too"

    def detach(self, link: TensorLink) -> None:
        self.detached.put(link.peer)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("end", ["closes", "attaches twice"])
def test_who_attaches_is_detached_at_its_end(config: ModelConfig, end: str) -> None:
    carrier = Carrier()
    worker = Worker("carried", config, registered={"carrier": carrier})
    with worker.serves():
        link = join(worker)
        link.send(Attach(transport="carrier"), b"me")
        header, body = link.recv(DEADLINE_S)
        assert header == Attached(transport="carrier") and bytes(body) == b"me, too"
        assert carrier.attached.get(timeout=DEADLINE_S) == "asker" and carrier.detached.empty()
        if end == "attaches twice":
            link.send(Attach(transport="carrier"), b"me")
            with pytest.raises(LinkClosed, match="one Attach for a transport at most"):
                link.recv(DEADLINE_S)
        link.close()
        assert carrier.detached.get(timeout=DEADLINE_S) == "asker"
    assert carrier.attached.empty() and carrier.detached.empty()
    worker.close()


def test_nobody_attaches_to_what_is_not_offered(worker: Worker, link: TensorLink) -> None:
    link.send(Attach(transport="carrier"), b"me")
    with pytest.raises(LinkClosed, match="one that the endpoint offers"):
        link.recv(DEADLINE_S)
