"""Rotary position settings of config.json, in the spelling of transformers 4 (rope_scaling) and 5 (rope_parameters)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from distkv.errors import CheckpointError

SUPPORTED = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True)
class RopeConfig:
    """Rotary frequencies. `kind` is one of SUPPORTED; a field that its kind does not use has its default.

    attention_factor multiplies cos and sin (yarn). original_max_positions: what the model knew before scaling.
    """

    kind: str = "default"
    theta: float = 10_000.0
    factor: float = 1.0
    original_max_positions: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True


def parse_rope(raw: Mapping[str, Any], max_positions: int, path: str) -> RopeConfig:
    """From the whole of config.json. Raises CheckpointError for kinds we do not have, and for missing numbers."""
    rope = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    if not isinstance(rope, Mapping) or any(isinstance(value, Mapping) for value in rope.values()):
        raise CheckpointError(path, f"rope parameters that differ by layer are not supported: {rope!r}")
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind not in SUPPORTED:
        raise CheckpointError(path, f"rope scaling {kind!r} is not supported; supported are {', '.join(SUPPORTED)}")
    partial = rope.get("partial_rotary_factor", raw.get("partial_rotary_factor"))
    if partial not in (None, 1, 1.0):
        raise CheckpointError(path, f"partial_rotary_factor {partial!r} is not supported; all of a head is rotated")
    numbers = _Numbers(rope, path)
    theta = numbers.positive("rope_theta", raw.get("rope_theta") or 10_000.0)
    if kind == "default":
        return RopeConfig(theta=theta)
    if kind == "linear":
        return RopeConfig(kind, theta, numbers.positive("factor"))
    # A value beside the rope settings wins over one among them, as in transformers.
    key = "original_max_position_embeddings"
    length = _Numbers(raw, path).positive(key, numbers.positive(key, max_positions))
    original = int(length)
    if original != length:
        raise CheckpointError(path, f"rope parameter {key} should be an integer, is {length:g}")
    if kind == "llama3":
        low, high = numbers.positive("low_freq_factor"), numbers.positive("high_freq_factor")
        if low >= high:
            raise CheckpointError(path, f"rope parameter low_freq_factor {low} should be under high_freq_factor {high}")
        return RopeConfig(kind, theta, numbers.positive("factor"), original, low, high)
    if theta == 1:
        raise CheckpointError(path, "rope_theta 1 has no frequencies that yarn could tell apart")
    factor = max_positions / original if rope.get("factor", 0) is None else numbers.positive("factor")
    return RopeConfig(
        kind,
        theta,
        factor,
        original,
        attention_factor=_yarn_attention_factor(numbers, factor),
        beta_fast=numbers.positive("beta_fast", 32.0) if rope.get("beta_fast") else 32.0,
        beta_slow=numbers.positive("beta_slow", 1.0) if rope.get("beta_slow") else 1.0,
        truncate=bool(rope.get("truncate", True)),
    )


def _yarn_attention_factor(numbers: _Numbers, factor: float) -> float:
    given = numbers.get("attention_factor", math.nan)
    if not math.isnan(given):
        return given
    mscale, mscale_all_dim = numbers.get("mscale", 0.0), numbers.get("mscale_all_dim", 0.0)
    if mscale and mscale_all_dim:
        return _mscale(factor, mscale) / _mscale(factor, mscale_all_dim)
    return _mscale(factor, 1.0)


def _mscale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


class _Numbers:
    """Numbers by name; None counts as absent."""

    def __init__(self, rope: Mapping[str, Any], path: str) -> None:
        self._rope, self._path = rope, path

    def get(self, name: str, default: float | None = None) -> float:
        value = self._rope.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise CheckpointError(self._path, f"rope parameter {name} should be a number, is {value!r}")
        return float(value)

    def positive(self, name: str, default: float | None = None) -> float:
        number = self.get(name, default)
        if not 0 < number < math.inf:
            raise CheckpointError(self._path, f"rope parameter {name} should be over 0, is {number:g}")
        return number
