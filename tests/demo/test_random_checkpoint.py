"""Checkpoints made on the spot: equal for equal arguments, readable by transformers, and worth comparing tokens of."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from distkv.demo.random_checkpoint import make_checkpoint
from distkv.engine.model.weights import fingerprint
from tests.checkpoints import TEXT, VARIANTS, prompt_ids, reference_greedy, reference_logits, variant

FAMILIES = ["llama", "mistral", "qwen2", "qwen3"]


@pytest.fixture(scope="module", params=FAMILIES)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return variant(tmp_path_factory.mktemp("checkpoint"), "llama", family=request.param)


@pytest.mark.parametrize("name", VARIANTS)
def test_transformers_loads_it_without_a_word(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    reference_logits(variant(tmp_path, name), [1, 2, 3])
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_same_arguments_same_bytes(tmp_path: Path) -> None:
    paths = [variant(tmp_path / name, "qwen3") for name in "ab"]
    for file in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        assert (paths[0] / file).read_bytes() == (paths[1] / file).read_bytes()
    assert fingerprint(paths[0]) != fingerprint(variant(tmp_path / "c", "qwen3", seed=1))


def test_an_early_token_changes_all_later_logits(path: Path) -> None:
    ids = prompt_ids(400)
    changed = [*ids[:3], ids[3] + 1, *ids[4:]]
    difference = (reference_logits(path, ids) - reference_logits(path, changed)).abs().amax(-1)
    assert not difference[:3].any()
    assert difference[3:].min() > 1e-3


def test_near_ties_are_rare_and_text_does_not_loop(path: Path) -> None:
    top = reference_logits(path, prompt_ids(400, seed=1)).topk(2).values
    gaps = top[:, 0] - top[:, 1]
    assert (gaps < 1e-4).sum() == 0
    assert gaps.median() > 0.1
    assert len(set(reference_greedy(path, prompt_ids(60), 60))) >= 12


def test_ids_without_a_token_and_the_end_token_never_win(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "m", vocab=5000, text_for_tokenizer=TEXT)
    best = reference_logits(path, prompt_ids(200)).argmax(-1)
    assert best.min() > 0
    assert best.max() < 600


def test_a_vocabulary_too_small_for_bytes(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least"):
        make_checkpoint(tmp_path / "m", vocab=100, text_for_tokenizer=TEXT)
    assert torch.equal(
        reference_logits(make_checkpoint(tmp_path / "n", vocab=100), [1, 2]).isfinite().all(), torch.tensor(True)
    )
