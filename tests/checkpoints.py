"""Random tiny checkpoints for tests, and transformers' answers to them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from distkv.demo.random_checkpoint import make_checkpoint

TEXT = (
    "A request's KV cache is cut into rBlocks, and rBlocks may lie on any instance. Attention over them is computed "
    "where they lie and merged exactly. Füße, naïve café, 東京, данные, 🙂🚀; numbers 0123456789, tabs\tand lines.\n"
) * 3

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR = {"rope_type": "linear", "factor": 2.0}

VARIANTS: dict[str, dict[str, Any]] = {
    "llama": {"family": "llama"},
    "llama-mha-tied": {"family": "llama", "kv_heads": 4, "tied": True},
    "llama-mqa-linear": {"family": "llama", "kv_heads": 1, "rope_scaling": LINEAR},
    "llama-llama3-head-dim": {"family": "llama", "rope_scaling": LLAMA3, "head_dim": 32, "max_positions": 512},
    "llama-yarn-sharded": {"family": "llama", "rope_scaling": YARN, "sharded": True, "max_positions": 256},
    "mistral": {"family": "mistral"},
    "mistral-window": {"family": "mistral", "sliding_window": 24},
    "qwen2-tied": {"family": "qwen2", "tied": True},
    "qwen2-window": {"family": "qwen2", "sliding_window": 20, "layers": 3},
    "qwen3": {"family": "qwen3", "head_dim": 32},
    "qwen3-yarn-mha": {"family": "qwen3", "kv_heads": 4, "rope_scaling": YARN, "max_positions": 256},
}


def edit_config(path: Path, change: Callable[[dict[str, Any]], None], name: str = "config.json") -> None:
    """Rewrite a JSON file of a checkpoint."""
    raw = json.loads((path / name).read_text())
    change(raw)
    (path / name).write_text(json.dumps(raw))


def spell_as_v4(path: Path) -> None:
    """Rewrite config.json as transformers 4 would have written it."""

    def change(raw: dict[str, Any]) -> None:
        rope = raw.pop("rope_parameters")
        raw["rope_theta"] = rope.pop("rope_theta")
        raw["rope_scaling"] = None if rope["rope_type"] == "default" else rope
        raw["torch_dtype"] = raw.pop("dtype")

    edit_config(path, change)


def variant(directory: Path, name: str, **changes: Any) -> Path:
    """The checkpoint VARIANTS[name], with a tokenizer."""
    settings = {"text_for_tokenizer": TEXT, "vocab": 320, "max_positions": 2048, **VARIANTS[name], **changes}
    return make_checkpoint(directory / name, **settings)


def prompt_ids(count: int, seed: int = 0, vocab: int = 300) -> list[int]:
    """Random ids that are never the end token."""
    return torch.randint(1, vocab, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


@cache
def reference_model(path: Path, dtype: torch.dtype = torch.float32) -> Any:
    """The checkpoint in transformers."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    return AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation="eager").eval()


@torch.no_grad()
def reference_logits(path: Path, ids: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """float32 [T, vocab]."""
    return reference_model(path, dtype)(torch.tensor([list(ids)])).logits[0].float()


@torch.no_grad()
def reference_greedy(path: Path, ids: Sequence[int], count: int) -> list[int]:
    """`count` greedy tokens after `ids`."""
    prompt = torch.tensor([list(ids)])
    model = reference_model(path)
    output = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=count,
        min_new_tokens=count,
        do_sample=False,
        pad_token_id=0,
    )
    return output[0, len(ids) :].tolist()
