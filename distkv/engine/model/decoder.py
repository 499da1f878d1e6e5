"""The forward pass of a Llama-family decoder over flattened tokens. Rounds where transformers rounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from torch import Tensor

from distkv.engine.device.cpu import CpuDevice
from distkv.engine.device.device import Device
from distkv.engine.model.config import ModelConfig
from distkv.engine.model.rope import Rope
from distkv.engine.model.weights import Weights, load_weights
from distkv.kernels import LayerKv
from distkv.kernels.layer.fused_qkv import FusedQkv
from distkv.kernels.layer.layer_tail import LayerTailWeights
from distkv.kernels.layer.layers import Layer, Layers


class Model:
    """Weights and the arithmetic over them; no state besides."""

    def __init__(self, config: ModelConfig, weights: Weights, device: Device) -> None:
        self.config, self.heads, self.weights, self.device = config, config.heads, weights, device
        self.dtype = weights.embed.dtype
        self._tail_weights = tuple(_tail_weights(weights, config.rms_norm_eps))
        self._layer_tails = tuple(map(device.backend.layer_tail, self._tail_weights))
        self._rope = Rope(config.rope, config.head_dim, self.dtype, device.place)

    @classmethod
    def load(cls, model_dir: str | Path, dtype: str = "auto", device: Device | None = None) -> Model:
        """From a Hugging Face directory. dtype: "auto" is the checkpoint's own. device: the CPU by default. Raises
        CheckpointError."""
        config = ModelConfig.from_dir(model_dir)
        device = device or CpuDevice()
        return cls(config, load_weights(model_dir, config, dtype, device), device)

    def begin(self, tokens: Tensor, positions: Tensor) -> tuple[Tensor, FusedQkv]:
        """Residual stream [N, hidden] and fused QKV of the first layer. tokens, positions: int64 [N], of any sequences
        one after another."""
        first = self.weights.layers[0]
        x = self.weights.embed[tokens]
        normal = self.device.backend.ops.rms_norm(x, first.attention_norm, self.config.rms_norm_eps)
        return x, self._qkv(0, first.qkv(normal), *self._rope.angles(positions))

    def advance(self, layer: int, x: Tensor, attended: Tensor, qkv: FusedQkv) -> tuple[Tensor, FusedQkv]:
        """The rest of a layer that is not the last: residual stream after it, and the next layer's fused QKV.

        x: which may be overwritten, and qkv: what came before its attention. attended: [N, Hq, D], of the attention.
        """
        x, found = self._layer_tails[layer](x, attended)
        return x, self._qkv(layer + 1, found, qkv.cos, qkv.sin)

    def end(self, x: Tensor, attended: Tensor) -> Tensor:
        """The rest of the last layer: last hidden states, for `logits`."""
        return self._layer_tails[-1](x, attended)[1]

    def layers_over(self, kvs: Sequence[LayerKv]) -> Layers | None:
        """All layers over one pool without a stop between them, where the device has that."""
        config = self.config
        parts = zip(self.weights.layers, kvs, config.windows, self._tail_weights, strict=True)
        layers = [Layer(layer.q_norm, layer.k_norm, kv, window, tail) for layer, kv, window, tail in parts]
        return self.device.backend.layers_of(layers, config.scale)

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 [M, vocab] from last hidden states, or some rows of them: many rows of logits are large."""
        return self.weights.lm_head(hidden).float()

    def likeliest(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of a few rows, see Backend."""
        return self.device.backend.likeliest(self.weights.lm_head(hidden))

    def _qkv(self, layer: int, found: Tensor, cos: Tensor, sin: Tensor) -> FusedQkv:
        weights, eps = self.weights.layers[layer], self.config.rms_norm_eps
        return FusedQkv(found, self.heads.queries, cos, sin, weights.q_norm, weights.k_norm, eps)


def _tail_weights(weights: Weights, eps: float) -> Iterator[LayerTailWeights]:
    for layer, following in zip_longest(weights.layers, weights.layers[1:]):
        yield LayerTailWeights(
            o=layer.o,
            mlp_norm=layer.mlp_norm,
            gate_up=layer.gate_up,
            down=layer.down,
            next_norm=following.attention_norm if following else weights.norm,
            next_qkv=following.qkv if following else None,
            eps=eps,
        )
