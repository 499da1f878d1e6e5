"""Attention metadata as the native library reads it."""

from __future__ import annotations

import ctypes

from distkv.kernels.attention_metadata import AttentionMetadata
from distkv.kernels.cpu.functions import AttendSeq


class Sequences:
    """The sequences of a call as the library wants them; keeps what it points to alive."""

    def __init__(self, metadata: AttentionMetadata) -> None:
        self.count = len(metadata.rows)
        self.num_rows = 0
        self._kept = [(blocks.slot_index, blocks.starts) for blocks in metadata.block_tables]
        self._seqs = (AttendSeq * self.count)()
        for seq, rows, blocks, (slots, starts) in zip(
            self._seqs, metadata.rows, metadata.block_tables, self._kept, strict=True
        ):
            seq.slots, seq.positions = slots.data_ptr(), starts.data_ptr()
            seq.num_blocks, seq.num_keys = len(blocks), blocks.num_keys
            seq.first_row, seq.num_rows, seq.out_row = rows.start, len(rows), self.num_rows
            self.num_rows += len(rows)
        self.address = ctypes.addressof(self._seqs)


def sequences_of(metadata: AttentionMetadata) -> Sequences:
    """Made once per table."""
    found: Sequences | None = metadata.prepared.get("native")
    if found is None:
        found = metadata.prepared["native"] = Sequences(metadata)
    return found
