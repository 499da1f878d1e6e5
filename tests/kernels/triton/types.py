"""The types that queries and keys may have together, and how near float64 attention over them is."""

from __future__ import annotations

import pytest
import torch

of_all_types = pytest.mark.parametrize(
    ("q_dtype", "kv_dtype", "tolerance"),
    [
        (torch.bfloat16, torch.bfloat16, 5e-3),
        (torch.float16, torch.float16, 5e-4),
        (torch.bfloat16, torch.float8_e4m3fn, 5e-3),
        (torch.float16, torch.float8_e4m3fn, 5e-4),
        (torch.float32, torch.float8_e4m3fn, 2e-6),
        (torch.float32, torch.bfloat16, 2e-6),
        (torch.bfloat16, torch.float16, 2e-6),
        (torch.float16, torch.float32, 2e-6),
    ],
    ids=lambda value: str(value).removeprefix("torch."),
)
