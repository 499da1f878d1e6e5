"""StepRunner: batches, steps that run ahead, remote spans, and losses that stay where they belong."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from distkv.engine.model.decoder import Model
from distkv.errors import MalformedMessage
from distkv.wire.messages.common import Run, SpanRef
from distkv.wire.messages.from_worker import SeqResult
from distkv.wire.messages.to_worker import RemoteSpan, Sampling, SeqStep
from tests.checkpoints import prompt_ids, reference_greedy, reference_logits, variant
from tests.engine.harness import GREEDY, Engine, seq_step
from tests.engine.lent import Lent

ATOL = 1e-4
PROMPT = prompt_ids(50)


@pytest.fixture(scope="module", params=[("llama", None), ("mistral-window", 40)], ids=str)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    name, window = request.param
    return variant(tmp_path_factory.mktemp("checkpoint"), name, sliding_window=window)


@pytest.fixture
def engine(path: Path) -> Engine:
    return Engine(path, num_slots=128)


def generate(engine: Engine, ids: Sequence[int], table: tuple[Run, ...], count: int, name: str = "r") -> list[int]:
    """Greedy tokens after `ids`, by steps sent ahead: no step after the first holds a token."""
    steps = [seq_step(ids, 0, len(ids), table, name=name, sample=GREEDY)]
    steps += [
        seq_step((), end - 1, end, table, name=name, sample=GREEDY) for end in range(len(ids) + 1, len(ids) + count)
    ]
    return [token for step in steps if (token := engine.run(step)[0].token) is not None]


def test_steps_sent_ahead_fill_in_the_token(engine: Engine, path: Path) -> None:
    assert generate(engine, PROMPT, engine.table(70), 20) == reference_greedy(path, PROMPT, 20)


def test_a_mixed_batch_equals_single_runs(engine: Engine, path: Path) -> None:
    """Decode, a first chunk, a later chunk and a one-token prompt in one step."""
    prompts = {
        name: prompt_ids(length, seed)
        for seed, (name, length) in enumerate([("a", 30), ("b", 41), ("c", 1), ("d", 23)])
    }
    tables = {name: engine.table(60, scattered=name == "b") for name in prompts}
    engine.run(
        seq_step(prompts["a"], 0, 30, tables["a"], name="a", sample=GREEDY),
        seq_step(prompts["b"], 0, 13, tables["b"], name="b"),
    )
    results = engine.run(
        seq_step((), 30, 31, tables["a"], name="a", sample=GREEDY),
        seq_step(prompts["b"], 13, 41, tables["b"], name="b", sample=GREEDY),
        seq_step(prompts["c"], 0, 1, tables["c"], name="c", sample=GREEDY),
        seq_step(prompts["d"], 0, 10, tables["d"], name="d"),
    )
    assert [result.request_id for result in results] == ["a", "b", "c", "d"]
    assert [result.status for result in results] == ["ok"] * 4
    assert [result.token for result in results] == [
        reference_greedy(path, prompts["a"], 2)[1],
        reference_greedy(path, prompts["b"], 1)[0],
        reference_greedy(path, prompts["c"], 1)[0],
        None,
    ]


def test_sampled_tokens_do_not_depend_on_the_batch(engine: Engine) -> None:
    sampling = Sampling(temperature=1.3, top_k=40, top_p=0.95, seed=11)
    alone = engine.run(seq_step(PROMPT, 0, 50, engine.table(50), name="a", sample=sampling))[0].token
    together = engine.run(
        seq_step(PROMPT[:9], 0, 9, engine.table(9), name="b", sample=sampling),
        seq_step(PROMPT, 0, 50, engine.table(50), name="c", sample=sampling),
    )
    assert together[1].token == alone


def test_remote_spans_change_nothing(engine: Engine, path: Path) -> None:
    lent = Lent(engine)
    logits = engine.logits(lent.step())
    torch.testing.assert_close(logits, reference_logits(path, lent.ids)[48:], atol=ATOL, rtol=0)
    one_by_one = torch.cat([engine.logits(lent.step(48, 49)), engine.logits(lent.step(49, 50))])
    torch.testing.assert_close(one_by_one, logits, atol=ATOL, rtol=0)


def test_a_range_before_some_spans_can_be_rebuilt(engine: Engine, path: Path) -> None:
    lent = Lent(engine)
    rebuilt = engine.logits(lent.step(28, 36))
    torch.testing.assert_close(rebuilt, reference_logits(path, lent.ids)[28:36], atol=ATOL, rtol=0)


def test_one_plan_per_creditor_and_step_with_each_row_once(tmp_path: Path) -> None:
    engine = Engine(variant(tmp_path, "llama"), num_slots=128)
    first, second = Lent(engine, "a"), Lent(engine, "b", seed=6)
    ids = prompt_ids(3)
    engine.run(first.step(), seq_step(ids, 0, 3, engine.table(3), name="local"), second.step(49, 50))
    (plan,) = engine.peers.creditors["y"].plans
    assert [(entry.request_id, entry.index, entry.num_blocks, entry.first_position) for entry in plan.entries] == [
        ("a", 0, 2, 20), ("a", 1, 1, 36), ("b", 0, 2, 20), ("b", 1, 1, 36)
    ]  # fmt: skip
    assert [(entry.row, entry.num_rows) for entry in plan.entries] == [(0, 2), (0, 2), (2, 1), (2, 1)]
    assert plan.num_rows == 3
    layers = engine.model.config.num_layers
    assert engine.peers.creditors["y"].calls == [
        ("plan", 0),
        *[(kind, layer) for layer in range(layers) for kind in ("send", "collect")],
    ]
    assert engine.peers.creditors["y"].server.counters.attend_queries == 3 * layers


def test_spans_out_of_every_window_get_no_queries(tmp_path: Path) -> None:
    engine = Engine(variant(tmp_path, "mistral-window", sliding_window=12), num_slots=128)
    lent = Lent(engine)
    engine.run(lent.step())
    assert engine.peers.creditors["x"].calls == []
    assert [entry.first_position for entry in engine.peers.creditors["y"].plans[0].entries] == [36]


FAULTS = [("plan", 0), ("send", 0), ("collect", 0), ("send", 1), ("collect", 1)]


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_lost_creditor_poisons_only_its_sequences(tmp_path: Path, fault: tuple[str, int]) -> None:
    path = variant(tmp_path, "llama")
    engine = Engine(path, num_slots=128)
    hit, spared = Lent(engine, "hit"), Lent(engine, "spared", seed=6)
    only_y = Lent(engine, "y-only", seed=7)
    engine.peers.creditors["x"].fail_at = fault
    # Its blocks on x are recalled first, so that it depends on y alone.
    x_span = only_y.remote[0]
    own = engine.table(x_span.num_blocks * 4)[0].first_slot
    source = engine.peers.creditors["x"]
    with source.registry.pin(x_span.span) as slots:
        assert slots is not None
        for i in range(x_span.num_blocks):
            engine.pool.slot(own + i).copy_(source.engine.pool.slot(slots[x_span.index + i]))
    only_y.remote = only_y.remote[1:]
    only_y.local = tuple(sorted((*only_y.local, Run(1, own, 4)), key=lambda run: run.first_block))
    ids = prompt_ids(20, seed=8)
    results = engine.run(
        hit.step(), only_y.step(), seq_step(ids, 0, 20, engine.table(20), name="local", sample=GREEDY), spared.step()
    )
    assert [result.status for result in results] == ["lost", "ok", "ok", "lost"]
    assert results[0].lost == results[3].lost == ("x",)
    assert results[0].token is None
    assert results[1].token == only_y.expected(path)
    assert results[2].token == reference_greedy(path, ids, 1)[0]
    calls = engine.peers.creditors["x"].calls
    assert calls.index(fault) == len(calls) - 1, "a creditor that failed gets nothing more in that step"


def test_an_unreachable_creditor(engine: Engine, path: Path) -> None:
    lent = Lent(engine)
    gone = engine.peers.creditors.pop("x")
    ids = prompt_ids(20, seed=8)
    results = engine.run(lent.step(), seq_step(ids, 0, 20, engine.table(20), name="local", sample=GREEDY))
    assert results[0] == SeqResult(request_id="r", attempt=0, status="lost", lost=("x",))
    assert results[1].token == reference_greedy(path, ids, 1)[0]
    assert gone.calls == []
    assert engine.run(lent.step(attempt=1)) == (SeqResult(request_id="r", attempt=1, status="lost", lost=("x",)),)


def test_a_stale_span_poisons_only_its_sequence(tmp_path: Path) -> None:
    path = variant(tmp_path, "llama")
    engine = Engine(path, num_slots=128)
    hit, spared = Lent(engine, "hit"), Lent(engine, "spared", seed=6)
    engine.peers.creditors["y"].registry.revoke(hit.remote[2].span, lambda: None)
    results = engine.run(hit.step(), spared.step())
    assert [(result.status, result.lost) for result in results] == [("lost", ("y",)), ("ok", ())]
    assert results[1].token == spared.expected(path)


def test_an_attempt_that_lost_stays_void_until_the_next_one(tmp_path: Path) -> None:
    path = variant(tmp_path, "llama")
    engine = Engine(path, num_slots=128)
    lent = Lent(engine)
    creditor = engine.peers.creditors["x"]
    creditor.fail_at = ("send", 1)
    assert engine.run(lent.step(attempt=3, version=7))[0].status == "lost"
    creditor.fail_at = None
    creditor.calls.clear()
    assert engine.run(lent.step(attempt=3, version=8)) == (SeqResult(request_id="r", attempt=3, status="void"),)
    assert engine.run(lent.step(attempt=2, version=9))[0].status == "void"
    assert creditor.calls == []
    assert engine.run(lent.step(attempt=4, version=7))[0].token == lent.expected(path)
    assert engine.run(lent.step(attempt=3))[0].status == "void"
    engine.runner.forget(["r"])
    assert engine.run(lent.step(attempt=0))[0].status == "ok"


def test_void_steps_may_miss_tokens_that_were_never_sampled(engine: Engine) -> None:
    lent = Lent(engine)
    engine.peers.creditors["x"].fail_at = ("plan", 0)
    engine.run(lent.step())
    ahead = seq_step((), 50, 51, lent.local, remote=lent.remote, sample=GREEDY)
    assert engine.run(ahead)[0].status == "void"


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        (seq_step((), 4, 5, (Run(0, 0, 2),)), "last sampled"),
        (seq_step([1], 0, 9, (Run(0, 0, 3),)), "last sampled"),
        (seq_step([1] * 9, 0, 9, (Run(0, 0, 2),)), "no rBlock for position 8"),
        (seq_step([1] * 9, 0, 9, (Run(0, 0, 1), Run(2, 5, 1))), "no rBlock for position 4"),
        (seq_step([1] * 9, 0, 9, (Run(0, 127, 3),)), "leaves a pool of 128 slots"),
    ],
    ids=["token never sampled", "tokens missing", "table too short", "table with a hole", "table leaves the pool"],
)  # fmt: skip
def test_impossible_steps_are_refused(engine: Engine, step: SeqStep, problem: str) -> None:
    with pytest.raises(MalformedMessage, match=problem):
        engine.run(step)


def test_an_empty_step(engine: Engine) -> None:
    assert engine.run() == ()


def test_the_model_is_shared_by_pools(path: Path) -> None:
    model = Model.load(path)
    first, second = Engine(path, model=model), Engine(path, model=model)
    assert generate(first, PROMPT, first.table(60), 4) == generate(second, PROMPT, second.table(60), 4)


def test_a_span_of_another_epoch_is_stale(engine: Engine) -> None:
    lent = Lent(engine)
    span = lent.remote[0]
    other = SpanRef(span_id=span.span.span_id, epoch=type(span.span.epoch)(2, span.span.epoch.counter))
    lent.remote = (
        RemoteSpan(instance_id="x", span=other, index=span.index, first_block=1, num_blocks=4),
        *lent.remote[1:],
    )
    assert engine.run(lent.step())[0].lost == ("x",)
