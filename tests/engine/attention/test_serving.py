"""The creditor's side: spans that come and go while they are read, and plans that are wrong."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import pytest
import torch

from distkv.engine.attention import serving
from distkv.engine.attention.bodies import body_of, partial_of
from distkv.engine.attention.serving import AttendServer, ServeTime
from distkv.engine.attention.spans import SpanRegistry
from distkv.engine.device.cpu import CpuDevice
from distkv.engine.device.pool import KvPool
from distkv.engine.model.config import ModelConfig
from distkv.errors import MalformedMessage
from distkv.wire.messages.common import Epoch, SpanRef
from distkv.wire.messages.data import Attend, AttendEntry, AttendPlan
from tests.checkpoints import variant

REF = SpanRef(span_id="s", epoch=Epoch(1, 1))
LATER = SpanRef(span_id="s", epoch=Epoch(1, 2))


class Calls:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


def test_a_span_is_one_life_only() -> None:
    registry = SpanRegistry()
    registry.grant(REF, (3, 4))
    with registry.pin(REF) as slots, registry.pin(LATER) as later:
        assert (slots, later) == ((3, 4), None)
    registry.grant(REF, (9,))
    with registry.pin(REF) as slots:
        assert slots == (3, 4)


def test_revoke_completes_with_the_last_pin() -> None:
    registry, revoked = SpanRegistry(), Calls()
    registry.grant(REF, (3, 4))
    with registry.pin(REF):
        with registry.pin(REF):
            registry.revoke(REF, revoked)
            assert registry.pins(REF) == 2
            with registry.pin(REF) as slots:
                assert slots is None
        assert revoked.count == 0
    assert revoked.count == 1
    with registry.pin(REF) as slots:
        assert slots is None


def test_revoke_without_readers_or_without_span_completes_at_once() -> None:
    registry, revoked = SpanRegistry(), Calls()
    registry.grant(REF, (3,))
    registry.revoke(REF, revoked)
    registry.revoke(REF, revoked)
    assert revoked.count == 2


def test_revoking_twice_reports_twice() -> None:
    registry, first, second = SpanRegistry(), Calls(), Calls()
    registry.grant(REF, (3,))
    with registry.pin(REF):
        registry.revoke(REF, first)
        registry.revoke(REF, second)
        assert (first.count, second.count) == (0, 0)
    assert (first.count, second.count) == (1, 1)


def test_a_part_is_closed_while_the_others_serve_on() -> None:
    registry, first, second, all_ = SpanRegistry(), Calls(), Calls(), Calls()
    registry.grant(REF, (3, 4, 5, 6))
    with registry.pin(REF, 0, 4) as early:
        registry.revoke(REF, first, positions=(1,))
        with registry.pin(REF, 0, 2) as touches, registry.pin(REF, 2, 2) as beside:
            assert (early, touches, beside) == ((3, 4, 5, 6), None, (3, 4, 5, 6))
            registry.revoke(REF, second, positions=(0,))
        assert (first.count, second.count) == (0, 0), "the one that came first reads on"
        with registry.pin(REF, 2, 2):
            pass
        late = registry.pin(REF, 2, 2)
        late.__enter__()
    assert (first.count, second.count) == (1, 1), "who came later keeps nobody waiting"
    registry.revoke(REF, first, positions=(1,))
    assert first.count == 1, "closed again behind a reader"
    registry.revoke(REF, all_)
    with registry.pin(REF, 3, 1) as slots:
        assert slots is None
    late.__exit__(None, None, None)
    assert (first.count, all_.count) == (2, 1) and registry.pins(REF) == 0
    registry.revoke(REF, first, positions=(2,))
    assert first.count == 3, "an unknown span counts as revoked"


def test_a_reader_that_fails_releases_its_pin() -> None:
    registry, revoked = SpanRegistry(), Calls()
    registry.grant(REF, (3,))
    with pytest.raises(RuntimeError), registry.pin(REF):
        registry.revoke(REF, revoked)
        raise RuntimeError
    assert revoked.count == 1


def test_readers_in_many_threads_never_hold_a_revoked_span() -> None:
    registry = SpanRegistry()
    revoked: list[int] = []
    broken: list[str] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            for epoch in range(50):
                with registry.pin(SpanRef(span_id="s", epoch=Epoch(1, epoch))) as slots:
                    if slots is not None and epoch in revoked:
                        broken.append(f"epoch {epoch} was revoked under a reader")

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    for epoch in range(50):
        ref, gone = SpanRef(span_id="s", epoch=Epoch(1, epoch)), threading.Event()
        registry.grant(ref, (epoch,))

        def on_revoked(epoch: int = epoch, gone: threading.Event = gone) -> None:
            revoked.append(epoch)
            gone.set()

        registry.revoke(ref, on_revoked)
        assert gone.wait(10)
    done.set()
    for reader in readers:
        reader.join(10)
    assert revoked == list(range(50))
    assert broken == []


class Server:
    def __init__(self, path: Path) -> None:
        self.config = ModelConfig.from_dir(path)
        self.pool = KvPool(self.config, 8, 4, torch.float32)
        for half in (self.pool.layer(0).k, self.pool.layer(0).v):
            half.normal_(generator=torch.Generator().manual_seed(0))
        self.registry = SpanRegistry()
        self.registry.grant(REF, (5, 2, 7))
        self.server = AttendServer(self.pool, self.registry, self.config, torch.float32, CpuDevice())

    def entry(
        self, *, ref: SpanRef = REF, index: int = 0, num_blocks: int = 3, row: int = 0, num_rows: int = 2
    ) -> AttendEntry:
        return AttendEntry(
            request_id="r", span=ref, index=index, num_blocks=num_blocks, first_position=0, row=row, num_rows=num_rows
        )

    def plan(self, *entries: AttendEntry, num_rows: int = 2) -> AttendPlan:
        return AttendPlan(step_id=4, num_rows=num_rows, entries=entries)

    def q(self, num_rows: int = 2) -> torch.Tensor:
        shape = (num_rows, self.config.num_heads, self.config.head_dim)
        return torch.randn(shape, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def served(tmp_path: Path) -> Server:
    return Server(variant(tmp_path, "llama", text_for_tokenizer=None))


POSITIONS = body_of(torch.tensor([20, 21]))


def test_stale_entries_are_empty_partials_beside_good_ones(served: Server) -> None:
    plan = served.plan(served.entry(), served.entry(ref=LATER), served.entry(index=1, num_blocks=1, row=1, num_rows=1))
    stale, out, lse = served.server.attend(served.server.accept(plan, POSITIONS), 0, served.q())
    assert stale == (1,)
    assert out.shape == (5, 4, 16)
    assert not out[2:4].any()
    assert torch.isneginf(lse[2:4]).all()
    assert torch.isfinite(lse[[0, 1, 4]]).all()
    assert served.server.counters.attend_queries == 2


def test_partials_in_bfloat16_are_within_their_rounding_of_attention_in_float64(served: Server) -> None:
    """2^-8 of each number, and what float32 attention is off by."""
    exact = served.server.accept(served.plan(served.entry()), POSITIONS)
    narrow = served.server.accept(msgspec.structs.replace(exact.plan, out_dtype="bfloat16"), POSITIONS)
    q, layer, config = served.q(), served.pool.layer(0), served.config
    slots = torch.tensor((5, 2, 7))
    k, v = (half.double().transpose(0, 1).flatten(1, 2) for half in (layer.keys(slots), layer.values(slots)))
    header, out, lse = served.server.serve(narrow, Attend(step_id=4, layer=0), body_of(q))
    assert header.out_dtype == "bfloat16" and len(out) == 2 * q.numel()
    found, sums = partial_of(bytes(out) + bytes(lse), "bfloat16", 2, *q.shape[1:])
    group = config.num_heads // len(k)
    for row in range(2):
        for head in range(config.num_heads):
            scores = k[head // group] @ q[row, head].double() * config.scale
            reference = torch.softmax(scores, 0) @ v[head // group]
            torch.testing.assert_close(found[row, head].double(), reference, rtol=2**-8 + 1e-5, atol=1e-5)
            torch.testing.assert_close(sums[row, head].double(), torch.logsumexp(scores, 0), rtol=1e-5, atol=1e-5)


def test_spans_are_pinned_only_while_they_are_read(served: Server) -> None:
    plan = served.server.accept(served.plan(served.entry()), POSITIONS)
    assert served.registry.pins(REF) == 0
    assert served.server.attend(plan, 0, served.q())[0] == ()
    assert served.registry.pins(REF) == 0
    served.registry.revoke(REF, Calls())
    assert served.server.attend(plan, 0, served.q())[0] == (0,)


def test_an_empty_plan_has_empty_partials(served: Server) -> None:
    plan = served.server.accept(served.plan(num_rows=0), b"")
    header, out, lse = served.server.serve(plan, Attend(step_id=4, layer=0), b"")
    assert (header.stale, len(out), len(lse)) == ((), 0, 0)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"row": 1}, r"rows \[1, 3\) of a plan with 2 rows"),
        ({"index": 1}, r"rBlocks \[1, 4\) of a span of 3"),
        ({"num_rows": 2**40}, "bytes"),
        ({"num_rows": 0}, "an entry of no rows"),
    ],
    ids=["rows", "blocks", "size of partials", "no rows"],
)
def test_plans_that_do_not_fit_are_refused(served: Server, changes: dict[str, int], problem: str) -> None:
    with pytest.raises(MalformedMessage, match=problem):
        served.server.accept(served.plan(served.entry(**changes)), POSITIONS)


def test_a_plan_of_more_entries_than_a_step_has_is_refused(served: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "MAX_ENTRIES", 2)
    served.server.accept(served.plan(*[served.entry()] * 2), POSITIONS)
    with pytest.raises(MalformedMessage, match="a plan of 3 entries; expected 2 at most"):
        served.server.accept(served.plan(*[served.entry()] * 3), POSITIONS)


def test_a_plan_whose_queries_no_frame_holds_is_refused(served: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before there is memory for them, however few of its rows the entries name."""
    monkeypatch.setattr(serving, "MAX_QUERY_BYTES", served.q(2).nbytes)
    assert served.server.accept(served.plan(served.entry()), POSITIONS).plan.num_rows == 2
    with pytest.raises(MalformedMessage, match="queries of a layer"):
        served.server.accept(served.plan(served.entry(), num_rows=3), body_of(torch.zeros(3, dtype=torch.int64)))


@pytest.mark.parametrize("positions", [(-1, 3), (0, 2**63 - 1)])
def test_positions_that_no_sequence_has_are_refused(served: Server, positions: tuple[int, int]) -> None:
    with pytest.raises(MalformedMessage, match="positions from"):
        served.server.accept(served.plan(served.entry()), body_of(torch.tensor(positions)))
    far = msgspec.structs.replace(served.entry(), first_position=2**62)
    with pytest.raises(MalformedMessage, match="begins at position"):
        served.server.accept(served.plan(far), POSITIONS)


def test_a_span_that_appears_later_is_checked_then(served: Server) -> None:
    plan = served.server.accept(served.plan(served.entry(ref=LATER, num_blocks=9)), POSITIONS)
    served.registry.grant(LATER, (1, 2))
    with pytest.raises(MalformedMessage, match="of a span of 2"):
        served.server.attend(plan, 0, served.q())
    assert served.registry.pins(LATER) == 0


def test_frames_that_do_not_fit_their_plan_are_refused(served: Server) -> None:
    with pytest.raises(MalformedMessage, match="has 16 bytes, this one has 8"):
        served.server.accept(served.plan(served.entry()), POSITIONS[:8])
    plan = served.server.accept(served.plan(served.entry()), POSITIONS)
    body = body_of(served.q())
    with pytest.raises(MalformedMessage, match="step 5 under the plan of step 4"):
        served.server.serve(plan, Attend(step_id=5, layer=0), body)
    with pytest.raises(MalformedMessage, match="layer 2 of a model with 2 layers"):
        served.server.serve(plan, Attend(step_id=4, layer=2), body)
    with pytest.raises(MalformedMessage, match="this one has"):
        served.server.serve(plan, Attend(step_id=4, layer=0), body[:-4])


def test_large_partials_keep_no_memory(served: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    if served.server._exchanges is None:
        pytest.skip("the native library is not built")
    plan = served.server.accept(served.plan(served.entry()), POSITIONS)
    direct = served.server.stand(plan)
    assert direct is not None
    served.server.leave(direct)
    monkeypatch.setattr(serving, "MAX_DIRECT_BYTES", direct.serving.partial_bytes - 1)
    assert served.server.stand(plan) is None


def test_the_time_of_serving_is_no_more_than_what_goes_by_however_many_are_served() -> None:
    now_s = 10.0
    time = ServeTime(lambda: now_s)
    time.begin()
    now_s = 11.0
    time.begin()
    now_s = 12.5
    assert time.total_s() == 2.5
    time.end()
    now_s = 13.0
    time.end()
    now_s = 20.0
    assert time.total_s() == 3.0
    time.begin()
    now_s = 20.5
    time.end()
    assert time.total_s() == 3.5


class FakeGate:
    """is_reading: what it answers who shuts it."""

    def __init__(self) -> None:
        self.is_reading = self.is_shut = False

    def shut(self) -> bool:
        self.is_shut = True
        return self.is_reading


def test_who_stands_keeps_nobody_waiting_unless_it_reads() -> None:
    registry, revoked, gate = SpanRegistry(), Calls(), FakeGate()
    registry.grant(REF, (3, 4))
    found = registry.stand([(REF, 0, 2)], gate)
    assert found is not None and found[1] == [(3, 4)]
    assert registry.pins(REF) == 0
    registry.revoke(REF, revoked)
    assert gate.is_shut and revoked.count == 1
    assert registry.stand([(REF, 0, 2)], FakeGate()) is None
    registry.leave(found[0])
    assert revoked.count == 1


def test_a_read_by_a_gate_is_waited_for_until_it_leaves() -> None:
    registry, revoked, gate = SpanRegistry(), Calls(), FakeGate()
    registry.grant(REF, (3, 4))
    registry.grant(LATER, (5,))
    found = registry.stand([(REF, 0, 2), (LATER, 0, 1)], gate)
    assert found is not None
    gate.is_reading = True
    registry.revoke(REF, revoked)
    registry.revoke(LATER, revoked)
    assert revoked.count == 0
    registry.leave(found[0])
    assert revoked.count == 2
    assert registry.pins(REF) == registry.pins(LATER) == 0


def test_only_positions_that_are_read_shut_a_gate() -> None:
    registry, revoked, gate, other = SpanRegistry(), Calls(), FakeGate(), FakeGate()
    registry.grant(REF, (3, 4, 5, 6))
    gate.is_reading = other.is_reading = True
    first, last = registry.stand([(REF, 0, 2)], gate), registry.stand([(REF, 2, 2)], other)
    assert first is not None and last is not None
    registry.revoke(REF, revoked, (3,))
    assert (gate.is_shut, other.is_shut, revoked.count) == (False, True, 0)
    registry.leave(last[0])
    assert revoked.count == 1
    registry.leave(first[0])
    registry.revoke(REF, revoked, (0,))
    assert not gate.is_shut and revoked.count == 2
