"""Steps computed in two microbatches: which rows are in which, and that nothing else changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from distkv.engine.step.batch import PlannedSeq
from distkv.engine.step.microbatches import Cuts, cut_in_two
from distkv.token_ids import unpack
from distkv.wire.messages.common import Run
from distkv.wire.messages.from_worker import SeqResult
from distkv.wire.messages.to_worker import PromptLogprobs, Sampling, SeqStep
from tests.checkpoints import check_logprobs, prompt_ids, reference_greedy, reference_logits, variant
from tests.engine.async_device import AsyncHost
from tests.engine.harness import GREEDY, Engine, seq_step
from tests.engine.lent import Lent
from tests.token_ids import packed


def planned(*sizes: int) -> list[PlannedSeq]:
    """Sequences of so many rows each, from position 10 on."""
    ids = tuple(range(100))
    steps = [seq_step(ids, 10, 10 + size, (Run(0, 0, 9),), name=str(n), sample=GREEDY) for n, size in enumerate(sizes)]
    return [PlannedSeq(step, unpack(step.tokens)) for step in steps]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([1], [[("0", 10, 11)]]),
        ([1, 1], [[("0", 10, 11)], [("1", 10, 11)]]),
        ([1, 1, 1], [[("0", 10, 11)], [("1", 10, 11), ("2", 10, 11)]]),
        ([6], [[("0", 10, 13)], [("0", 13, 16)]]),
        ([1, 7, 2], [[("0", 10, 11), ("1", 10, 14)], [("1", 14, 17), ("2", 10, 12)]]),
    ],
)
def test_microbatches_have_as_many_rows(sizes: list[int], expected: list[list[tuple[str, int, int]]]) -> None:
    found = cut_in_two(planned(*sizes))
    assert [[(one.step.request_id, one.step.start, one.step.end) for one in part] for part in found] == expected
    for part in found:
        for one in part:
            step = one.step
            assert list(one.tokens) == list(range(step.start, step.end))
            assert (step.sample is not None) == (step.end == 10 + sizes[int(step.request_id)])


@pytest.mark.parametrize(
    ("first", "count", "before", "after"),
    [
        (11, 6, (11, 4), (15, 2)),
        (11, 4, (11, 4), None),
        (14, 1, (14, 1), None),
        (15, 2, None, (15, 2)),
        (13, 3, (13, 2), (15, 1)),
    ],
)
def test_logprobs_are_wanted_of_the_microbatch_that_predicts(
    first: int, count: int, before: tuple[int, int] | None, after: tuple[int, int] | None
) -> None:
    """Rows [10, 14) predict positions up to 14."""
    wanted = PromptLogprobs(first=first, token_ids=packed(*range(first, first + count)), top=2)
    step = seq_step(range(100), 10, 18, (Run(0, 0, 9),), prompt_logprobs=wanted)
    found = [part[0].step.prompt_logprobs for part in cut_in_two([PlannedSeq(step, unpack(step.tokens))])]
    for one, expected in zip(found, (before, after), strict=True):
        assert (one and (one.first, one.num_tokens)) == expected
        assert one is None or one.token_ids == packed(*range(one.first, one.first + one.num_tokens))


@pytest.mark.parametrize(
    ("rows", "computed_s", "waited_s", "pays"),
    [
        (200, 0.010, 0.050, False),  # each half reads the weights as the whole does
        (256, 0.010, 0.050, False),
        (300, 0.010, 0.009, True),  # halves take 17.1 ms, and 8.5 of 9 ms of waiting go
        (300, 0.010, 0.005, False),
        (400, 0.010, 0.004, True),
        (400, 0.010, 0.002, False),
        (600, 0.010, 0.001, True),
        (600, 0.010, 0.0, False),
    ],
)
def test_a_step_is_cut_where_what_it_waits_is_more_than_weights_read_twice(
    rows: int, computed_s: float, waited_s: float, pays: bool
) -> None:
    cuts = Cuts()
    assert not cuts.pay(rows), "nothing is known yet"
    for _ in range(3):
        cuts.took(rows, computed_s, waited_s)
    cuts.took(rows, 100.0, 100.0)  # the machine did something else
    assert cuts.pay(rows) == pays
    assert not cuts.pay(4 * rows), "another size"


def test_now_and_then_a_step_is_left_whole() -> None:
    cuts = Cuts()
    cuts.took(600, 0.01, 0.01)
    assert [cuts.pay(600) for _ in range(34)].count(False) == 2
    cuts.took(600, 0.01, 0.0)
    cuts.took(600, 0.01, 0.0)
    assert not any(cuts.pay(600) for _ in range(34))


def test_steps_of_a_gpu_are_measured_and_cut(path: Path) -> None:
    """Two sequences of which one has keys at creditors; 302 rows, more than the ridge."""
    device = AsyncHost()
    engine = Engine(path, device=device, num_slots=256)
    lent, other = Lent(engine), engine.table(300)
    # The halves are 151 rows each: who asks is in the second one.
    steps = seq_step(prompt_ids(300), 0, 300, other, name="long", sample=GREEDY), lent.step()
    creditors = [engine.peers.creditors[name] for name in "xy"]
    expected = engine.run(*steps)
    assert {index for one in creditors for index in one.microbatches} == {0}
    assert engine.runner._cuts is not None
    for _ in range(2):
        engine.runner._cuts.took(302, 0.01, 0.05)
    found = engine.run(*steps)
    assert {index for one in creditors for index in one.microbatches} == {0, 1}
    assert [one.token for one in found] == [one.token for one in expected]


def batch(engine: Engine) -> list[SeqStep]:
    """Three sequences with spans on peers and one without: 10 rows, so one of them is cut."""
    ids = prompt_ids(12, seed=8)
    sampled = Sampling(temperature=1.2, top_k=0, top_p=0.9, seed=3, logprobs=2)
    return [
        Lent(engine, "a").step(),
        seq_step(ids, 0, 2, engine.table(12), name="local", sample=GREEDY),
        Lent(engine, "b", seed=6).step(46, 50, sample=sampled),
        Lent(engine, "c", seed=7).step(),
    ]


def run(path: Path, microbatches: int, fail_at: tuple[str, int] | None = None, microbatch: int | None = None) -> Engine:
    engine = Engine(path, num_slots=128, microbatches=microbatches)
    steps = batch(engine)
    creditor = engine.peers.creditors["x"]
    creditor.fail_at, creditor.fail_microbatch = fail_at, microbatch
    creditor.calls.clear()
    creditor.microbatches.clear()
    engine.results = engine.run(*steps)
    return engine


@pytest.fixture(scope="module", params=["llama", "mistral-window"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return variant(tmp_path_factory.mktemp("checkpoint"), request.param)


def test_two_microbatches_find_what_one_step_finds(path: Path) -> None:
    whole, cut = run(path, 1), run(path, 2)
    assert [result.status for result in cut.results] == ["ok"] * 4
    assert [result.token for result in cut.results] == [result.token for result in whole.results]
    assert whole.results[3].token == int(reference_logits(path, prompt_ids(50, 7))[-1].argmax())
    ours, theirs = cut.results[2].logprobs, whole.results[2].logprobs
    assert ours is not None and theirs is not None
    assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-4) and ours.rank == theirs.rank


def test_one_waits_while_the_other_computes(tmp_path: Path) -> None:
    """A microbatch has sent its queries before the partials of the other are waited for."""
    path = variant(tmp_path, "llama")
    creditor = run(path, 2).peers.creditors["x"]
    layers = creditor.engine.model.config.num_layers
    turns = list(zip(creditor.calls, creditor.microbatches, strict=True))
    assert [turn for turn in turns if turn[0][0] == "send"] == [
        (("send", layer), microbatch) for layer in range(layers) for microbatch in (0, 1)
    ]
    for layer in range(layers):
        assert turns.index((("send", layer), 1)) < turns.index((("collect", layer), 0))
    assert set(run(path, 1).peers.creditors["x"].microbatches) == {0}


@pytest.mark.parametrize("fault", [("plan", 0), ("send", 0), ("collect", 1)], ids=str)
@pytest.mark.parametrize("microbatch", [0, 1])
def test_a_creditor_lost_in_one_microbatch(tmp_path: Path, fault: tuple[str, int], microbatch: int) -> None:
    """Lost are the sequences that have rows in that microbatch: `b` has in both."""
    path = variant(tmp_path, "llama")
    results = run(path, 2, fault, microbatch).results
    fine = {result.request_id: result.token for result in run(path, 1).results}
    hit = {0: {"a", "b"}, 1: {"b", "c"}}[microbatch]
    for result in results:
        if result.request_id in hit:
            assert (result.status, result.lost, result.token) == ("lost", ("x",), None)
        else:
            assert (result.status, result.token) == ("ok", fine[result.request_id])


def test_an_unreachable_creditor_loses_in_both(path: Path) -> None:
    engine = Engine(path, num_slots=128, microbatches=2)
    steps = batch(engine)
    del engine.peers.creditors["y"]
    results = engine.run(*steps)
    assert [result.status for result in results] == ["lost", "ok", "lost", "lost"]
    assert results[0] == SeqResult(request_id="a", attempt=0, status="lost", lost=("y",))


def test_a_cut_prompt_and_its_logprobs(tmp_path: Path) -> None:
    """The second microbatch attends to keys that the first one stores in the same step."""
    path = variant(tmp_path, "llama")
    engine = Engine(path, num_slots=128, microbatches=2)
    lent = Lent(engine)
    wanted = PromptLogprobs(first=29, token_ids=packed(*lent.ids[29:37]), top=1)
    (result,) = engine.run(lent.step(28, 36, prompt_logprobs=wanted))
    logits = reference_logits(path, lent.ids)
    assert result.token == int(logits[35].argmax())
    assert len(result.prompt_logprobs) == 8
    for position, found in enumerate(result.prompt_logprobs, 29):
        check_logprobs(found, logits[position - 1], lent.ids[position], 1)


def test_local_steps_stay_whole(path: Path) -> None:
    engine = Engine(path, microbatches=2)
    ids = prompt_ids(20)
    assert (
        engine.run(seq_step(ids, 0, 20, engine.table(20), sample=GREEDY))[0].token == reference_greedy(path, ids, 1)[0]
    )
