from __future__ import annotations

from array import array
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from distkv.engine.sampling.distribution import argmax, choose
from distkv.engine.sampling.draws import Draw, completing, noise, tables_of
from distkv.engine.sampling.history import Histories
from distkv.engine.sampling.seen import SeenTokens
from distkv.wire.messages.to_worker import Sampling
from tests.engine.sampling.by_row import sample, sample_row, sample_rows


def logits(seed: int = 0, size: int = 50) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)) * 2


def on_raw_logits(sampling: Sampling) -> LogitsProcessorList:
    """The processors of transformers, in the order in which `generate` puts them."""
    processors: list[LogitsProcessor] = []
    if sampling.logit_bias:
        processors.append(SequenceBiasLogitsProcessor([[[one], bias] for one, bias in sampling.logit_bias.items()]))
    if sampling.repetition_penalty != 1:
        processors.append(RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    return LogitsProcessorList(processors)


def masks(sampling: Sampling) -> LogitsProcessorList:
    """What may not be chosen. It is to see the output alone."""
    processors: list[LogitsProcessor] = []
    if sampling.allowed_token_ids:
        allowed = list(sampling.allowed_token_ids)
        processors.append(PrefixConstrainedLogitsProcessor(lambda batch, ids: allowed, 1))
    if sampling.forbidden_token_ids:
        processors.append(SuppressTokensLogitsProcessor(sampling.forbidden_token_ids))
    if sampling.bad_words:
        processors.append(NoBadWordsLogitsProcessor([list(word) for word in sampling.bad_words]))
    return LogitsProcessorList(processors)


def warpers(sampling: Sampling) -> LogitsProcessorList:
    """What follows when it samples."""
    processors: list[LogitsProcessor] = []
    if sampling.temperature:
        processors.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        processors.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        processors.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p:
        processors.append(MinPLogitsWarper(sampling.min_p))
    return LogitsProcessorList(processors)


def expected_scores(row: Tensor, sampling: Sampling, history: Tensor) -> Tensor:
    """float64 [vocab]. transformers has no frequency and presence penalties: these follow OpenAI's formula."""
    scores = on_raw_logits(sampling)(history[None], row[None].double())
    for token in (output := history[sampling.prompt_tokens :].tolist()):
        scores[0, token] -= sampling.frequency_penalty
    for token in set(output):
        scores[0, token] -= sampling.presence_penalty
    scores = masks(sampling)(history[None, sampling.prompt_tokens :], scores)
    return warpers(sampling)(history[None], scores)[0]


def sampling_of(temperature: float, seed: int, **fields: Any) -> Sampling:
    return Sampling(**{"temperature": temperature, "top_k": 0, "top_p": 1.0, "seed": seed} | fields)


# Tokens 3 and 4 are in the prompt, 4 and 5 in the output, 5 twice.
HISTORY = torch.tensor([3, 4, 3, 4, 5, 5])
SETTINGS = [
    sampling_of(1.0, 1),
    sampling_of(0.7, 2, top_k=5),
    sampling_of(1.5, 3, top_p=0.8),
    sampling_of(2.0, 4, top_k=20, top_p=0.6),
    sampling_of(1.0, 5, top_k=1),
    sampling_of(1.0, 6, top_k=1000, top_p=0.01),
    sampling_of(1.0, 7, min_p=0.1),
    sampling_of(1.7, 8, min_p=0.3, top_k=30, top_p=0.9),
    sampling_of(1.0, 9, min_p=1.0),
    sampling_of(1.0, 10, repetition_penalty=1.8),
    sampling_of(1.3, 11, repetition_penalty=0.6, top_p=0.9),
    sampling_of(1.0, 12, logit_bias={0: 3.0, 7: -100.0, 4: -1.5}),
    sampling_of(0.9, 13, logit_bias={5: 4.0, 3: 100.0}, repetition_penalty=1.4, min_p=0.05),
    sampling_of(1.0, 14, frequency_penalty=1.5),
    sampling_of(1.0, 15, presence_penalty=-2.0),
    sampling_of(0.8, 16, presence_penalty=1.0, frequency_penalty=-1.0, top_k=40, min_p=0.01),
    sampling_of(1.1, 17, presence_penalty=0.5, frequency_penalty=1.0, repetition_penalty=1.3, logit_bias={5: 6.0}),
]
LIKELY = logits().topk(6).indices.tolist()
SETTINGS += [
    sampling_of(1.0, 18, allowed_token_ids=(*LIKELY[1:4], 4, 5)),
    sampling_of(1.3, 19, forbidden_token_ids=(LIKELY[0], 5), top_k=6, top_p=0.9),
    sampling_of(1.0, 20, bad_words=((5, 5, LIKELY[0]), (4, 5, LIKELY[1]), (5, LIKELY[2]), (3, 5, 5, LIKELY[3]))),
    sampling_of(
        0.9, 21, allowed_token_ids=tuple(LIKELY), forbidden_token_ids=(LIKELY[0],), bad_words=((5, LIKELY[1]),),
        min_p=0.02, repetition_penalty=1.3, logit_bias={LIKELY[0]: 100.0, LIKELY[5]: 3.0},
    ),
]  # fmt: skip
PENALIZED = [sampling for sampling in SETTINGS if sampling.seed >= 10]


@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
def test_tokens_follow_the_distribution_of_transformers(sampling: Sampling) -> None:
    row = logits()
    draws = 2000
    sampling = structs.replace(sampling, prompt_tokens=3)
    expected = expected_scores(row, sampling, HISTORY).softmax(-1)
    samplings = [structs.replace(sampling, seed=seed) for seed in range(draws)]
    drawn = sample_rows(row.expand(draws, -1), samplings, [6] * draws, [HISTORY] * draws)
    counts = drawn.bincount(minlength=len(row))
    assert not counts[expected == 0].any()
    deviation = (expected * (1 - expected) * draws).sqrt()
    assert ((counts - expected * draws).abs() <= 4.5 * deviation + 1e-9).all()


def test_equal_logits_at_the_edge_of_top_k_all_stay() -> None:
    row = torch.tensor([0.0, 1.0, 1.0, 2.0])
    sampling = sampling_of(1.0, 0, top_k=2)
    assert {int(sample(row, sampling, position)) for position in range(200)} == {1, 2, 3}


@pytest.mark.parametrize(("rows", "vocab"), [(0, 64), (9, 97)])
def test_of_equal_logits_the_first_is_the_likeliest(rows: int, vocab: int) -> None:
    numbers = torch.randint(0, 4, (rows, vocab), generator=torch.Generator().manual_seed(vocab)).float()
    first = [row.index(max(row)) for row in numbers.tolist()]
    assert argmax(numbers).tolist() == first


def test_temperature_zero_and_almost_zero_are_greedy() -> None:
    row = logits(3) * 1000
    for temperature in (0.0, 1e-30):
        for position in range(20):
            assert sample(row, sampling_of(temperature, 9), position) == row.argmax()


@pytest.mark.parametrize("sampling", PENALIZED, ids=str)
def test_greedy_honours_penalties_and_bias(sampling: Sampling) -> None:
    sampling = structs.replace(sampling, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, prompt_tokens=3)
    for seed in range(20):
        row = logits(seed)
        # The best two tokens were seen: what changes them changes the choice.
        history = torch.cat([HISTORY, row.topk(2).indices])
        best = tuple(row.topk(3).indices.tolist())
        if sampling.bad_words:
            sampling = structs.replace(sampling, bad_words=((best[1], best[0]), best))
        assert sample(row, sampling, 8, history) == expected_scores(row, sampling, history).argmax()


def test_bad_words_are_those_of_the_output() -> None:
    """The prompt may hold the beginning of one, and one that is longer than the output so far is not complete."""
    row = torch.tensor([2.0, 1.9, 0.0])
    sampling = sampling_of(0.0, 0, prompt_tokens=2, bad_words=((1, 2, 0), (2, 1)))
    assert sample(row, sampling, 2, torch.tensor([1, 2])) == 0
    assert sample(row, sampling, 3, torch.tensor([1, 1, 2])) == 0
    assert sample(row, sampling, 4, torch.tensor([1, 1, 1, 2])) == 2


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_would_leave_no_token_does_not_apply(temperature: float) -> None:
    row = torch.tensor([2.0, 1.9, 5.0, 0.0])
    sampling = sampling_of(temperature, 0, allowed_token_ids=(0, 1), forbidden_token_ids=(1,), bad_words=((2, 0),))
    seeded = [structs.replace(sampling, seed=seed) for seed in range(50)]
    drawn = {int(sample(row, one, 1, torch.tensor([2]))) for one in seeded}
    assert drawn == ({0} if temperature == 0 else {0, 1})
    assert {int(sample(row, one, 1, torch.tensor([3]))) for one in seeded} == {0}


def test_penalties_of_the_output_leave_the_prompt_alone() -> None:
    row = torch.tensor([2.0, 1.9, 0.0])
    penalized = sampling_of(0.0, 0, presence_penalty=2.0, frequency_penalty=2.0, prompt_tokens=2)
    assert sample(row, penalized, 2, torch.tensor([0, 0])) == 0
    assert sample(row, penalized, 3, torch.tensor([0, 0, 0])) == 1


@pytest.mark.parametrize("temperature", [0.0, 5e-324, 1.0, 1e308])
@pytest.mark.parametrize("penalty", [5e-324, 1e-300, 1e308])
def test_extreme_values_still_give_a_token(temperature: float, penalty: float) -> None:
    extreme = sampling_of(temperature, 1, repetition_penalty=penalty, logit_bias={3: 100.0}, top_p=1e-300, min_p=5e-324)
    for seed in range(5):
        assert 0 <= sample(logits(seed), extreme, 6, HISTORY) < 50


def test_inputs_are_left_as_they_were() -> None:
    row, history = logits(), HISTORY.clone()
    sample(row, SETTINGS[12], 6, history)
    sample(row, SETTINGS[15], 6, history)
    assert row.equal(logits()) and history.equal(HISTORY)


def test_noise_is_a_pure_function_of_seed_and_position() -> None:
    draws = {(seed, position): noise(seed, position) for seed in (0, 1, 2**63 - 1) for position in range(1000)}
    assert draws == {key: noise(*key) for key in draws}
    assert len(set(draws.values())) == len(draws)
    assert all(0 <= draw < 1 for draw in draws.values())
    assert abs(sum(draws.values()) / len(draws) - 0.5) < 0.02
    assert noise(0, 1) == 0.0 or noise(0, 1) != noise(1, 0)


# --- all of a step at once


VOCAB = 40


@st.composite
def mixtures(draw: st.DrawFn) -> tuple[Tensor, list[Sampling], list[Tensor]]:
    """Rows of a step: logits with equal ones, some tokens that no grammar allows, whatever may be asked for, and
    histories that repeat tokens."""
    ids = st.integers(0, VOCAB - 1)
    rows, samplings, histories = [], [], []
    for _ in range(draw(st.integers(1, 7))):
        row = torch.tensor(draw(st.lists(st.integers(-8, 8), min_size=VOCAB, max_size=VOCAB)), dtype=torch.float32) / 2
        for barred in draw(st.sets(ids, max_size=VOCAB - 1)) if draw(st.booleans()) else ():
            row[barred] = -torch.inf
        rows.append(row)
        history = draw(st.lists(ids, min_size=1, max_size=12))
        histories.append(torch.tensor(history))
        reachable = [token for token in range(VOCAB) if row[token] > -torch.inf]
        samplings.append(
            Sampling(
                temperature=draw(st.sampled_from([0.0, 1e-30, 0.3, 1.0, 1.7])),
                top_k=draw(st.sampled_from([0, 0, 1, 3, 10, VOCAB, 1000])),
                top_p=draw(st.sampled_from([1.0, 1.0, 0.01, 0.5, 0.95])),
                min_p=draw(st.sampled_from([0.0, 0.0, 0.2, 1.0])),
                seed=draw(st.integers(0, 2**63)),
                repetition_penalty=draw(st.sampled_from([1.0, 1.0, 0.5, 1.8, 1e308])),
                frequency_penalty=draw(st.sampled_from([0.0, 0.0, -1.0, 1.5])),
                presence_penalty=draw(st.sampled_from([0.0, 0.0, -2.0, 2.0])),
                logit_bias=draw(st.dictionaries(ids, st.sampled_from([-100.0, 3.0, 100.0]), max_size=4)),
                prompt_tokens=draw(st.integers(0, len(history))),
                allowed_token_ids=tuple(draw(st.lists(st.sampled_from(reachable), max_size=5, unique=True))),
                forbidden_token_ids=tuple(draw(st.lists(ids, max_size=3))),
                bad_words=tuple(draw(st.lists(st.tuples(st.sampled_from(history), ids), max_size=3))),
            )
        )
    return torch.stack(rows), samplings, histories


@given(mixtures())
def test_a_step_chooses_what_its_rows_choose_alone(mixture: tuple[Tensor, list[Sampling], list[Tensor]]) -> None:
    rows, samplings, histories = mixture
    positions = [len(history) for history in histories]
    found = sample_rows(rows, samplings, positions, histories).tolist()
    alone = [
        int(sample_row(row, sampling, len(history), history))
        for row, sampling, history in zip(rows, samplings, histories, strict=True)
    ]
    assert found == alone
    one_by_one = zip(rows, samplings, positions, histories, strict=True)
    assert found == [int(sample(*each)) for each in one_by_one]


class Operations(TorchDispatchMode):
    """names: of all operations; those that a device would have to be waited for fail."""

    WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "item", "is_nonzero")

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = str(func)
        assert not any(one in name for one in self.WAITS), f"waits for the device: {name}"
        if "index" in name:  # indexing by a mask has to count it first
            assert not any(isinstance(one, Tensor) and one.dtype == torch.bool for one in _leaves(args[1:2])), name
        self.names.append(name)
        return func(*args, **(kwargs or {}))


def _leaves(args: Any) -> list[Any]:
    return [leaf for one in args for leaf in (one if isinstance(one, list | tuple) else [one])]


def test_the_number_of_operations_does_not_depend_on_the_number_of_rows() -> None:
    """With one sequence of each kind and with five: no operation more, and none that waits."""

    def operations(times: int) -> list[str]:
        samplings = [structs.replace(one, prompt_tokens=3) for one in SETTINGS] * times
        known = Histories()
        seen = SeenTokens(known, 50, torch.device("cpu"))
        draws = []
        for row, sampling in enumerate(samplings):
            known.write(str(row), 0, array("i", HISTORY.tolist()))
            draws.append(Draw(str(row), sampling, 6, completing(sampling, HISTORY) if sampling.bad_words else ()))
        tables, shape = tables_of(draws, seen, 50)
        rows = logits().expand(len(draws), -1).clone()
        with Operations() as counted:
            choose(rows, tables, shape, seen)
        return counted.names

    assert operations(1) == operations(5)
    assert len(operations(1)) < 90
