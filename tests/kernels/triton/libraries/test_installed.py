"""FlashInfer and FlashAttention-3 themselves, where they are installed and there is a GPU."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed: it comes with the extra 'gpu'")

from distkv.kernels.triton.attention.templates import Shape
from distkv.kernels.triton.libraries.flash_attention3 import FlashAttention3
from distkv.kernels.triton.libraries.flash_infer import FlashInfer
from distkv.kernels.triton.libraries.pages import Pages
from tests.kernels.triton.libraries.cases import Sequences

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

KINDS = [
    pytest.param(FlashInfer, marks=pytest.mark.skipif(find_spec("flashinfer") is None, reason="no FlashInfer")),
    pytest.param(
        FlashAttention3,
        marks=pytest.mark.skipif(find_spec("flash_attn_interface") is None, reason="no FlashAttention-3"),
    ),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("heads", [(32, 8, 128), (16, 16, 64)])
@pytest.mark.parametrize(("rows", "lengths"), [((1, 1, 1), (16, 333, 7)), ((30, 1, 5), (40, 170, 5))])
def test_partials_are_those_of_the_reference(
    kind: Callable[..., Any], rows: tuple[int, ...], lengths: tuple[int, ...], heads: tuple[int, int, int]
) -> None:
    device = torch.device("cuda")
    drawn = Sequences.drawn(rows, lengths, heads, 16, torch.bfloat16, device)
    drawn.check(kind(Pages.of(drawn.rows, drawn.tables), Shape.of(drawn.q, drawn.kv.k), drawn.scale, device), 2e-2)
