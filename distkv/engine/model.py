"""The forward pass of a Llama-family decoder over flattened tokens. Rounds where transformers rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from torch import Tensor

from distkv.engine.config import ModelConfig
from distkv.engine.rope import Rope
from distkv.engine.weights import Weights, load_weights
from distkv.kernels import KeyTables, LayerKv
from distkv.kernels.cpu.between import BetweenWeights, between_of
from distkv.kernels.cpu.dispatch import Choice, choose
from distkv.kernels.cpu.layers import LocalLayer, NativeLayers
from distkv.kernels.cpu.ops import ops_of
from distkv.kernels.heads import Heads

Attend = Callable[[int, Heads], Tensor]
"""(layer, its heads for N tokens) → float32 [N, Hq, D]."""

LocalForward = Callable[[Tensor, KeyTables, Tensor, Tensor, Tensor], Tensor]
"""(tokens, tables, slots, offsets, rows) → what `Model.forward` returns, where all keys lie in one pool and new ones
go to these slots and offsets. All int64; tables: of all N tokens, sequence by sequence."""


class Model:
    """Weights and the arithmetic over them; no state besides."""

    def __init__(self, config: ModelConfig, weights: Weights, choice: Choice) -> None:
        self.config, self.weights = config, weights
        self.dtype = weights.embed.dtype
        self._choice = choice
        self._ops = ops_of(choice)
        self._stretches = tuple(_stretches(weights, config.rms_norm_eps))
        self._betweens = tuple(between_of(choice, stretch) for stretch in self._stretches)
        self._rope = Rope(config.rope, config.head_dim, self.dtype)

    @classmethod
    def load(cls, model_dir: str | Path, dtype: str = "auto", choice: Choice | None = None) -> Model:
        """From a Hugging Face directory. dtype: "auto" is the checkpoint's own. choice: of what computes, the best
        there is by default. Raises CheckpointError."""
        config = ModelConfig.from_dir(model_dir)
        choice = choice or choose()
        return cls(config, load_weights(model_dir, config, dtype, choice), choice)

    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend, rows: Tensor) -> Tensor:
        """Last hidden states [M, hidden] of the M wanted rows, for `logits`.

        tokens, positions: int64 [N], of any sequences one after another; `attend` knows which row is whose.
        rows: int64 [M].
        """
        x, heads = self._begin(tokens, positions)
        for index, between in enumerate(self._betweens):
            attended = attend(index, heads)
            if index == self.config.num_layers - 1:
                x, attended = x[rows], attended[rows]
            x, found = between(x, attended)
            if index < self.config.num_layers - 1:
                heads = self._heads(index + 1, found, heads.cos, heads.sin)
        return found

    def forward_over(self, kvs: Sequence[LayerKv]) -> LocalForward | None:
        """A forward pass over the layers of one pool without a stop between them, where the native library can."""
        config, native = self.config, self._choice.native
        parts = zip(self.weights.layers, kvs, config.windows, self._stretches, strict=True)
        layers = [LocalLayer(layer.q_norm, layer.k_norm, kv, window, stretch) for layer, kv, window, stretch in parts]
        if native is None or not NativeLayers.can_run(layers):
            return None
        run = NativeLayers(native, layers, config.scale)

        def forward(tokens: Tensor, tables: KeyTables, slots: Tensor, offsets: Tensor, rows: Tensor) -> Tensor:
            return run(*self._begin(tokens, tables.positions), tables, slots, offsets, rows)

        return forward

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 [M, vocab] from what `forward` returned, or some rows of it: many rows of logits are large."""
        return self.weights.lm_head(hidden).float()

    def _begin(self, tokens: Tensor, positions: Tensor) -> tuple[Tensor, Heads]:
        first = self.weights.layers[0]
        x = self.weights.embed[tokens]
        found = first.qkv(self._ops.rms_norm(x, first.attention_norm, self.config.rms_norm_eps))
        return x, self._heads(0, found, *self._rope.angles(positions))

    def _heads(self, layer: int, found: Tensor, cos: Tensor, sin: Tensor) -> Heads:
        weights, config = self.weights.layers[layer], self.config
        return Heads(found, config.num_heads, cos, sin, weights.q_norm, weights.k_norm, config.rms_norm_eps)


def _stretches(weights: Weights, eps: float) -> Iterator[BetweenWeights]:
    for layer, following in zip_longest(weights.layers, weights.layers[1:]):
        yield BetweenWeights(
            o=layer.o,
            mlp_norm=layer.mlp_norm,
            gate_up=layer.gate_up,
            down=layer.down,
            next_norm=following.attention_norm if following else weights.norm,
            next_qkv=following.qkv if following else None,
            eps=eps,
        )
