"""A step that is begun before the tokens of the one before are on the host: it takes them where they are sampled."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from distkv.engine.device.device import Device
from distkv.engine.step.batch import PlannedSeq


def fill_in(tokens: Tensor, planned: Sequence[PlannedSeq], sampled: Tensor, device: Device) -> None:
    """Put the tokens that `planned` has a `source` for into those of a step, int64 [N], all its sequences one after
    another. sampled: int64 [M]. Both are on the device."""
    sources = [one.source for one in planned if one.source is not None]
    if not sources:
        return
    ends = accumulate(len(one.tokens) for one in planned)
    rows = [end - 1 for end, one in zip(ends, planned, strict=True) if one.source is not None]
    if rows == sources == list(range(len(tokens))):
        tokens.copy_(sampled[: len(rows)])  # decodes on, all of them: nothing has to be looked up
        return
    at, there = device.to_device(torch.tensor(rows), torch.tensor(sources))
    tokens.index_copy_(0, at, sampled.index_select(0, there))
