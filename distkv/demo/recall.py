"""Recall of the demo model by transformers: exact answers, end included, to many questions about one document.

The document is computed once. All its questions are then answered side by side, each seeing the document and itself,
with the right answer given: the greedy answer is exact just when every token of it, the end too, is the argmax.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from distkv.demo.corpus.documents import Document, Placed

CHUNK_TOKENS = 2048
KEYS_AND_VALUES = "keys_and_values"  # the name in transformers of the attention below
QUESTIONS_AT_ONCE = 16


class RecallScorer:
    """A checkpoint in transformers, in float32."""

    def __init__(self, model: Path, threads: int | None = None) -> None:
        if threads:
            torch.set_num_threads(threads)
        self._transformers: Any = importlib.import_module("transformers")
        self._transformers.utils.logging.disable_progress_bar()
        self._transformers.AttentionInterface.register(KEYS_AND_VALUES, _keys_and_values)
        masking: Any = importlib.import_module("transformers.masking_utils")
        self._transformers.AttentionMaskInterface.register(KEYS_AND_VALUES, masking.sdpa_mask)
        self._model = self._transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        self.tokenizer: Tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self._end: int = self._model.generation_config.eos_token_id

    def exact(self, document: Document) -> list[bool]:
        """For each question of the document, whether the answer and its end are exact."""
        return [
            found == self.answer(placed)
            for placed, found in zip(document.questions, self.greedy(document), strict=True)
        ]

    def greedy(self, document: Document) -> list[list[int]]:
        """For each question, how the greedy answer begins: as far as it is right, and the first token that is not.

        So it is the whole answer, the end included, where that is exact.
        """
        found = []
        for placed, argmax in zip(document.questions, self.argmax_tokens(document), strict=True):
            same = [ours == right for ours, right in zip(argmax, self.answer(placed), strict=True)]
            found.append(argmax if all(same) else argmax[: same.index(False) + 1])
        return found

    @torch.inference_mode()
    def argmax_tokens(self, document: Document) -> list[list[int]]:
        """For each question, the argmax token at each place of the right answer, the end's included."""
        ids = self.tokenizer.encode(document.text).ids
        cache = self._transformers.DynamicCache(config=self._model.config)
        self._model.set_attn_implementation(KEYS_AND_VALUES)
        for begin in range(0, len(ids), CHUNK_TOKENS):
            self._model.model(torch.tensor([ids[begin : begin + CHUNK_TOKENS]]), past_key_values=cache, use_cache=True)
        self._model.set_attn_implementation("sdpa")
        kept = [(layer.keys, layer.values) for layer in cache.layers]
        asks = [
            (
                self.tokenizer.encode(f"\nQuestion: {placed.text}\nAnswer:").ids,
                self.answer(placed),
            )
            for placed in document.questions
        ]
        found: list[list[int]] = []
        for begin in range(0, len(asks), QUESTIONS_AT_ONCE):
            for layer, (keys, values) in zip(cache.layers, kept, strict=True):
                layer.keys, layer.values = keys, values
            found.extend(self._ask(asks[begin : begin + QUESTIONS_AT_ONCE], len(ids), cache))
        return found

    def answer(self, placed: Placed) -> list[int]:
        """The tokens of the right answer, the end included."""
        return [*self.tokenizer.encode(f" {placed.question.answer}").ids, self._end]

    def _ask(self, asks: Sequence[tuple[list[int], list[int]]], num_document: int, cache: Any) -> list[list[int]]:
        sizes = torch.tensor([len(ask) + len(answer) for ask, answer in asks])
        owner = torch.repeat_interleave(torch.arange(len(asks)), sizes)
        begins = sizes.cumsum(0) - sizes
        place = num_document + torch.arange(len(owner)) - begins[owner]
        masks: dict[str, Tensor] = {}
        for layer, kind in zip(cache.layers, self._model.config.layer_types, strict=True):
            if kind not in masks:
                window = self._model.config.sliding_window if kind == "sliding_attention" else None
                masks[kind] = _mask(owner, place, num_document, layer.keys.shape[-2], window)
        tokens = torch.tensor([[token for ask, answer in asks for token in (*ask, *answer)]])
        hidden = self._model.model(
            tokens, attention_mask=masks, position_ids=place[None], past_key_values=cache, use_cache=True
        ).last_hidden_state
        argmax = self._model.lm_head(hidden)[0].argmax(-1).tolist()
        found = []
        for begin, (ask, answer) in zip(begins.tolist(), asks, strict=True):
            first = begin + len(ask) - 1
            found.append(argmax[first : first + len(answer)])
        return found


def _keys_and_values(module: Any, query: Tensor, *given: Any, **options: Any) -> tuple[Tensor, None]:
    """Attention of transformers for tokens of which only keys and values are needed: none in the last layer, where it
    would be half of the work."""
    if module.layer_idx + 1 == module.config.num_hidden_layers:
        return torch.zeros_like(query).transpose(1, 2), None
    sdpa: Any = importlib.import_module("transformers.integrations.sdpa_attention")
    return sdpa.sdpa_attention_forward(module, query, *given, **options)  # type: ignore[no-any-return]


def _mask(owner: Tensor, place: Tensor, num_document: int, num_cached: int, window: int | None) -> Tensor:
    """bool [1, 1, N, cached + N]: what each token of the questions sees. owner, place: [N], question and position."""
    key_owner = torch.cat((torch.full((num_cached,), -1), owner))
    key_place = torch.cat((torch.arange(num_document - num_cached, num_document), place))
    back = place[:, None] - key_place[None, :]
    seen = (back >= 0) & ((key_owner[None, :] == owner[:, None]) | (key_owner[None, :] < 0))
    if window is not None:
        seen &= back < window
    return seen[None, None]
