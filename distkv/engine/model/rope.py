"""Rotary position embedding with the frequencies of transformers: default, linear, llama3 and yarn."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from distkv.engine.model.rope_config import RopeConfig


class Rope:
    """Turns positions into cos and sin."""

    def __init__(
        self, config: RopeConfig, head_dim: int, dtype: torch.dtype, device: torch.device | None = None
    ) -> None:
        """device: of the positions; the CPU by default."""
        self._frequencies = inverse_frequencies(config, head_dim).to(device)
        self._factor = config.attention_factor
        self._dtype = dtype

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin, [N, D] each in the model's dtype, of int64 positions [N]."""
        half = positions[:, None].float() * self._frequencies
        angle = torch.cat((half, half), dim=-1)
        return (angle.cos() * self._factor).to(self._dtype), (angle.sin() * self._factor).to(self._dtype)


def inverse_frequencies(config: RopeConfig, head_dim: int) -> Tensor:
    """float32 [D/2]: radians per position."""
    plain = 1.0 / config.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    match config.kind:
        case "linear":
            return plain / config.factor
        case "llama3":
            return _llama3(config, plain)
        case "yarn":
            return _yarn(config, plain, head_dim)
    return plain


def _llama3(config: RopeConfig, plain: Tensor) -> Tensor:
    """Slow frequencies are divided by the factor, fast ones kept, those between blended."""
    length, low, high = config.original_max_positions, config.low_freq_factor, config.high_freq_factor
    wavelength = 2 * math.pi / plain
    blend = (length / wavelength - low) / (high - low)
    blended = (1 - blend) * plain / config.factor + blend * plain
    scaled = torch.where(wavelength > length / low, plain / config.factor, blended)
    return torch.where(wavelength < length / high, plain, scaled)


def _yarn(config: RopeConfig, plain: Tensor, head_dim: int) -> Tensor:
    """Dimensions that turn often are kept, those that turn less than once are divided, by a ramp between."""

    def dimension(rotations: float) -> float:
        """Which dimension turns that often within the original length."""
        length = config.original_max_positions
        return head_dim * math.log(length / (rotations * 2 * math.pi)) / (2 * math.log(config.theta))

    low, high = dimension(config.beta_fast), dimension(config.beta_slow)
    if config.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    kept = 1 - ramp
    return plain / config.factor * (1 - kept) + plain * kept
