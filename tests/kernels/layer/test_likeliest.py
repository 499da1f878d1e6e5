"""The likeliest token of rows of logits, by every backend that runs here."""

from __future__ import annotations

import pytest
import torch

from distkv.kernels import Backend
from tests.kernels.cpu.layer.test_linear import DTYPES, random
from tests.kernels.layers import device_of


@pytest.mark.parametrize("vocab", [2, 300, 2049, 5000])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_likeliest(backend: Backend, dtype: torch.dtype, vocab: int) -> None:
    """Of equals the first, also of those that are all impossible; what is no number counts as the largest, and is told
    by a token that there is not."""
    logits = random(4, 2 * vocab, dtype=dtype).to(device_of(backend))[:, vocab:]
    logits[1, vocab // 3] = logits[1, vocab - 1] = 99.0
    logits[2] = -torch.inf
    logits[3, vocab // 2] = torch.nan
    wide, tokens, checked = backend.likeliest(logits)
    torch.testing.assert_close(wide, logits.float(), rtol=0, atol=0, equal_nan=True)
    assert tokens.dtype == checked.dtype == torch.int64
    assert tokens.tolist() == [int(logits[0].double().argmax()), vocab // 3, 0, vocab // 2]
    assert checked.tolist() == [*tokens[:2].tolist(), vocab, vocab]
    logits[3, vocab // 2], logits[0, vocab - 1] = 0.0, torch.inf
    _, tokens, checked = backend.likeliest(logits)
    assert tokens[0] == vocab - 1 and checked[0] == vocab and tokens[3] == checked[3] < vocab
