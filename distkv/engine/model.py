"""The forward pass of a Llama-family decoder over flattened tokens. Rounds where transformers rounds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from distkv.engine.config import ModelConfig
from distkv.engine.rope import Rope, rotate
from distkv.engine.weights import LayerWeights, Weights, load_weights

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, q [N, Hq, D], k [N, Hkv, D], v [N, Hkv, D]) → float32 [N, Hq, D]; q and k are rotated already."""


class Model:
    """Weights and the arithmetic over them; no state besides."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        self.config, self.weights = config, weights
        self.dtype = weights.embed.dtype
        self._rope = Rope(config.rope, config.head_dim, self.dtype)

    @classmethod
    def load(cls, model_dir: str | Path, dtype: str = "auto") -> Model:
        """From a Hugging Face directory. dtype: "auto" is the checkpoint's own. Raises CheckpointError."""
        config = ModelConfig.from_dir(model_dir)
        return cls(config, load_weights(model_dir, config, dtype))

    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend, rows: Tensor) -> Tensor:
        """Last hidden states [M, hidden] of the M wanted rows, for `logits`.

        tokens, positions: int64 [N], of any sequences one after another; `attend` knows which row is whose.
        rows: int64 [M].
        """
        x = self.weights.embed[tokens]
        cos, sin = self._rope.angles(positions)
        for index, layer in enumerate(self.weights.layers):
            attended = attend(index, *self._qkv(x, layer, cos, sin)).to(self.dtype).flatten(1)
            if index == self.config.num_layers - 1:
                x, attended = x[rows], attended[rows]
            x = x + F.linear(attended, layer.o, layer.o_bias)
            x = x + self._mlp(x, layer)
        return self._norm(x, self.weights.norm)

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 [M, vocab] from what `forward` returned, or some rows of it: many rows of logits are large."""
        return F.linear(hidden, self.weights.lm_head).float()

    def _qkv(self, x: Tensor, layer: LayerWeights, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        config = self.config
        heads = F.linear(self._norm(x, layer.attention_norm), layer.qkv, layer.qkv_bias).view(
            len(x), -1, config.head_dim
        )
        rotated = config.num_heads + config.num_kv_heads
        qk, v = heads[:, :rotated], heads[:, rotated:]
        if layer.qk_norm is not None:
            qk = self._norm(qk, layer.qk_norm)
        qk = rotate(qk, cos, sin)
        return qk[:, : config.num_heads], qk[:, config.num_heads :], v

    def _mlp(self, x: Tensor, layer: LayerWeights) -> Tensor:
        gate, up = F.linear(self._norm(x, layer.mlp_norm), layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
        return F.linear(F.silu(gate) * up, layer.down, layer.down_bias)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        wide = x.float()
        normal = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.config.rms_norm_eps)
        return weight * normal.to(x.dtype)
