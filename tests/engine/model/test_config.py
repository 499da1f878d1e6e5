from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from distkv.engine.model.config import ModelConfig
from distkv.errors import CheckpointError

SIZES = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def parse(tmp_path: Path, generation: dict[str, Any] | None = None, **settings: Any) -> ModelConfig:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **SIZES, **settings}))
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    return ModelConfig.from_dir(tmp_path)


def test_absent_keys_mean_what_they_mean_in_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    for model_type in ("llama", "mistral", "qwen2", "qwen3"):
        sizes = {**SIZES, "num_attention_heads": 32, "hidden_size": 128}
        del sizes["num_key_value_heads"]
        ours = (
            parse(tmp_path, **{**sizes, "model_type": model_type, "num_key_value_heads": None})
            if (model_type == "llama")
            else _parse_raw(tmp_path, {"model_type": model_type, **sizes})
        )
        theirs = transformers.AutoConfig.from_pretrained(tmp_path)
        head_dim = getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads
        assert (ours.num_kv_heads, ours.head_dim) == (theirs.num_key_value_heads, head_dim)
        assert (ours.max_positions, ours.rms_norm_eps) == (theirs.max_position_embeddings, theirs.rms_norm_eps)
        assert ours.rope.theta == theirs.rope_parameters["rope_theta"]
        assert ours.tied == theirs.tie_word_embeddings
        assert ours.eos_token_ids == (() if theirs.eos_token_id is None else (theirs.eos_token_id,))
        window = theirs.sliding_window if model_type == "mistral" else None
        assert ours.windows == (window,) * 3


def _parse_raw(tmp_path: Path, raw: dict[str, Any]) -> ModelConfig:
    (tmp_path / "config.json").write_text(json.dumps(raw))
    return ModelConfig.from_dir(tmp_path)


@pytest.mark.parametrize(
    ("settings", "windows"),
    [
        ({"model_type": "llama", "sliding_window": 8}, (None, None, None)),
        ({"model_type": "mistral", "sliding_window": None}, (None, None, None)),
        ({"model_type": "mistral", "sliding_window": 8}, (8, 8, 8)),
        ({"model_type": "qwen2", "sliding_window": 8, "max_window_layers": 1}, (None, None, None)),
        (
            {"model_type": "qwen2", "sliding_window": 8, "max_window_layers": 1, "use_sliding_window": True},
            (None, 8, 8),
        ),
        ({"model_type": "qwen3", "sliding_window": 8, "max_window_layers": 0, "use_sliding_window": True}, (8, 8, 8)),
        (
            {
                "model_type": "qwen3",
                "sliding_window": 8,
                "use_sliding_window": True,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            },
            (8, None, 8),
        ),
        (
            {
                "model_type": "mistral",
                "sliding_window": 8,
                "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
            },
            (None, 8, 8),
        ),
        ({"model_type": "qwen2", "max_window_layers": 1, "use_sliding_window": True}, (None, 4096, 4096)),
        ({"model_type": "qwen3", "max_window_layers": 2, "use_sliding_window": True}, (None, None, 4096)),
        ({"model_type": "qwen2", "sliding_window": None, "use_sliding_window": True}, (None, None, None)),
    ],
)
def test_windows(tmp_path: Path, settings: dict[str, Any], windows: tuple[int | None, ...]) -> None:
    config = parse(tmp_path, **settings)
    assert config.windows == windows
    assert config.widest_window == (8 if windows == (8, 8, 8) else None)


def test_biases(tmp_path: Path) -> None:
    def biases(**settings: Any) -> tuple[bool, bool, bool]:
        config = parse(tmp_path, **settings)
        return config.qkv_bias, config.o_bias, config.mlp_bias

    assert biases() == (False, False, False)
    assert biases(attention_bias=True, mlp_bias=True) == (True, True, True)
    assert biases(model_type="mistral", attention_bias=True, mlp_bias=True) == (False, False, False)
    assert biases(model_type="qwen2") == (True, False, False)
    assert biases(model_type="qwen3", attention_bias=True) == (True, True, False)


@pytest.mark.parametrize(
    ("eos", "generation", "ids"),
    [
        (7, None, (7,)),
        ([7, 8], None, (7, 8)),
        (7, {"eos_token_id": [9, 7]}, (7, 9)),
        (None, {"eos_token_id": 9}, (9,)),
        (None, {}, ()),
    ],
)
def test_end_tokens(
    tmp_path: Path, eos: int | list[int] | None, generation: dict[str, Any] | None, ids: tuple[int, ...]
) -> None:
    assert parse(tmp_path, generation, eos_token_id=eos).eos_token_ids == ids


def test_end_tokens_that_are_none_are_of_the_file_that_has_them(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"generation_config\.json: eos_token_id should be token ids"):
        parse(tmp_path, {"eos_token_id": "</s>"})


def test_dtype_in_both_spellings(tmp_path: Path) -> None:
    assert parse(tmp_path, torch_dtype="bfloat16").dtype == "bfloat16"
    assert parse(tmp_path, dtype="float16").dtype == "float16"
    assert parse(tmp_path).dtype == ""


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"model_type": "gpt2"}, "model_type 'gpt2' is not supported; supported are llama, mistral, qwen2, qwen3"),
        ({"model_type": None}, "model_type None is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"vocab_size": None}, "vocab_size should be an integer ≥ 1, is None"),
        ({"hidden_size": "64"}, "hidden_size should be an integer"),
        ({"num_key_value_heads": 3}, "4 query heads do not share 3 KV heads evenly"),
        ({"head_dim": 7}, "head_dim 7 is odd"),
        ({"eos_token_id": "</s>"}, "eos_token_id should be token ids"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings should be true or false"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config is not supported"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope scaling 'dynamic' is not supported"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rope scaling 'longrope' is not supported"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope parameter factor should be a number"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "differ by layer"),
        ({"rope_parameters": {"rope_theta": 0}}, "rope parameter rope_theta should be over 0"),
        ({"rope_scaling": {"type": "linear", "factor": -1}}, "rope parameter factor should be over 0"),
        (
            {"rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": "x"}},
            "original_max_position_embeddings should be a number",
        ),
        (
            {"rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 1}},
            "low_freq_factor 4.0 should be under high_freq_factor 1.0",
        ),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not supported"),
        ({"model_type": "qwen2", "layer_types": ["linear_attention"] * 3}, "layer_types should name 3 layers"),
        ({"model_type": "qwen2", "layer_types": [["full_attention"]] * 3}, "layer_types should name 3 layers"),
        ({"is_causal": False}, "is_causal False is not supported"),
        ({"is_causal": None}, "is_causal None is not supported"),
        ({"num_hidden_layers": 2**40}, "num_hidden_layers should be at most 65536, is 1099511627776"),
        ({"num_attention_heads": 256, "num_key_value_heads": 256}, "256 heads have no part of"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps should be a number ≥ 0"),
        ({"max_position_embeddings": 2**70}, "max_position_embeddings should be at most"),
        ({"rope_scaling": {"type": "linear", "factor": 1e-40}}, "factor 1e-40 leaves no position"),
        ({"rope_scaling": {"type": "yarn", "factor": 2, "rope_theta": 1}}, "rope_theta 1 has no frequencies"),
        ({"rope_scaling": {"type": "yarn", "factor": 2, "beta_fast": -1}}, "beta_fast should be over 0"),
        (
            {"rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 8.5}},
            "original_max_position_embeddings should be an integer, is 8.5",
        ),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(tmp_path: Path, settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        parse(tmp_path, **settings)
    assert problem in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_no_directory_no_file_no_json(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is not a directory"):
        ModelConfig.from_dir(tmp_path / "absent")
    with pytest.raises(CheckpointError, match="cannot be read"):
        ModelConfig.from_dir(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="is not a JSON object"):
        ModelConfig.from_dir(tmp_path)


@pytest.mark.parametrize(
    ("rope", "longest"),
    [
        (None, 4096),
        ({"rope_type": "linear", "factor": 4.0}, 16384),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}, 4096),
        ({"rope_type": "yarn", "factor": 2.5, "original_max_position_embeddings": 4096}, 10240),
        ({"rope_type": "yarn", "factor": 2.0}, 8192),
        ({"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 1024}, 4096),
        (
            {
                "rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 1024,
                "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            },
            4096,
        ),
    ],
    ids=str,
)  # fmt: skip
def test_the_longest_text_that_a_checkpoint_was_made_for(
    tmp_path: Path, rope: dict[str, Any] | None, longest: int
) -> None:
    config = parse(tmp_path, max_position_embeddings=4096, rope_scaling=rope)
    assert config.max_model_len == longest
