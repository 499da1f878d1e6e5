"""The models that the papers serve: LLaMA2 (arXiv 2307.09288), and Mistral-Large-Instruct-2407 by its published
configuration, in 16-bit weights and KV."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

ITEM_BYTES = 2
PARTIAL_ITEM_BYTES = 4
"""Partials travel in float32, with the logarithm of their sum."""


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """A decoder. tensor_parallel: GPUs of an instance in the papers (000 Fig. 8: 2xtp1, 2xtp2, 2xtp4)."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    tensor_parallel: int
    vocabulary: int = 32_000

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    @property
    def layer_parameters(self) -> int:
        """Of the matrices of one layer: Q and output, K and V, gate, up and down."""
        return self.hidden * (2 * self.hidden + 2 * self.kv_heads * self.head_dim + 3 * self.ffn)

    @property
    def output_parameters(self) -> int:
        """Of the matrix from hidden states to logits; the input's embeddings are as many, but are not read."""
        return self.vocabulary * self.hidden

    @property
    def weight_bytes(self) -> int:
        """Of the whole model in memory."""
        return ITEM_BYTES * (self.layers * self.layer_parameters + 2 * self.output_parameters)

    @property
    def kv_bytes(self) -> int:
        """Of keys and values of one token in one layer."""
        return 2 * self.kv_heads * self.head_dim * ITEM_BYTES


SHAPES: Mapping[str, Shape] = {
    "llama2-7b": Shape(name="LLaMA2-7B", layers=32, hidden=4096, heads=32, kv_heads=32, ffn=11_008, tensor_parallel=1),
    "llama2-13b": Shape(
        name="LLaMA2-13B", layers=40, hidden=5120, heads=40, kv_heads=40, ffn=13_824, tensor_parallel=2
    ),
    "llama2-70b": Shape(name="LLaMA2-70B", layers=80, hidden=8192, heads=64, kv_heads=8, ffn=28_672, tensor_parallel=4),
    # 004 §5.1: 123B parameters, 352 KB of KV for each token, on eight GPUs.
    "mistral-large": Shape(
        name="Mistral-Large",
        layers=88,
        hidden=12_288,
        heads=96,
        kv_heads=8,
        ffn=28_672,
        tensor_parallel=8,
        vocabulary=32_768,
    ),
}
