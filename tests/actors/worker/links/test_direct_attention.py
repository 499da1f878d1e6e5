"""Steps with keys elsewhere over real sockets, where the debtor computes all layers in one native call, or each where
linear layers are not the native library's, and the creditor each."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from distkv.actors.worker.links import creditor_links
from distkv.engine.attention.bodies import body_of
from distkv.engine.step.runner import StepRunner
from distkv.kernels import empty_partial
from distkv.kernels.cpu.calls.library import installed
from distkv.kernels.cpu.exchange import NativeExchange
from distkv.kernels.cpu.native_backend import NativeBackend
from distkv.types import Transport
from distkv.wire.links import TensorLink
from distkv.wire.links.streams import frames
from distkv.wire.messages.data import Attend, AttendPlan, OutDtype, Partials
from distkv.wire.messages.from_worker import SeqResult
from distkv.wire.messages.to_worker import Sampling, SeqStep, Step
from tests.actors.links import DEADLINE_S
from tests.actors.worker.links.listening_creditors import Creditors
from tests.checkpoints import reference_logits, variant
from tests.engine.harness import Engine, seq_step
from tests.engine.lent import Lent

SAMPLE = Sampling(temperature=0.0, top_k=0, top_p=1.0, seed=0, logprobs=4)
pytestmark = pytest.mark.skipif(
    not any(native.has_exchange for native in installed().levels.values()), reason="the native library is not built"
)


@pytest.fixture(autouse=True)
def patient_first_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is, a first step finds its links."""
    monkeypatch.setattr(creditor_links, "LINK_WAIT_S", DEADLINE_S)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return variant(tmp_path_factory.mktemp("checkpoint"), "llama", text_for_tokenizer=None)


@pytest.fixture
def engine(path: Path) -> Engine:
    return Engine(path)


@pytest.fixture
def creditors(engine: Engine) -> Iterator[Creditors]:
    creditors = Creditors(engine)
    yield creditors
    creditors.close()


def run(runner: StepRunner, *seqs: SeqStep, step_id: int = 1) -> tuple[SeqResult, ...]:
    return runner.run(Step(step_id=step_id, seqs=seqs))


class Counted:
    """Stands in for a method, and counts its calls."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method, self.count = method, 0

    def __call__(self, *args: Any, **named: Any) -> Any:
        self.count += 1
        return self._method(*args, **named)


@pytest.fixture
def attends(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Counted:
    """Attention that is called from Python."""
    counted = Counted(engine.model.device.backend.attend)
    monkeypatch.setattr(engine.model.device.backend, "attend", counted)
    return counted


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_the_token_of_one_instance(
    engine: Engine,
    creditors: Creditors,
    path: Path,
    attends: Counted,
    transport: Transport,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lent = Lent(engine)
    creditors.add("x")
    creditors.add("y")
    attends.count = 0
    runner = creditors.runner(transport)
    exchanges = Counted(NativeExchange.__call__)
    monkeypatch.setattr(NativeExchange, "__call__", lambda *given: exchanges(*given))
    (result,) = run(runner, lent.step())
    assert (result.status, result.token) == ("ok", lent.expected(path))
    assert (attends.count, exchanges.count) == (0, 0), "neither side came back to Python for a layer"
    assert runner.counters.attend_wait_s > 0


@pytest.mark.parametrize("directly", [True, False])
def test_partials_of_a_bfloat16_model_take_half_the_bytes_over_a_network(
    path: Path, monkeypatch: pytest.MonkeyPatch, directly: bool
) -> None:
    """Within a host they come in float32. Judged against float32, the model is no worse than transformers' own."""
    if not directly:
        monkeypatch.setattr(NativeBackend, "exchanges", lambda *_: None)
    engine = Engine(path, "bfloat16")
    lent, layers, heads = Lent(engine), engine.model.config.num_layers, engine.model.heads
    many_logprobs = msgspec.structs.replace(SAMPLE, logprobs=20)
    found: dict[tuple[Transport, OutDtype], tuple[SeqResult, int]] = {}
    with contextlib.closing(Creditors(engine)) as creditors:
        creditors.add("x")
        creditors.add("y")
        for transport, out_dtype in (("tcp", "float32"), ("tcp", "bfloat16"), ("unix", "bfloat16")):
            (result,) = run(creditors.runner(transport, out_dtype=out_dtype), lent.step(sample=many_logprobs))
            found[transport, out_dtype] = result, creditors.counters.query_bytes
    (exact, many), (rounded, few), (within, as_many) = found.values()
    assert within == exact and rounded.status == exact.status == "ok"
    assert many == as_many and many - few == 2 * 3 * heads.queries * heads.dim * 2 * layers, "two rows of three spans"
    assert exact.logprobs is not None and rounded.logprobs is not None
    reference, theirs = (
        reference_logits(path, lent.ids, dtype)[-1].float().log_softmax(-1) for dtype in (torch.float32, torch.bfloat16)
    )
    tokens = [token for token, _ in rounded.logprobs.top]
    off = torch.tensor([logprob for _, logprob in rounded.logprobs.top]) - reference[tokens]
    assert off.abs().mean() <= 1.2 * (theirs - reference).abs().mean()


def by_frames(engine: Engine, creditors: Creditors, monkeypatch: pytest.MonkeyPatch, *seqs: SeqStep) -> Any:
    """What the same step gives frame by frame."""
    with monkeypatch.context() as patch:
        patch.setattr(NativeBackend, "exchanges", lambda *_: None)
        return run(creditors.runner(), *seqs)


def layer_by_layer(monkeypatch: pytest.MonkeyPatch) -> Counted:
    """As where linear layers are not the native library's; calls of an exchange from Python."""
    exchanges = Counted(NativeExchange.__call__)
    monkeypatch.setattr(NativeBackend, "layers_of", lambda *_: None)
    monkeypatch.setattr(NativeExchange, "__call__", lambda *given: exchanges(*given))
    return exchanges


@pytest.mark.parametrize("is_whole", [True, False], ids=["all layers", "each layer"])
@pytest.mark.parametrize(("start", "end"), [(48, 50), (48, 49), (40, 50)])
def test_any_batch_gives_what_it_gives_frame_by_frame(
    engine: Engine, creditors: Creditors, monkeypatch: pytest.MonkeyPatch, start: int, end: int, is_whole: bool
) -> None:
    """Sequences with keys at both creditors beside one that has all of them here."""
    exchanges = None if is_whole else layer_by_layer(monkeypatch)
    lents = [Lent(engine, "a", 5), Lent(engine, "b", 6)]
    table = engine.table(20)
    ids = lents[0].ids[:20]
    engine.chunked_logits(ids[:18], [18], table)
    seqs = (
        lents[0].step(start, end, sample=SAMPLE),
        seq_step(ids, 18, 20, table, name="own", sample=SAMPLE),
        lents[1].step(start, end, sample=SAMPLE),
    )
    creditors.add("x")
    creditors.add("y")
    expected = by_frames(engine, creditors, monkeypatch, *seqs)
    found = run(creditors.runner(), *seqs)
    assert found == expected
    assert [one.status for one in found] == ["ok"] * 3
    assert exchanges is None or exchanges.count == engine.model.config.num_layers


def test_steps_with_the_same_entries_share_what_serves_them(
    engine: Engine, creditors: Creditors, monkeypatch: pytest.MonkeyPatch
) -> None:
    lent = Lent(engine)
    creditors.add("x")
    creditors.add("y")
    server = engine.peers.creditors["x"].server
    stood = Counted(server.stand)
    monkeypatch.setattr(server, "stand", stood)
    runner = creditors.runner()
    results = [run(runner, lent.step(), step_id=step_id) for step_id in (1, 2, 300)]
    assert results[0] == results[1] == results[2] and results[0][0].status == "ok"
    assert stood.count == 1
    assert run(runner, lent.step(44, 50), step_id=301)[0].status == "ok"
    assert stood.count == 2, "another number of rows"


def test_a_span_that_is_revoked_between_steps_loses_its_sequence_alone(engine: Engine, creditors: Creditors) -> None:
    lents = [Lent(engine, "a", 5), Lent(engine, "b", 6)]
    creditors.add("x")
    creditors.add("y")
    runner = creditors.runner()
    both = lents[0].step(), lents[1].step()
    before = run(runner, *both)
    revoked = threading.Event()
    engine.peers.creditors["x"].registry.revoke(lents[0].remote[0].span, revoked.set)
    assert revoked.is_set(), "nobody reads it right now"
    lost, kept = run(runner, *both, step_id=2)
    assert (lost.status, lost.lost) == ("lost", ("x",))
    assert kept == before[1]
    assert run(runner, lents[1].step(), step_id=3) == (before[1],)


def test_queries_larger_than_a_frame_may_be_lose_their_sequence_alone(
    engine: Engine, creditors: Creditors, monkeypatch: pytest.MonkeyPatch
) -> None:
    lents = [Lent(engine, "a", 5), Lent(engine, "b", 6)]
    creditors.add("x")
    creditors.add("y")
    runner = creditors.runner()
    (expected,) = run(runner, lents[1].step())
    monkeypatch.setattr(frames, "MAX_BODY_BYTES", 4000)
    own = engine.table(8)
    engine.chunked_logits(lents[0].ids[:6], [6], own)
    lost, kept = run(
        runner, lents[0].step(40, 50), seq_step(lents[0].ids, 6, 7, own, name="own", sample=SAMPLE), step_id=2
    )
    assert (lost.status, kept.status) == ("lost", "ok")
    assert run(runner, lents[1].step(), step_id=3) == (expected,)


@pytest.mark.parametrize("ending", ["close", "abort"])
def test_a_creditor_that_ends_in_the_middle_of_a_step_is_lost(
    engine: Engine, creditors: Creditors, ending: str
) -> None:
    def serve(link: TensorLink) -> None:
        for _ in range(2):
            link.recv(DEADLINE_S)
        getattr(link, ending)()

    lent = Lent(engine)
    creditors.add("x", serve)
    creditors.add("y")
    (result,) = run(creditors.runner(), lent.step())
    assert (result.status, result.lost) == ("lost", ("x",))


def test_a_creditor_that_does_not_answer_is_lost(engine: Engine, creditors: Creditors) -> None:
    is_over = threading.Event()
    lent = Lent(engine)
    creditors.add("x", lambda link: assert_waited(is_over))
    creditors.add("y", lambda link: assert_waited(is_over))
    (result,) = run(creditors.runner(timeout_s=0.05), lent.step())
    is_over.set()
    assert (result.status, result.lost) == ("lost", ("x", "y"))


def assert_waited(event: threading.Event) -> None:
    assert event.wait(DEADLINE_S)


def answer_empty(
    engine: Engine,
    link: TensorLink,
    before: Callable[[Attend], Any],
    stale: tuple[int, ...] = (),
    stale_from: int = 1,
) -> None:
    """Serve one plan with empty partials; `before` is called with each layer's queries. stale: entries that are, from
    this layer on."""
    heads = engine.model.heads
    plan, _ = link.recv(DEADLINE_S)
    assert isinstance(plan, AttendPlan)
    rows = sum(entry.num_rows for entry in plan.entries)
    out, lse = empty_partial(rows, heads.queries, heads.dim)
    for _ in range(engine.model.config.num_layers):
        attend, _ = link.recv(DEADLINE_S)
        assert isinstance(attend, Attend)
        before(attend)
        answer = Partials(step_id=plan.step_id, layer=attend.layer, stale=stale if attend.layer >= stale_from else ())
        link.send(answer, body_of(out), body_of(lse))


@pytest.mark.parametrize(("start", "end"), [(49, 50), (44, 50)])
def test_all_creditors_compute_a_layer_at_once(engine: Engine, creditors: Creditors, start: int, end: int) -> None:
    """Of decodes as of chunks: each of them answers only when all have their queries."""
    lent = Lent(engine)
    everybody = threading.Barrier(2, timeout=DEADLINE_S)
    for name in ("x", "y"):
        creditors.add(name, lambda link: answer_empty(engine, link, lambda _: everybody.wait()))
    (result,) = run(creditors.runner(), lent.step(start, end))
    assert result.status == "ok" and not everybody.broken


def test_partials_that_are_stale_lose_their_sequence_alone(engine: Engine, creditors: Creditors) -> None:
    lents = [Lent(engine, "a", 5), Lent(engine, "b", 6)]
    creditors.add("x", lambda link: answer_empty(engine, link, lambda _: None, stale=(1,)))
    creditors.add("y")
    kept, lost = run(creditors.runner(), lents[0].step(), lents[1].step())
    assert (kept.status, lost.status, lost.lost) == ("ok", "lost", ("x",))


@pytest.mark.parametrize("is_whole", [True, False], ids=["all layers", "each layer"])
@pytest.mark.parametrize("layer", ["first", "last"])
def test_a_step_goes_on_from_a_layer_that_came_to_something_else(
    engine: Engine, creditors: Creditors, monkeypatch: pytest.MonkeyPatch, layer: str, is_whole: bool
) -> None:
    """What such a layer and those behind it come to is what they come to frame by frame."""
    if not is_whole:
        layer_by_layer(monkeypatch)
    lents = [Lent(engine, "a", 5), Lent(engine, "b", 6)]
    stale_from = 0 if layer == "first" else engine.model.config.num_layers - 1
    creditors.add("x", lambda link: answer_empty(engine, link, lambda _: None, stale=(1,), stale_from=stale_from))
    creditors.add("y")
    steps = [lent.step(48, 50, sample=SAMPLE) for lent in lents]
    expected = by_frames(engine, creditors, monkeypatch, *steps)
    found = run(creditors.runner(), *steps)
    assert [one.status for one in found] == ["ok", "lost"]
    assert found == expected and found[0].logprobs is not None


def test_partials_of_another_layer_end_the_link(engine: Engine, creditors: Creditors) -> None:
    heads = engine.model.heads

    def serve(link: TensorLink) -> None:
        plan, _ = link.recv(DEADLINE_S)
        assert isinstance(plan, AttendPlan)
        link.recv(DEADLINE_S)
        rows = sum(entry.num_rows for entry in plan.entries)
        out, lse = empty_partial(rows, heads.queries, heads.dim)
        link.send(Partials(step_id=plan.step_id, layer=1), body_of(out), body_of(lse))

    lent = Lent(engine)
    creditors.add("x", serve)
    creditors.add("y")
    (result,) = run(creditors.runner(), lent.step())
    assert (result.status, result.lost) == ("lost", ("x",))


def test_a_peer_that_repeats_its_plan_is_served_as_before(engine: Engine, creditors: Creditors) -> None:
    """Queries of a layer again, after the last one, are served frame by frame."""
    lent = Lent(engine)
    creditors.add("x")
    creditors.add("y")
    runner = creditors.runner()
    before = run(runner, lent.step())
    peers: Any = runner._peers
    link = peers.creditor("x")
    queries = torch.ones(link.plan.num_rows, engine.model.heads.queries, engine.model.heads.dim)
    link._lost = [set()]
    link.send(1, queries)
    assert link.collect(1, 0.0) is not None
    assert run(runner, lent.step(), step_id=2) == before
