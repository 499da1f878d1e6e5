"""Steps that are begun while the one before is under way: they take its tokens where they are sampled."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec import structs

from distkv.engine.step.runner import Begun, StepRunner
from distkv.wire.messages.from_worker import SeqResult
from distkv.wire.messages.to_worker import RemoteSpan, Sampling, SeqStep, Step
from tests.checkpoints import prompt_ids, reference_greedy
from tests.engine.async_device import AsyncHost
from tests.engine.harness import GREEDY, Engine, seq_step

DRAWN = Sampling(temperature=1.1, top_k=30, top_p=0.9, seed=7)


def ahead(runner: StepRunner, steps: Sequence[Step]) -> list[tuple[SeqResult, ...]]:
    """Results of steps each of which is begun before the one before is finished."""
    results, before = [], None
    for step in steps:
        if before is None:
            before = runner.begin(step)
            continue
        assert runner.may_follow(step, before)
        begun = runner.begin(step, before)
        results.append(runner.finish(before))
        before = begun
    assert before is not None
    return [*results, runner.finish(before)]


def steps_of(engine: Engine, tags: str = "") -> list[Step]:
    """Prompts that come one after another, in chunks and whole, decodes in changing order, and one that pauses."""
    prompts = {name: prompt_ids(length, seed) for seed, (name, length) in enumerate([("a", 9), ("b", 30), ("c", 1)])}
    tables = {name: engine.table(60) for name in prompts}
    sampling = {"a": GREEDY, "b": GREEDY, "c": DRAWN}

    def prompt(name: str, start: int, end: int) -> SeqStep:
        ids = prompts[name]
        sample = sampling[name] if end == len(ids) else None
        return seq_step(ids, start, end, tables[name], name=name + tags, sample=sample)

    def decode(name: str, count: int) -> SeqStep:
        end = len(prompts[name]) + count
        return seq_step((), end - 1, end, tables[name], name=name + tags, sample=sampling[name])

    parts: list[list[SeqStep]] = [
        [prompt("a", 0, 9)],
        [decode("a", 1), prompt("b", 0, 13)],
        [decode("a", 2), prompt("b", 13, 30), prompt("c", 0, 1)],
        [decode("c", 1), decode("b", 1), decode("a", 3)],
        [decode("c", 2), decode("b", 2)],
        [decode("a", 4), decode("b", 3), decode("c", 3)],
        [decode("a", 5), decode("b", 4), decode("c", 4)],
        [decode("a", 6), decode("b", 5), decode("c", 5)],
    ]
    return [Step(step_id=number, seqs=tuple(seqs)) for number, seqs in enumerate(parts, 1)]


def tokens(results: Sequence[tuple[SeqResult, ...]], name: str) -> list[int]:
    return [one.token for step in results for one in step if one.request_id == name and one.token is not None]


def test_tokens_are_those_of_steps_that_wait(engine: Engine, path: Path) -> None:
    found = ahead(engine.runner, steps_of(engine))
    other = Engine(path, num_slots=128, device=AsyncHost())
    assert found == [other.runner.run(step) for step in steps_of(other)]
    assert tokens(found, "a") == reference_greedy(path, prompt_ids(9, 0), 7)
    assert tokens(found, "b") == reference_greedy(path, prompt_ids(30, 1), 6)


def test_one_that_pauses_takes_its_token_from_the_host(engine: Engine, path: Path) -> None:
    """The step in between has ended by then, the one that sampled for it too."""
    ids = prompt_ids(12, 4)
    table, other = engine.table(40), engine.table(40)
    first = seq_step(ids, 0, 12, table, sample=GREEDY)
    between = seq_step(prompt_ids(5, 5), 0, 5, other, name="between", sample=GREEDY)
    then = seq_step((), 12, 13, table, sample=GREEDY)
    results = ahead(engine.runner, [Step(step_id=n, seqs=(seq,)) for n, seq in enumerate((first, between, then), 1)])
    assert [step[0].token for step in (results[0], results[2])] == reference_greedy(path, ids, 2)


def test_decodes_in_the_same_order_need_no_copy(engine: Engine, device: AsyncHost) -> None:
    steps = steps_of(engine)
    before = engine.runner.begin(steps[0])
    copies = []
    for step in steps[1:]:
        copies.append(-device.copies_in)
        begun = engine.runner.begin(step, before)
        copies[-1] += device.copies_in
        engine.runner.finish(before)
        before = begun
    # The last two: the rows, and what "c" is drawn by. In another order tokens are looked up besides; block tables are
    # there since the prompts, and blocks that are new come with the rows.
    assert copies[-2:] == [2, 2] and copies[2] == 3


def _begun(engine: Engine, seq: SeqStep) -> Begun:
    return engine.runner.begin(Step(step_id=1, seqs=(seq,)))


REMOTE = {"remote": (RemoteSpan("x", None, 0, 0, 1),)}


@pytest.mark.parametrize(
    "fields",
    [REMOTE, {"history": True}, {"sample": structs.replace(GREEDY, grammar_id=0)}],
    ids=["remote", "history", "grammar"],
)
def test_what_the_host_has_to_see_is_waited_for(engine: Engine, fields: dict[str, object]) -> None:
    plain = seq_step(prompt_ids(5), 0, 5, engine.table(5), sample=GREEDY)
    special = structs.replace(plain, **fields)
    begun = _begun(engine, plain)
    assert engine.runner.may_follow(Step(step_id=2, seqs=(plain,)), begun)
    assert not engine.runner.may_follow(Step(step_id=2, seqs=(plain, special)), begun)
    engine.runner.finish(begun)
    begun.step = Step(step_id=1, seqs=(special,))
    assert not engine.runner.may_follow(Step(step_id=2, seqs=(plain,)), begun)


def test_a_host_computes_one_after_the_other(path: Path) -> None:
    engine = Engine(path)
    plain = seq_step(prompt_ids(5), 0, 5, engine.table(5), sample=GREEDY)
    begun = _begun(engine, plain)
    assert begun.is_done and not engine.runner.may_follow(Step(step_id=2, seqs=(plain,)), begun)
