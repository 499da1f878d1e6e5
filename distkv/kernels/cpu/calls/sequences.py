"""Attention metadata as the native library reads it."""

from __future__ import annotations

import ctypes

import numpy as np
import torch
from numpy.typing import NDArray

from distkv.kernels.attention.attention_metadata import AttentionMetadata
from distkv.kernels.cpu.calls.functions import AttendSeq


class Sequences:
    """The sequences of a call, as in native/attend.h; keeps what it points to alive."""

    def __init__(self, metadata: AttentionMetadata) -> None:
        self.count = len(metadata.rows)
        self.num_rows = 0
        self._tables = metadata.block_tables
        self._seqs = (AttendSeq * self.count)()
        for seq, rows, table in zip(self._seqs, metadata.rows, self._tables, strict=True):
            seq.slots, seq.positions = _address(table.slots), _address(table.positions)
            seq.num_blocks, seq.num_keys = len(table), table.num_keys
            seq.first_row, seq.num_rows, seq.out_row = rows.start, len(rows), self.num_rows
            self.num_rows += len(rows)
        self.address = ctypes.addressof(self._seqs)


def sequences_of(metadata: AttentionMetadata) -> Sequences:
    """Made once for all layers."""
    found: Sequences | None = metadata.prepared.get("native")
    if found is None:
        found = metadata.prepared["native"] = Sequences(metadata)
    return found


def _address(numbers: NDArray[np.int64]) -> int:
    """Where an array lies; numpy's own way takes longer."""
    return torch.from_numpy(numbers).data_ptr()
