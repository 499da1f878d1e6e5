"""The model against transformers, on random tiny checkpoints of every family."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from distkv.engine.device.cpu import CpuDevice
from distkv.engine.model.config import ModelConfig
from distkv.kernels.cpu.dispatch import available, backend_of, choose
from distkv.types import CpuKernels
from tests.checkpoints import (
    VARIANTS,
    edit_config,
    prompt_ids,
    reference_greedy,
    reference_logits,
    reference_model,
    spell_as_v4,
    variant,
)
from tests.engine.harness import GREEDY, Engine, seq_step

LENGTH = 90
ATOL = 1e-4


@pytest.fixture(scope="module", params=VARIANTS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return variant(tmp_path_factory.mktemp("checkpoint"), request.param)


def test_prompt_logits_whatever_the_chunks(checkpoint: Path) -> None:
    ids = prompt_ids(LENGTH)
    expected = reference_logits(checkpoint, ids)
    engine = Engine(checkpoint, num_slots=100)
    for chunks, scattered in ([LENGTH], False), ([1, 2, 30, 57], True), ([64, 26], False), ([5] * 18, True):
        logits = engine.chunked_logits(ids, chunks, engine.table(LENGTH, scattered=scattered))
        torch.testing.assert_close(logits, expected, atol=ATOL, rtol=0)


def test_a_middle_range_can_be_rebuilt(checkpoint: Path) -> None:
    ids = prompt_ids(LENGTH, seed=1)
    expected = reference_logits(checkpoint, ids)
    engine = Engine(checkpoint)
    table = engine.table(LENGTH)
    engine.chunked_logits(ids, [LENGTH], table)
    for slot in range(5, 11):
        engine.pool.slot(slot).fill_(0xFF)
    for start, end in (20, 31), (31, 44):
        rebuilt = engine.logits(seq_step(ids, start, end, table))
        torch.testing.assert_close(rebuilt, expected[start:end], atol=ATOL, rtol=0)
    last = engine.logits(seq_step(ids, LENGTH - 1, LENGTH, table))
    torch.testing.assert_close(last, expected[-1:], atol=ATOL, rtol=0)


def test_greedy_tokens_and_decode_logits(checkpoint: Path) -> None:
    ids = prompt_ids(LENGTH - 30, seed=2)
    expected = reference_greedy(checkpoint, ids, 30)
    engine = Engine(checkpoint)
    table = engine.table(LENGTH)
    tokens = list(ids)
    for end in range(len(ids), LENGTH):
        (result,) = engine.run(seq_step(ids, 0 if end == len(ids) else end - 1, end, table, sample=GREEDY))
        assert result.token is not None
        tokens.append(result.token)
    assert tokens[len(ids) :] == expected
    logits = torch.cat([engine.logits(seq_step(tokens, end - 1, end, table)) for end in range(len(ids), LENGTH)])
    torch.testing.assert_close(logits, reference_logits(checkpoint, tokens[:-1])[len(ids) - 1 :], atol=ATOL, rtol=0)


@pytest.mark.parametrize("name", ["llama-llama3-head-dim", "llama-yarn-sharded", "mistral-window", "qwen2-window"])
def test_both_spellings_of_config_mean_the_same(tmp_path: Path, name: str) -> None:
    path = variant(tmp_path, name)
    config = ModelConfig.from_dir(path)
    expected = reference_logits(path, prompt_ids(40))
    spell_as_v4(path)
    assert ModelConfig.from_dir(path) == config
    reference_model.cache_clear()
    torch.testing.assert_close(reference_logits(path, prompt_ids(40)), expected, atol=0, rtol=0)


def test_layers_of_a_mistral_may_differ(tmp_path: Path) -> None:
    """As those of Ministral, which transformers makes of it."""
    path, ids = variant(tmp_path, "mistral-window"), prompt_ids(LENGTH)
    edit_config(path, lambda raw: raw.update(layer_types=["full_attention", "sliding_attention"]))
    engine = Engine(path)
    logits = engine.chunked_logits(ids, [50, 40], engine.table(LENGTH))
    torch.testing.assert_close(logits, reference_logits(path, ids), atol=ATOL, rtol=0)


@pytest.mark.parametrize(("stored", "served"), [("bfloat16", "auto"), ("float16", "auto"), ("float32", "bfloat16")])
def test_half_precision(tmp_path: Path, stored: str, served: str) -> None:
    """Rounding differs by the order of sums; sharpened attention makes much of it. Judged against float32."""
    path = variant(tmp_path, "llama", dtype=stored)
    ids = prompt_ids(LENGTH)
    engine = Engine(path, served)
    assert engine.model.dtype == getattr(torch, stored if served == "auto" else served)
    exact = reference_logits(path, ids)
    theirs = (reference_logits(path, ids, engine.model.dtype) - exact).abs()
    ours = (engine.chunked_logits(ids, [50, 40], engine.table(LENGTH)) - exact).abs()
    assert ours.mean() <= 1.2 * theirs.mean()
    assert ours.max() <= 2 * theirs.max()


@pytest.mark.parametrize("name", ["qwen2-tied", "qwen3"])
@pytest.mark.parametrize("level", available())
def test_every_level_is_the_same_model(tmp_path: Path, level: CpuKernels, name: str) -> None:
    """Biases, norms of heads, tied weights; a prompt long enough for the templates of many rows, and decoding."""
    path, ids = variant(tmp_path, name), prompt_ids(LENGTH)
    for dtype in "float32", "bfloat16":
        engine = Engine(path, dtype, device=CpuDevice(backend_of(choose(level))))
        logits = engine.chunked_logits(ids, [64, 9, *[1] * 17], engine.table(LENGTH))
        exact = reference_logits(path, ids)
        if dtype == "float32":
            torch.testing.assert_close(logits, exact, atol=ATOL, rtol=0)
        else:
            theirs = reference_logits(path, ids, torch.bfloat16)
            assert (logits - exact).abs().mean() <= 1.2 * (theirs - exact).abs().mean()


def test_half_precision_weights_served_in_float32(tmp_path: Path) -> None:
    path = variant(tmp_path, "qwen3", dtype="bfloat16")
    ids = prompt_ids(LENGTH)
    engine = Engine(path, "float32")
    logits = engine.chunked_logits(ids, [LENGTH], engine.table(LENGTH))
    torch.testing.assert_close(logits, reference_logits(path, ids), atol=ATOL, rtol=0)
