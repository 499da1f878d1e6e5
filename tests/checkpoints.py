"""Random tiny checkpoints for tests, and transformers' answers to them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from distkv.demo.random_checkpoint import make_checkpoint
from distkv.types import SamplingParams, TokenLogprobs
from distkv.wire.messages.to_worker import Sampling

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


@torch.no_grad()
def reference_penalized(path: Path, ids: Sequence[int], count: int, sampling: Sampling | SamplingParams) -> list[int]:
    """`count` greedy tokens after `ids` under the penalties and the bias of `sampling`, from what it leaves in."""
    from transformers import LogitsProcessorList

    def openai_penalties(input_ids: Tensor, scores: Tensor) -> Tensor:
        """Those that transformers does not have."""
        counts = input_ids[0, len(ids) :].bincount(minlength=scores.shape[1])
        return scores - sampling.frequency_penalty * counts - sampling.presence_penalty * (counts > 0)

    prompt = torch.tensor([list(ids)])
    options: dict[str, Any] = {"repetition_penalty": sampling.repetition_penalty}
    if sampling.logit_bias:
        options["sequence_bias"] = [[[token], bias] for token, bias in sampling.logit_bias.items()]
    if allowed := sampling.allowed_token_ids:
        options["prefix_allowed_tokens_fn"] = lambda batch, ids: list(allowed)
    if isinstance(sampling, Sampling):
        options["suppress_tokens"] = list(sampling.forbidden_token_ids) or None
        options["bad_words_ids"] = [list(word) for word in sampling.bad_words] or None
    output = reference_model(path).generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=count,
        min_new_tokens=count,
        do_sample=False,
        pad_token_id=0,
        logits_processor=LogitsProcessorList([openai_penalties]),
        **options,
    )
    return output[0, len(ids) :].tolist()


def check_logprobs(found: TokenLogprobs | None, logits: Tensor, token_id: int, top: int, atol: float = 1e-4) -> None:
    """What was told of a token is what log_softmax says of a row of raw logits."""
    assert found is not None and found.token_id == token_id
    row = logits.log_softmax(-1)
    assert found.logprob == pytest.approx(float(row[token_id]), abs=atol)
    # Others as likely as this one within the tolerance may stand before or behind it.
    surely, perhaps = int((row > row[token_id] + 2 * atol).sum()), int((row > row[token_id] - 2 * atol).sum())
    assert surely < found.rank <= max(1, perhaps)
    assert [value for _, value in found.top] == pytest.approx(row.topk(top).values.tolist(), abs=atol)
    assert all(value == pytest.approx(float(row[one]), abs=atol) for one, value in found.top)
