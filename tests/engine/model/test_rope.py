from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from distkv.engine.model.rope import Rope, inverse_frequencies
from distkv.engine.model.rope_config import parse_rope
from distkv.errors import CheckpointError
from distkv.kernels import FusedQkv
from tests.checkpoints import LINEAR, LLAMA3, YARN

SETTINGS: list[dict[str, Any]] = [
    {"rope_type": "default"},
    {"rope_type": "default", "rope_theta": 500000.0},
    LINEAR,
    LLAMA3,
    {**LLAMA3, "factor": 32.0, "rope_theta": 500000.0, "original_max_position_embeddings": 8192},
    YARN,
    {**YARN, "rope_theta": 1e6, "original_max_position_embeddings": 32768},
    {**YARN, "attention_factor": 1.5},
    {**YARN, "mscale": 0.7, "mscale_all_dim": 1.0},
    {**YARN, "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("head_dim", [8, 64, 128])
def test_frequencies_are_those_of_transformers(settings: dict[str, Any], head_dim: int) -> None:
    config = LlamaConfig(
        hidden_size=4 * head_dim, num_attention_heads=4, max_position_embeddings=131072, rope_parameters=dict(settings)
    )
    theirs = LlamaRotaryEmbedding(config)
    ours = parse_rope({"rope_parameters": settings}, 131072, "config.json")
    torch.testing.assert_close(inverse_frequencies(ours, head_dim), theirs.inv_freq, atol=0, rtol=1e-6)
    assert ours.attention_factor == pytest.approx(theirs.attention_scaling)


def test_rotation_is_that_of_transformers() -> None:
    config = LlamaConfig(hidden_size=64, num_attention_heads=4, rope_parameters=dict(YARN))
    positions = torch.tensor([0, 1, 17, 4000])
    x = torch.randn(4, 3, 16, generator=torch.Generator().manual_seed(0))
    cos, sin = LlamaRotaryEmbedding(config)(x, positions[None])
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    expected = apply_rotary_pos_emb(x[None], x[None], cos, sin, unsqueeze_dim=2)[0][0]
    ours = parse_rope({"rope_scaling": YARN}, config.max_position_embeddings, "config.json")
    cos, sin = Rope(ours, 16, torch.float32).angles(positions)
    queries, keys, _ = FusedQkv(torch.cat((x, x[:, :1]), dim=1).flatten(1), 2, cos, sin).rotated()
    torch.testing.assert_close(torch.cat((queries, keys[:, :1]), dim=1), expected)


def test_a_factor_that_is_null_is_the_ratio_of_lengths() -> None:
    assert parse_rope({"rope_scaling": {**YARN, "factor": None}}, 640, "config.json").factor == 10.0


def test_the_original_length_beside_the_rope_settings_wins() -> None:
    raw = {"rope_scaling": YARN, "original_max_position_embeddings": 99}
    assert parse_rope(raw, 640, "config.json").original_max_positions == 99


def test_an_original_length_of_nothing_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"original_max_position_embeddings should be an integer, is 0\.5"):
        parse_rope({"rope_scaling": {**YARN, "original_max_position_embeddings": 0.5}}, 640, "config.json")
