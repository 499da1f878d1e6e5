"""Seeded random checkpoints: real Hugging Face directories, made on the spot.

Random weights of the usual size give almost flat logits. These are sharpened: logits spread over several units, so that
the two best differ by far more than float32 rounding; attention picks out a few keys but reaches the whole context; and
what is attended to outweighs the current token, so that greedy text neither loops nor forgets its beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

from distkv.engine.model.weights import SERVING_DTYPES

Family = Literal["llama", "mistral", "qwen2", "qwen3"]
END_TOKEN = "<|endoftext|>"

_CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
_SCORE_STD = 2.5  # attention scores
_LOGIT_STD = 2.0
_ATTENTION_GAIN = 3.0  # of what attention adds, before averaging over keys shrinks it


def make_checkpoint(
    path: str | Path,
    family: Family = "llama",
    *,
    hidden: int = 64,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int | None = None,
    inner: int | None = None,
    vocab: int = 384,
    seed: int = 0,
    dtype: str = "float32",
    tied: bool = False,
    rope_scaling: Mapping[str, Any] | None = None,
    sliding_window: int | None = None,
    text_for_tokenizer: str | None = None,
    sharded: bool = False,
    max_positions: int = 131072,
) -> Path:
    """Write config.json, weights and, given a text to train it on, a byte-level BPE tokenizer; returns `path`.

    inner: width of the MLP, twice `hidden` if None. dtype: "float32", "bfloat16" or "float16". rope_scaling: as in
    config.json of transformers 5, without rope_theta. sliding_window: Mistral's, or Qwen's for all layers but the
    first. sharded: two weight files and an index. The end token, and ids that the tokenizer does not have, never win.
    Same arguments, same bytes.

    Raises ValueError when `vocab` is too small for a byte-level tokenizer.
    """
    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    used = vocab
    if text_for_tokenizer is not None:
        used = _write_tokenizer(path, text_for_tokenizer, vocab)
    head_dim = head_dim or hidden // heads
    config = {
        "architectures": [_CLASSES[family]],
        "model_type": family,
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": inner or 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": max_positions,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, **(rope_scaling or {})},
        "tie_word_embeddings": tied,
        "bos_token_id": None,
        "eos_token_id": 0,
        "dtype": dtype,
        "attention_dropout": 0.0,
    }
    if family == "mistral":
        config["sliding_window"] = sliding_window
    elif family != "llama":
        config |= {"use_sliding_window": sliding_window is not None, "max_window_layers": 1}
        config["sliding_window"] = sliding_window
    _write_json(path / "config.json", config)
    _write_json(path / "generation_config.json", {"eos_token_id": 0})
    weights = dict(_weights(config, used, seed, SERVING_DTYPES[dtype]))
    _save(path, weights, 2 if sharded else 1)
    return path


def _weights(config: dict[str, Any], used: int, seed: int, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, std: float) -> Tensor:
        return (torch.randn(*shape, generator=generator) * std).to(dtype)

    hidden, inner, head_dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, kv_heads, family = config["num_attention_heads"], config["num_key_value_heads"], config["model_type"]
    unit = hidden**-0.5  # keeps the size of a normalised input
    embed = normal(config["vocab_size"], hidden, std=_LOGIT_STD * unit)
    embed[0] = 0
    embed[used:] = 0
    yield "model.embed_tokens.weight", embed
    for index in range(config["num_hidden_layers"]):
        layer = f"model.layers.{index}"
        yield f"{layer}.input_layernorm.weight", torch.ones(hidden, dtype=dtype)
        yield from _attention(f"{layer}.self_attn", normal, hidden, heads, kv_heads, head_dim, family)
        yield f"{layer}.post_attention_layernorm.weight", torch.ones(hidden, dtype=dtype)
        yield f"{layer}.mlp.gate_proj.weight", normal(inner, hidden, std=unit)
        yield f"{layer}.mlp.up_proj.weight", normal(inner, hidden, std=unit)
        yield f"{layer}.mlp.down_proj.weight", normal(hidden, inner, std=inner**-0.5)
    yield "model.norm.weight", torch.ones(hidden, dtype=dtype)
    if not config["tie_word_embeddings"]:
        head = normal(config["vocab_size"], hidden, std=_LOGIT_STD * unit)
        head[0] = 0
        head[used:] = 0
        yield "lm_head.weight", head


def _attention(
    prefix: str,
    normal: Callable[..., Tensor],
    hidden: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    family: str,
) -> Iterator[tuple[str, Tensor]]:
    unit, sharp = hidden**-0.5, _SCORE_STD**0.5
    std = unit if family == "qwen3" else unit * sharp  # Qwen3 normalises heads: their norm weights sharpen instead
    sizes = {"q": heads * head_dim, "k": kv_heads * head_dim, "v": kv_heads * head_dim}
    for name, size in sizes.items():
        yield f"{prefix}.{name}_proj.weight", normal(size, hidden, std=unit if name == "v" else std)
        if family == "qwen2":
            yield f"{prefix}.{name}_proj.bias", normal(size, std=0.1)
    yield f"{prefix}.o_proj.weight", normal(hidden, heads * head_dim, std=_ATTENTION_GAIN * (heads * head_dim) ** -0.5)
    if family == "qwen3":
        for name in ("q", "k"):
            yield f"{prefix}.{name}_norm.weight", sharp + normal(head_dim, std=0.1)


def _save(path: Path, weights: dict[str, Tensor], shards: int) -> None:
    if shards == 1:
        save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
        return
    names = list(weights)
    places: dict[str, str] = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: weights[name] for name in names[shard::shards]}
        save_file(part, path / file, metadata={"format": "pt"})
        places |= dict.fromkeys(part, file)
    total = sum(tensor.nbytes for tensor in weights.values())
    _write_json(path / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": places})


def _write_tokenizer(path: Path, text: str, vocab: int) -> int:
    """Train and write it; returns how many ids it has."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[END_TOKEN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainer)
    if (size := int(tokenizer.get_vocab_size())) > vocab:
        raise ValueError(f"a byte-level tokenizer needs a vocabulary of at least {size}, got {vocab}")
    tokenizer.save(str(path / "tokenizer.json"))
    _write_json(
        path / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END_TOKEN, "clean_up_tokenization_spaces": False},
    )
    return size


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=2))
