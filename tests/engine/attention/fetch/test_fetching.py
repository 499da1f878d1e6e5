"""Chunks that fetch a creditor's keys: the numbers of shipping, and keys that go away while they are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from distkv.engine.attention.fetch.costs import KEPT, Work
from distkv.engine.device.cpu import CpuDevice
from distkv.engine.device.pool import KvPool
from distkv.errors import LinkClosed
from distkv.kernels.cpu.torch_backend import TorchBackend
from distkv.wire.messages.from_worker import SeqResult
from tests.checkpoints import prompt_ids, reference_greedy, reference_logits, variant
from tests.engine.async_device import AsyncHost
from tests.engine.harness import GREEDY, Engine, seq_step
from tests.engine.lent import Lent

ATOL = 1e-4
WAYS = ["mapped", "streamed", "tiny pieces", "device"]


@pytest.fixture(scope="module", params=[("llama", None), ("mistral-window", 40), ("qwen3", None)], ids=str)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    name, window = request.param
    return variant(tmp_path_factory.mktemp("checkpoint"), name, sliding_window=window)


def fetching(path: Path, way: str = "mapped", **given: Any) -> Engine:
    """An engine whose chunks all fetch."""
    device = AsyncHost() if way == "device" else CpuDevice(TorchBackend()) if way == "torch" else None
    engine = Engine(path, num_slots=128, device=device, prefill_kv="fetch", **given)
    engine.peers.maps = way == "mapped"
    if way == "tiny pieces":
        layer_bytes = engine.pool.slot_bytes // engine.model.config.num_layers
        engine = Engine(
            path, num_slots=128, model=engine.model, prefill_kv="fetch", fetch_bytes=6 * layer_bytes, **given
        )
        engine.peers.maps = False
    return engine


def calls(engine: Engine, name: str) -> set[str]:
    return {kind for kind, _ in engine.peers.creditors[name].calls}


@pytest.mark.parametrize("way", WAYS)
def test_a_chunk_that_fetches_computes_what_the_reference_does(path: Path, way: str) -> None:
    engine = fetching(path, way)
    lent = Lent(engine)
    logits = engine.logits(lent.step(44, 50))
    torch.testing.assert_close(logits, reference_logits(path, lent.ids)[44:], atol=ATOL, rtol=0)
    for name in ("x", "y"):
        assert calls(engine, name) == {"slots", "check"} | ({"read"} if way != "mapped" else set()) - {"plan"}
        assert not engine.peers.creditors[name].plans, "no queries travel"
    counters = engine.runner.counters
    assert counters.fetched_blocks == 7 and 0 < counters.fetched_bytes <= 7 * engine.pool.slot_bytes


@pytest.mark.parametrize("way", WAYS)
def test_a_range_before_some_spans_can_be_rebuilt(path: Path, way: str) -> None:
    engine = fetching(path, way)
    lent = Lent(engine)
    rebuilt = engine.logits(lent.step(28, 36))
    torch.testing.assert_close(rebuilt, reference_logits(path, lent.ids)[28:36], atol=ATOL, rtol=0)


@pytest.mark.parametrize("way", ["mapped", "streamed"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_fetching_and_shipping_give_the_same_partials(path: Path, way: str, dtype: str) -> None:
    shipping = Engine(path, dtype, num_slots=128)
    expected = shipping.logits(Lent(shipping).step(40, 50))
    engine = fetching(path, way, dtype=dtype)
    found = engine.logits(Lent(engine).step(40, 50))
    torch.testing.assert_close(found, expected, atol=1e-5 if dtype == "float32" else 0.05, rtol=0)


def test_decodes_ship_beside_a_chunk_that_fetches(path: Path) -> None:
    engine = fetching(path)
    chunk, decode = Lent(engine, "chunk"), Lent(engine, "decode", seed=6)
    for end in (49, 50):
        results = engine.run(chunk.step(40, 50), decode.step(end - 1, end))
    assert [one.status for one in results] == ["ok", "ok"]
    assert [one.token for one in results] == [chunk.expected(path), decode.expected(path)]
    assert {entry.request_id for plan in engine.peers.creditors["x"].plans for entry in plan.entries} == {"decode"}


def test_microbatches_fetch_by_links_of_their_own(path: Path) -> None:
    engine = fetching(path, "streamed", microbatches=2)
    lent = Lent(engine)
    (result,) = engine.run(lent.step(40, 50))
    assert result.token == lent.expected(path)
    assert {key for key, link in engine.peers.fetch_links.items() if not link.broken} == {
        (name, microbatch) for name in ("x", "y") for microbatch in (0, 1)
    }


def test_greedy_tokens_are_those_of_the_reference(path: Path) -> None:
    """A prompt in chunks over fetched keys, then decodes that ship."""
    engine = fetching(path)
    lent = Lent(engine)
    table = lent.local
    (first,) = engine.run(lent.step(48, 50))
    tokens = [first.token]
    for end in range(51, 55):
        (result,) = engine.run(seq_step((), end - 1, end, table, name=lent.name, remote=lent.remote, sample=GREEDY))
        tokens.append(result.token)
    assert tokens == reference_greedy(path, lent.ids, 5)


def revoke_at(engine: Engine, name: str, lent: Lent, kind: str, count: int) -> None:
    """The span is closed, and its slots are overwritten, when the call has come so often."""
    creditor = engine.peers.creditors[name]
    call, seen = creditor.call, 0

    def counting(microbatch: int, what: str, layer: int) -> None:
        nonlocal seen
        call(microbatch, what, layer)
        seen += what == kind
        if seen == count:
            revoke(engine, name, lent)

    creditor.call = counting  # type: ignore[method-assign]


def revoke(engine: Engine, name: str, lent: Lent) -> None:
    revoked: list[bool] = []
    creditor = engine.peers.creditors[name]
    for span in lent.remote:
        if span.instance_id == name:
            with creditor.registry.pin(span.span) as slots:
                assert slots is not None
            creditor.registry.revoke(span.span, lambda: revoked.append(True))
            for slot in slots:
                creditor.engine.pool.slot(slot).fill_(0xFF)
    assert revoked, "a fetch pins nothing"


@pytest.mark.parametrize("way", ["mapped", "streamed", "device"])
def test_what_is_overwritten_while_it_is_read_is_lost_and_harms_nobody(
    path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = fetching(path, way)
    lent, other = Lent(engine), Lent(engine, "other", seed=6)
    if way == "mapped":
        pool = type(engine.pool)
        layer, read = pool.layer, 0

        def layer_read(self: KvPool, index: int) -> Any:
            nonlocal read
            read += 1
            if read == 3:
                revoke(engine, "x", lent)
            return layer(self, index)

        monkeypatch.setattr(pool, "layer", layer_read)
    else:
        revoke_at(engine, "x", lent, "read", 2)
    ids = prompt_ids(9)
    local = seq_step(ids, 0, 9, engine.table(9), name="local", sample=GREEDY)
    results = engine.run(lent.step(44, 50), local, other.step(44, 50))
    assert results[0] == SeqResult(request_id="r", attempt=0, status="lost", lost=("x",))
    assert [one.status for one in results[1:]] == ["ok", "ok"]
    assert [one.token for one in results[1:]] == [reference_greedy(path, ids, 1)[0], other.expected(path)]
    assert engine.run(lent.step(44, 50))[0].status == "void"


def test_what_was_revoked_before_is_not_read(path: Path) -> None:
    engine = fetching(path)
    lent = Lent(engine)
    revoke(engine, "x", lent)
    (result,) = engine.run(lent.step(44, 50))
    assert (result.status, result.lost) == ("lost", ("x",))
    assert engine.peers.creditors["x"].plans, "its queries were shipped: it said that they are stale"
    assert not engine.peers.fetch_links["x", 0].broken


@pytest.mark.parametrize("kind", ["slots", "read", "check"])
@pytest.mark.parametrize("way", ["streamed", "device"])
def test_a_creditor_that_dies_meanwhile(path: Path, way: str, kind: str) -> None:
    engine = fetching(path, way)
    lent = Lent(engine)
    engine.peers.creditors["x"].fail_at = (kind, 0)
    (result,) = engine.run(lent.step(44, 50))
    if kind == "slots":
        assert (result.status, result.token) == ("ok", lent.expected(path)), "the queries travel instead"
    else:
        assert (result.status, result.lost) == ("lost", ("x",))
    assert engine.peers.fetch_links["x", 0].broken
    engine.peers.creditors["x"].fail_at = None
    (again,) = engine.run(lent.step(44, 50, attempt=1))
    assert (again.status, again.token) == ("ok", lent.expected(path))


def test_a_reader_that_is_not_waited_for_ends(path: Path) -> None:
    """All that needs the keys of y is lost already, so nobody takes what its reader reads."""
    engine = fetching(path, "tiny pieces")
    lent = Lent(engine)
    engine.peers.creditors["x"].fail_at = ("read", 0)
    (result,) = engine.run(lent.step(44, 50))
    assert (result.status, result.lost) == ("lost", ("x",)), "nothing is wrong with y"
    engine.peers.creditors["x"].fail_at = None
    (again,) = engine.run(lent.step(44, 50, attempt=1))
    assert (again.status, again.token) == ("ok", lent.expected(path))


def test_slots_outside_of_a_mapped_pool_are_not_read(path: Path) -> None:
    engine = fetching(path)
    lent = Lent(engine)
    creditor = engine.peers.creditors["x"]
    span = lent.remote[0]
    creditor.registry.revoke(span.span, lambda: None)
    creditor.registry.grant(span.span, (0, 1, 2, 3, 4, 64))
    (result,) = engine.run(lent.step(44, 50))
    assert result.status in ("ok", "lost")
    assert engine.peers.fetch_links["x", 0].broken and creditor.plans


def test_without_room_for_a_block_queries_travel(path: Path) -> None:
    engine = Engine(path, num_slots=128, prefill_kv="fetch", fetch_bytes=16)
    engine.peers.maps = False
    lent = Lent(engine)
    (result,) = engine.run(lent.step(44, 50))
    assert result.token == lent.expected(path)
    assert calls(engine, "x") >= {"plan", "send", "collect"} and "read" not in calls(engine, "x")


def test_both_ways_are_measured_and_the_faster_one_is_taken(path: Path) -> None:
    engine = Engine(path, num_slots=128, prefill_kv="auto")
    lent = Lent(engine)
    assert engine.run(lent.step(44, 50))[0].token == lent.expected(path)
    costs, work = engine.peers.costs["x"], Work(6, 4)
    ship_s = costs.estimate_s("ship", work)
    assert ship_s is not None and 0 < ship_s < 1 and costs.estimate_s("fetch", work) is None
    assert 0 < engine.fetching.own.expected_s(work) < 1
    for _ in range(KEPT):
        costs.took("ship", work, 1e6)
    engine.peers.creditors["x"].calls.clear()
    assert engine.run(lent.step(44, 50))[0].token == lent.expected(path)
    assert engine.runner.counters.fetched_blocks >= 4 and calls(engine, "x") == {"slots", "check"}
    assert 0 < (costs.estimate_s("fetch", work) or 0) < 1
    for _ in range(KEPT):
        costs.took("fetch", work, 1e9)
    engine.run(lent.step(44, 50))
    assert "plan" in calls(engine, "x"), "shipping is the faster one again"


def test_how_fast_a_link_is_is_learned_by_a_probe(path: Path) -> None:
    engine = Engine(path, num_slots=128, prefill_kv="auto")
    engine.peers.maps = False
    lent = Lent(engine)
    engine.peers.creditors["y"].fail_at = ("read", 0)
    assert engine.run(lent.step(44, 50))[0].status == "ok", "whatever becomes of a probe"
    assert engine.peers.costs["x"].read_s_per_byte is not None
    assert engine.peers.costs["y"].read_s_per_byte is None
    assert calls(engine, "x") >= {"slots", "read", "plan", "collect"}


def test_link_errors_end_a_link_once(path: Path) -> None:
    engine = fetching(path)
    Lent(engine)
    link = engine.peers.fetch_link("x")
    assert link is not None
    link.fail(LinkClosed("x", "the test says so"))
    assert link.broken and link.slots([]) is None and link.memory() is None
