"""The random checkpoints that engines are compared on, and how many bytes a step has to read of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec

from distkv.demo.random_checkpoint import make_checkpoint

BYTES_PER_VALUE = 2  # bfloat16, weights and KV


class Model(msgspec.Struct, frozen=True):
    """A Llama with random weights in bfloat16, input and output embeddings apart."""

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    inner: int
    vocab: int

    @property
    def parameters(self) -> int:
        """All of them."""
        return self.vocab * self.hidden + self.read_parameters

    @property
    def read_parameters(self) -> int:
        """Those that every step reads: all but the input embedding."""
        kv = self.hidden // self.heads * self.kv_heads
        attention = 2 * self.hidden * self.hidden + 2 * self.hidden * kv
        layer = attention + 3 * self.hidden * self.inner + 2 * self.hidden
        return self.layers * layer + self.hidden + self.vocab * self.hidden

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one token in all layers."""
        return 2 * self.layers * self.kv_heads * (self.hidden // self.heads) * BYTES_PER_VALUE

    def step_bytes(self, context: float, batch: int) -> float:
        """What one decode step reads at least: the weights once; per sequence the KV of `context` tokens (mean over
        the steps measured) and one row of the input embedding."""
        per_sequence = context * self.kv_bytes_per_token + self.hidden * BYTES_PER_VALUE
        return self.read_parameters * BYTES_PER_VALUE + batch * per_sequence


MODELS = {
    model.name: model
    for model in (
        Model("tiny", hidden=128, layers=2, heads=4, kv_heads=2, inner=256, vocab=512),
        Model("b", hidden=768, layers=12, heads=12, kv_heads=4, inner=2048, vocab=32000),
        Model("c", hidden=2048, layers=22, heads=32, kv_heads=4, inner=5632, vocab=32000),
        Model("1b", hidden=2048, layers=16, heads=32, kv_heads=8, inner=8192, vocab=128256),
        Model("8b", hidden=4096, layers=32, heads=32, kv_heads=8, inner=14336, vocab=128256),
        Model("7b", hidden=4096, layers=32, heads=32, kv_heads=32, inner=11008, vocab=32000),
    )
}


def checkpoint(model: Model, cache: Path) -> Path:
    """Its directory below `cache`, made if it is not there: the same bytes each time."""
    path = cache / "models" / model.name
    if (path / "model.safetensors").is_file():
        return path
    part = path.with_name(f"{model.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    make_checkpoint(
        part,
        hidden=model.hidden,
        layers=model.layers,
        heads=model.heads,
        kv_heads=model.kv_heads,
        inner=model.inner,
        vocab=model.vocab,
        dtype="bfloat16",
    )
    shutil.rmtree(path, ignore_errors=True)
    return part.rename(path)
