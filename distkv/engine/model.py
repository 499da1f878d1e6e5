"""The forward pass of a Llama-family decoder over flattened tokens. Rounds where transformers rounds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from distkv.engine.config import ModelConfig
from distkv.engine.rope import Rope
from distkv.engine.weights import Weights, load_weights
from distkv.kernels.cpu.dispatch import Choice, choose
from distkv.kernels.cpu.ops import Ops, ops_of
from distkv.kernels.heads import Heads

Attend = Callable[[int, Heads], Tensor]
"""(layer, its heads for N tokens) → float32 [N, Hq, D]."""


class Model:
    """Weights and the arithmetic over them; no state besides."""

    def __init__(self, config: ModelConfig, weights: Weights, ops: Ops) -> None:
        self.config, self.weights = config, weights
        self.dtype = weights.embed.dtype
        self._ops = ops
        self._rope = Rope(config.rope, config.head_dim, self.dtype)

    @classmethod
    def load(cls, model_dir: str | Path, dtype: str = "auto", choice: Choice | None = None) -> Model:
        """From a Hugging Face directory. dtype: "auto" is the checkpoint's own. choice: of what computes, the best
        there is by default. Raises CheckpointError."""
        config = ModelConfig.from_dir(model_dir)
        choice = choice or choose()
        return cls(config, load_weights(model_dir, config, dtype, choice), ops_of(choice))

    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend, rows: Tensor) -> Tensor:
        """Last hidden states [M, hidden] of the M wanted rows, for `logits`.

        tokens, positions: int64 [N], of any sequences one after another; `attend` knows which row is whose.
        rows: int64 [M].
        """
        ops, eps, layers = self._ops, self.config.rms_norm_eps, self.weights.layers
        next_norms = (*(layer.attention_norm for layer in layers[1:]), self.weights.norm)
        cos, sin = self._rope.angles(positions)
        x = self.weights.embed[tokens]
        normal = ops.rms_norm(x, layers[0].attention_norm, eps)
        for index, (layer, next_norm) in enumerate(zip(layers, next_norms, strict=True)):
            heads = Heads(layer.qkv(normal), self.config.num_heads, cos, sin, layer.q_norm, layer.k_norm, eps)
            attended = attend(index, heads).to(self.dtype).flatten(1)
            if index == self.config.num_layers - 1:
                x, attended = x[rows], attended[rows]
            x, normal = ops.add_rms_norm(x, layer.o(attended), layer.mlp_norm, eps)
            x, normal = ops.add_rms_norm(x, layer.down(ops.silu_mul(layer.gate_up(normal))), next_norm, eps)
        return normal

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 [M, vocab] from what `forward` returned, or some rows of it: many rows of logits are large."""
        return self.weights.lm_head(hidden).float()
