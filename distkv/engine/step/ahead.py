"""A step that is begun before the tokens of the one before are on the host: it takes them where they are sampled."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from distkv.engine.device.device import Device
from distkv.engine.step.batch import Batch, PlannedSeq


def fill_in(batches: Sequence[Batch], planned: Sequence[PlannedSeq], sampled: Tensor, device: Device) -> None:
    """Put the tokens that `planned` has a `source` for into the one batch that there is. sampled: int64 [M], on the
    device."""
    sources = [one.source for one in planned if one.source is not None]
    if not sources:
        return
    (batch,) = batches
    rows = [seq.rows.stop - 1 for seq, one in zip(batch.seqs, planned, strict=True) if one.source is not None]
    if rows == sources == list(range(len(batch.tokens))):
        batch.tokens.copy_(sampled[: len(rows)])  # decodes on, all of them: nothing has to be looked up
        return
    at, there = device.to_device(torch.tensor(rows), torch.tensor(sources))
    batch.tokens.index_copy_(0, at, sampled.index_select(0, there))
