"""Which GPU each instance of a local cluster computes on. Nothing here loads torch, which takes a while."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from distkv.errors import ConfigError

VISIBLE = "CUDA_VISIBLE_DEVICES"
ANY = ("auto", "cuda")
"""Devices that leave open which GPU."""


def count_gpus(devices: Path = Path("/dev"), environment: Mapping[str, str] = os.environ) -> int:
    """GPUs of this machine that workers may use; 0 where the torch that is installed has no use for them."""
    try:
        if version("torch").endswith("+cpu") or find_spec("triton") is None:
            return 0
    except PackageNotFoundError:
        return 0
    if (visible := environment.get(VISIBLE)) is not None:
        return len([name for name in visible.split(",") if name.strip() not in ("", "-1")])
    return len([entry for entry in devices.iterdir() if re.fullmatch(r"nvidia\d+", entry.name)])


def deal(wanted: Sequence[str], gpus: int) -> list[str]:
    """A device for each instance: those that leave open which GPU get one after the other, in turn, where there are
    several instances and there is one at all."""
    if gpus == 0 or len(wanted) == 1:
        return list(wanted)
    dealt = iter(range(len(wanted)))
    return [f"cuda:{next(dealt) % gpus}" if device in ANY else device for device in wanted]


def check_sizes(devices: Sequence[str], are_sized: Sequence[bool]) -> None:
    """Raise ConfigError where instances share a GPU and one of them would take what it finds there."""
    for device in dict.fromkeys(devices):
        on_it = [index for index, one in enumerate(devices) if one == device]
        if device.startswith("cuda:") and len(on_it) > 1 and not all(are_sized[index] for index in on_it):
            names = ", ".join(f"i{index}" for index in on_it)
            raise ConfigError(
                "kv_tokens",
                f"{names} share {device} and have no pools of a given size",
                "give kv_tokens, or start fewer",
            )
