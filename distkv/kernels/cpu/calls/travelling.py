"""Partials as frames have them, and as they are computed with."""

from __future__ import annotations

import torch

from distkv.kernels.attention.merge import Partial


class TravellingPartial:
    """Memory for the partials of a layer.

    flat: uint8, as a frame has them: out [rows, heads, dim], then lse float32 [rows, heads]. partial: float32; its lse
    lies in `flat`, and so does its out unless that travels as bfloat16: then it lies at `wide`, `num_halves` numbers
    (0 and 0 else). dim is even.
    """

    def __init__(self, rows: int, heads: int, dim: int, out_dtype: torch.dtype) -> None:
        count = rows * heads * dim
        out_bytes = count * out_dtype.itemsize
        self.flat = torch.empty(out_bytes + rows * heads * 4, dtype=torch.uint8)
        out, lse = self.flat[:out_bytes].view(out_dtype), self.flat[out_bytes:].view(torch.float32)
        travels_wide = out_dtype == torch.float32
        self._out = out if travels_wide else torch.empty(count)
        self.partial: Partial = self._out.view(rows, heads, dim), lse.view(rows, heads)
        self.wide, self.num_halves = (0, 0) if travels_wide else (self._out.data_ptr(), count)
