"""Muon for the matrices of the layers, AdamW for the embedding and the gains.

Muon as in torch.optim, but in float32 and for all matrices of a shape at once: on processors without bfloat16 the
library's takes as long as the rest of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

MATRIX_RATE = 0.02
OTHER_RATE = 3e-3
WARM_UP_STEPS = 50
DECAY_SHARE = 0.55
CLIP = 1.0
MOMENTUM = 0.95
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5


class Muon:
    """Steps of one spectral size for matrices, along their orthogonalised momentum."""

    def __init__(self, matrices: Sequence[nn.Parameter]) -> None:
        by_shape: dict[torch.Size, list[nn.Parameter]] = {}
        for matrix in matrices:
            by_shape.setdefault(matrix.shape, []).append(matrix)
        self._groups = [(group, torch.zeros(len(group), *shape)) for shape, group in by_shape.items()]

    @property
    def state(self) -> list[Tensor]:
        """The momenta, which may be overwritten in place."""
        return [momentum for _, momentum in self._groups]

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Follow the gradients."""
        for group, momentum in self._groups:
            gradient = torch.stack([p.grad for p in group if p.grad is not None])
            momentum.lerp_(gradient, 1 - MOMENTUM)
            update = orthogonal(gradient.lerp(momentum, MOMENTUM))
            scale = max(1.0, update.shape[1] / update.shape[2]) ** 0.5
            for parameter, change in zip(group, update, strict=True):
                parameter.add_(change, alpha=-rate * scale)


def orthogonal(matrices: Tensor) -> Tensor:
    """[N, A, B], each near the closest matrix whose singular values are one (Newton-Schulz iteration)."""
    a, b, c = COEFFICIENTS
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    found: Tensor = x.mT if tall else x
    return found


class Optimiser:
    """Both, with warm-up and linear decay counted in steps."""

    def __init__(self, network: nn.Module, steps: int, scale: float) -> None:
        matrices = [p for name, p in network.named_parameters() if p.ndim == 2 and not name.startswith("embed")]
        others = [p for name, p in network.named_parameters() if p.ndim != 2 or name.startswith("embed")]
        self._muon = Muon(matrices)
        self._adam = torch.optim.AdamW(others, lr=OTHER_RATE, betas=(0.9, 0.98), weight_decay=0.0)
        self._parameters = [*matrices, *others]
        self._steps, self._scale = steps, scale

    def step(self, number: int) -> None:
        """Follow the gradients at the rate of this step, and forget them. scale: of all rates."""
        torch.nn.utils.clip_grad_norm_(self._parameters, CLIP)
        share = min(1.0, (number + 1) / WARM_UP_STEPS, (self._steps - number) / (DECAY_SHARE * self._steps))
        self._muon.step(MATRIX_RATE * self._scale * share)
        for group in self._adam.param_groups:
            group["lr"] = OTHER_RATE * self._scale * share
        self._adam.step()
        for parameter in self._parameters:
            parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        """What a later `load_state_dict` goes on from."""
        return {"muon": self._muon.state, "adam": self._adam.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        for momentum, kept in zip(self._muon.state, state["muon"], strict=True):
            momentum.copy_(kept)
        self._adam.load_state_dict(state["adam"])
