"""StepRunner: penalties, which need all tokens of a request, and logprobs, whatever way a request is computed."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from distkv.engine.sampling import logprobs
from distkv.errors import MalformedMessage
from distkv.wire.messages.from_worker import SeqResult
from distkv.wire.messages.to_worker import PromptLogprobs, Sampling
from tests.checkpoints import check_logprobs, prompt_ids, reference_logits, reference_penalized, variant
from tests.engine.harness import GREEDY, Engine, seq_step, without
from tests.token_ids import packed

PROMPT = prompt_ids(30)
COUNT = 24


def reference(path: Path, sampling: Sampling) -> list[int]:
    return reference_penalized(path, PROMPT, COUNT, sampling)


def greedy(**fields: Any) -> Sampling:
    return structs.replace(GREEDY, prompt_tokens=len(PROMPT), **fields)


SETTINGS = [
    greedy(repetition_penalty=1.9),
    greedy(frequency_penalty=1.2),
    greedy(presence_penalty=2.0),
    greedy(logit_bias={7: 6.5, 8: 6.0, 9: -100.0}),
    greedy(logit_bias={7: 20.0, 8: 18.5}, presence_penalty=1.0, frequency_penalty=0.3, repetition_penalty=1.1),
    greedy(allowed_token_ids=tuple(range(40, 140))),
    greedy(allowed_token_ids=tuple(range(40, 140)), forbidden_token_ids=tuple(range(40, 140, 3))),
]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return variant(tmp_path_factory.mktemp("checkpoint"), "llama")


@pytest.fixture
def engine(path: Path) -> Engine:
    return Engine(path, num_slots=128)


def token_of(result: SeqResult) -> int:
    assert result.status == "ok" and result.token is not None
    return result.token


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_is_no_number_fails_its_own_sequence(engine: Engine, temperature: float) -> None:
    """The embedding of one token is none: who ends with it gets no token, and nobody else is any worse."""
    sampling = structs.replace(GREEDY, temperature=temperature, prompt_tokens=3)
    good, bad = (5, 6, 7), (5, 6, 9)
    expected = token_of(engine.run(seq_step(good, 0, 3, engine.table(8), sample=sampling))[0])
    engine.model.weights.embed[9] = float("nan")
    first = seq_step(bad, 0, 3, engine.table(8), name="bad", sample=sampling)
    second = seq_step(good, 0, 3, engine.table(8), name="good", sample=sampling)
    faulty, sound = engine.run(first, second)
    assert faulty.is_fault and "no finite numbers" in faulty.problem
    assert (sound.token, sound.problem, sound.is_fault) == (expected, "", False)
    # A step sent ahead of that news goes on with some token of the vocabulary.
    ahead = seq_step((), 3, 4, engine.table(8), name="bad", sample=sampling)
    assert token_of(engine.run(ahead)[0]) < engine.model.config.vocab_size


def test_logprobs_of_a_prompt_that_are_no_numbers_are_a_fault(engine: Engine) -> None:
    """Also of a chunk that nothing is sampled from."""
    engine.model.weights.embed[9] = float("nan")
    wanted = PromptLogprobs(first=1, token_ids=packed(6, 9, 7), top=2)
    (faulty,) = engine.run(seq_step((5, 6, 9), 0, 3, engine.table(8), prompt_logprobs=wanted))
    assert faulty.is_fault and "no finite numbers" in faulty.problem


@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
def test_penalties_are_those_of_transformers(engine: Engine, path: Path, sampling: Sampling) -> None:
    """Steps sent ahead: no step after the prompt brings a token. Chunks and a second request between change nothing."""
    table, other = engine.table(60), engine.table(60)
    engine.run(seq_step(PROMPT, 0, 17, table, history=True))
    first = seq_step(PROMPT, 17, 30, table, history=True, sample=sampling)
    (result,) = engine.run(first)
    tokens = [token_of(result)]
    engine.run(seq_step([5], 0, 1, other, name="other", history=True, sample=sampling))
    for end in range(31, 30 + COUNT):
        ahead = seq_step((), end - 1, end, table, history=True, sample=sampling)
        tokens.append(token_of(engine.run(ahead)[0]))
    assert tokens == reference(path, sampling)
    plain = reference(path, greedy())
    assert tokens != plain, "the setting makes a difference"


def test_bad_words_are_those_of_transformers(engine: Engine, path: Path) -> None:
    """What the plain output has in its middle, in steps that run ahead of the tokens that it is made of."""
    plain = reference(path, greedy())
    sampling = greedy(bad_words=((plain[5], plain[6]), tuple(plain[8:11]), (plain[0], plain[0], plain[0])))
    table = engine.table(60)
    steps = [seq_step(PROMPT, 0, 30, table, history=True, sample=sampling)]
    steps += [seq_step((), end - 1, end, table, history=True, sample=sampling) for end in range(31, 30 + COUNT)]
    tokens = [token_of(engine.run(step)[0]) for step in steps]
    assert tokens == reference(path, sampling) != plain


def test_a_history_is_whole_again_after_a_rebuild(engine: Engine, path: Path) -> None:
    """A step is lost with its creditor, a new attempt rebuilds its range, then the request starts over elsewhere."""
    sampling = SETTINGS[4]
    expected = reference(path, sampling)
    table = engine.table(60)
    ids = [*PROMPT, token_of(engine.run(seq_step(PROMPT, 0, 30, table, history=True, sample=sampling))[0])]
    for end in range(31, 36):
        ids.append(token_of(engine.run(seq_step(ids, end - 1, end, table, history=True, sample=sampling))[0]))
    engine.add_creditor("x")
    span = engine.lend("x", table, 1, 4)
    local = without(table, 1, 4)
    engine.peers.creditors["x"].fail_at = ("collect", 1)
    lost = seq_step(ids, 35, 36, local, remote=(span,), history=True, sample=sampling)
    assert engine.run(lost)[0].status == "lost"
    assert engine.run(seq_step((), 36, 37, local, remote=(span,), history=True, sample=sampling))[0].status == "void"
    engine.run(seq_step(ids, 4, 20, table, attempt=1, history=True))
    ids.append(token_of(engine.run(seq_step(ids, 35, 36, table, attempt=1, history=True, sample=sampling))[0]))
    assert ids[30:] == expected[:7]

    again = engine.table(60)
    for start, end in [(0, 9), (9, 33)]:
        engine.run(seq_step(ids, start, end, again, attempt=2, history=True))
    ids.append(token_of(engine.run(seq_step(ids, 33, 37, again, attempt=2, history=True, sample=sampling))[0]))
    for end in range(38, 30 + COUNT):
        ahead = seq_step((), end - 1, end, again, attempt=2, history=True, sample=sampling)
        ids.append(token_of(engine.run(ahead)[0]))
    assert ids[30:] == expected


def test_another_request_of_the_same_name_has_its_own_history(engine: Engine, path: Path) -> None:
    longer = prompt_ids(40, seed=9)
    engine.run(seq_step(longer, 0, 40, engine.table(40), history=True, sample=SETTINGS[0]))
    result = engine.run(seq_step(PROMPT, 0, 30, engine.table(30), attempt=1, history=True, sample=SETTINGS[0]))[0]
    assert result.token == reference(path, SETTINGS[0])[0]


def test_what_was_forgotten_cannot_go_on(engine: Engine) -> None:
    table = engine.table(60)
    engine.run(seq_step(PROMPT, 0, 20, table, history=True))
    engine.runner.forget(["r"])
    with pytest.raises(MalformedMessage, match="a history of 0 tokens cannot go on at 20"):
        engine.run(seq_step(PROMPT, 20, 30, table, history=True))


# --- logprobs


def test_logprobs_are_of_raw_logits(engine: Engine, path: Path) -> None:
    """Whatever chooses the token; and only for the sequence that asks."""
    sampling = Sampling(
        temperature=1.7, top_k=9, top_p=0.8, seed=4, min_p=0.01, logit_bias={7: 50.0}, presence_penalty=1.0, logprobs=5
    )
    asking, silent = engine.run(
        seq_step(PROMPT, 0, 30, engine.table(30), history=True, sample=sampling),
        seq_step(PROMPT, 0, 30, engine.table(30), name="silent", sample=GREEDY),
    )
    assert asking.logprobs is not None and asking.token == 7
    check_logprobs(asking.logprobs, reference_logits(path, PROMPT)[-1], 7, 5)
    assert silent.logprobs is None and silent.prompt_logprobs == asking.prompt_logprobs == ()


def predicted(ids: Sequence[int], start: int, end: int, top: int = 3) -> PromptLogprobs:
    """All that a chunk of a prompt predicts."""
    last = min(end + 1, len(ids))
    return PromptLogprobs(first=start + 1, token_ids=packed(*ids[start + 1 : last]), top=top)


@pytest.mark.parametrize("chunks", [(30,), (1, 29), (13, 4, 13), (29, 1)], ids=str)
def test_prompt_logprobs_however_the_prompt_is_cut(
    engine: Engine, path: Path, chunks: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logprobs, "ROWS_AT_ONCE", 8)
    table, found = engine.table(40), []
    ends = list(itertools.accumulate(chunks))
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        step = seq_step(
            PROMPT,
            start,
            end,
            table,
            sample=GREEDY if end == 30 else None,
            prompt_logprobs=predicted(PROMPT, start, end),
        )
        found.extend(engine.run(step)[0].prompt_logprobs)
    logits = reference_logits(path, PROMPT)
    assert len(found) == 29
    for position, one in enumerate(found, 1):
        check_logprobs(one, logits[position - 1], PROMPT[position], 3)


def test_prompt_logprobs_of_some_sequences_of_a_batch_with_remote_spans(engine: Engine, path: Path) -> None:
    ids = prompt_ids(40, seed=2)
    table = engine.table(40)
    engine.run(seq_step(ids, 0, 24, table, name="spread"))
    engine.add_creditor("x")
    span = engine.lend("x", table, 1, 4)
    results = engine.run(
        seq_step(PROMPT, 0, 30, engine.table(30), name="silent", sample=GREEDY),
        seq_step(
            ids, 24, 40, without(table, 1, 4), name="spread", remote=(span,), sample=GREEDY,
            prompt_logprobs=PromptLogprobs(first=30, token_ids=packed(*ids[30:40]), top=1),
        ),
        seq_step(PROMPT, 0, 9, engine.table(9), name="whole", prompt_logprobs=predicted(PROMPT, 0, 9)),
    )  # fmt: skip
    assert [len(result.prompt_logprobs) for result in results] == [0, 10, 9]
    for position, one in enumerate(results[1].prompt_logprobs, 30):
        check_logprobs(one, reference_logits(path, ids)[position - 1], ids[position], 1)
    check_logprobs(results[2].prompt_logprobs[-1], reference_logits(path, PROMPT)[8], PROMPT[9], 3)
    assert results[0].token == int(reference_logits(path, PROMPT)[-1].argmax())


def test_a_lost_sequence_tells_nothing(engine: Engine) -> None:
    table = engine.table(40)
    engine.run(seq_step(PROMPT, 0, 20, table))
    engine.add_creditor("x")
    span = engine.lend("x", table, 0, 2)
    engine.peers.creditors["x"].fail_at = ("collect", 1)
    step = seq_step(
        PROMPT, 20, 30, without(table, 0, 2), remote=(span,), sample=GREEDY, prompt_logprobs=predicted(PROMPT, 20, 30)
    )
    other = seq_step(PROMPT, 0, 9, engine.table(9), name="whole", prompt_logprobs=predicted(PROMPT, 0, 9))
    lost, whole = engine.run(step, other)
    assert (lost.status, lost.prompt_logprobs) == ("lost", ())
    assert len(whole.prompt_logprobs) == 9


@pytest.mark.parametrize(("first", "count"), [(10, 1), (21, 11)])
def test_logprobs_of_what_a_step_does_not_predict_are_refused(engine: Engine, first: int, count: int) -> None:
    table = engine.table(40)
    engine.run(seq_step(PROMPT, 0, 10, table))
    wanted = PromptLogprobs(first=first, token_ids=packed(*(1,) * count), top=0)
    with pytest.raises(MalformedMessage, match="predicts no positions"):
        engine.run(seq_step(PROMPT, 10, 30, table, prompt_logprobs=wanted))
