from __future__ import annotations

import dataclasses

import pytest
import torch

from distkv.demo.corpus.documents import write
from distkv.demo.recall import RecallScorer
from distkv.demo.train import vocabulary
from distkv.demo.train.batches import IGNORED, Batches, Stage
from distkv.demo.train.export import export, load
from distkv.demo.train.initialization import initial_network
from distkv.demo.train.loop import loss_of
from distkv.demo.train.network import Shape
from distkv.demo.train.optimiser import Optimiser, orthogonal

ENGLISH = ["Return the string in which every word begins with a capital letter.\n\nThe rest is left as it was."] * 40
STAGE = Stage(2, 256, 2, 4, 4)


@pytest.fixture(scope="module")
def tokenizer():
    return vocabulary.learn(ENGLISH, 600)


@pytest.fixture(scope="module")
def batches(tokenizer):
    """Filler of fewer sentences than training takes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("distkv.demo.train.batches.SENTENCES", 1000)
        yield Batches(tokenizer, ENGLISH, 0)


@pytest.fixture(scope="module")
def small(tokenizer):
    return Shape(vocab=tokenizer.get_vocab_size(), hidden=64, inner=96, head_dim=32)


def test_a_batch_is_the_same_by_seed_and_number(batches, tokenizer):
    again = Batches(tokenizer, ENGLISH, 0)
    for name in ("tokens", "positions", "rows", "answers", "dilution"):
        assert torch.equal(getattr(batches.draw(STAGE, 3), name), getattr(again.draw(STAGE, 3), name))
    assert not torch.equal(batches.draw(STAGE, 3).tokens, batches.draw(STAGE, 4).tokens)


def test_positions_are_skipped_in_the_document_only_and_filler_is_thinned_as_much(batches):
    for number in range(8):
        batch = batches.draw(STAGE, number)
        steps = batch.positions.diff(dim=1)
        assert (steps >= 1).all()
        for index in range(STAGE.sequences):
            asked = batch.rows[index][batch.answers[index] != IGNORED]
            assert (steps[index, int(asked[0]) :] == 1).all()
            actual = int(batch.is_filler[index].sum())
            skipped = int(steps[index].sum()) - (STAGE.tokens - 1)
            assert float(batch.dilution[index].exp()) == pytest.approx((actual + skipped) / actual, rel=1e-4)


def test_the_answers_are_the_tokens_after_the_asked_rows_and_end(batches, tokenizer):
    batch = batches.draw(STAGE, 0)
    for index in range(STAGE.sequences):
        answers = [token for token in batch.answers[index].tolist() if token != IGNORED]
        assert answers[-1] == tokenizer.token_to_id(vocabulary.END)
        rows = batch.rows[index][: len(answers)]
        assert batch.tokens[index][rows + 1].tolist() == answers


def test_the_exported_model_is_the_trained_one(batches, tokenizer, small, tmp_path):
    export(initial_network(small, 0), tokenizer, tmp_path)
    network = load(tmp_path, small)
    batch = batches.draw(dataclasses.replace(STAGE, skips=False), 1)
    with torch.inference_mode():
        ours = network(batch)[0]
        scorer = RecallScorer(tmp_path)
        theirs = scorer._model(batch.tokens[:1]).logits[0][batch.rows[0]]
    assert torch.allclose(ours, theirs, atol=2e-4)


def test_many_questions_at_once_are_judged_as_one_by_one(tokenizer, small, tmp_path):
    export(initial_network(small, 0), tokenizer, tmp_path)
    scorer = RecallScorer(tmp_path)
    document = write(tokenizer, 0, 400, num_facts=3, num_absent=1)
    argmax = scorer.argmax_tokens(document)
    for placed, found in zip(document.questions, argmax, strict=True):
        alone = tokenizer.encode(f"{document.text}\nQuestion: {placed.text}\nAnswer: {placed.question.answer}").ids
        with torch.inference_mode():
            logits = scorer._model(torch.tensor([alone])).logits[0]
        assert logits[-len(found) :].argmax(-1).tolist() == found


def test_the_greedy_answer_is_known_up_to_its_first_mistake(tokenizer, small, tmp_path, monkeypatch):
    export(initial_network(small, 0), tokenizer, tmp_path)
    scorer = RecallScorer(tmp_path)
    document = write(tokenizer, 0, 400, num_facts=2, num_absent=0)
    first, second = (scorer.answer(placed) for placed in document.questions)
    other = second[1] + 1
    monkeypatch.setattr(scorer, "argmax_tokens", lambda _: [first, [second[0], other, *second[2:]]])
    assert scorer.greedy(document) == [first, [second[0], other]]
    assert scorer.exact(document) == [True, False]


def test_the_loss_falls(batches, small):
    network = initial_network(small, 0)
    optimiser = Optimiser(network, 100, 1.0)
    batch, losses = batches.draw(STAGE, 0), []
    for number in range(12):
        loss, _ = loss_of(network(batch), batch.answers)
        loss.backward()
        optimiser.step(number)
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


def test_an_orthogonalised_matrix_has_singular_values_near_one():
    found = orthogonal(torch.randn(2, 24, 16, generator=torch.Generator().manual_seed(0)))
    values = torch.linalg.svdvals(found)
    assert ((values > 0.5) & (values < 1.5)).all()
