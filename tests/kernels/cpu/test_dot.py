"""The template for machines with products of bfloat16 pairs, with that instruction written out in ordinary ones."""

from __future__ import annotations

import ctypes
import shutil
import subprocess

import pytest
import torch

from distkv.kernels import AttentionMetadata, Backend, BlockTable
from distkv.kernels.attention import reference
from distkv.kernels.cpu.calls.library import PATH, Native
from distkv.kernels.cpu.dispatch import available
from distkv.kernels.cpu.native_backend import NativeBackend
from tests.kernels.layers import layer_of

FLAGS = ("-std=c++17", "-O1", "-fPIC", "-shared", "-pthread", "-fno-math-errno", "-w", "-mavx2", "-mfma", "-mf16c")
EMULATE = "-DDISTKV_EMULATE_DOT"
RELATIVE = 5e-3


@pytest.fixture(scope="module")
def dot_backend(tmp_path_factory: pytest.TempPathFactory) -> Backend:
    compiler = shutil.which("c++")
    if compiler is None or "avx2" not in available():
        pytest.skip("needs a C++ compiler and AVX2")
    native = PATH.with_name("native")
    library = tmp_path_factory.mktemp("dot") / "dot.so"
    sources = [str(native / f"{name}.cpp") for name in ("avx512bf16", "threads", "machine")]
    subprocess.run([compiler, *FLAGS, EMULATE, *sources, "-o", str(library)], check=True)
    return NativeBackend(Native(ctypes.CDLL(str(library)), "avx512bf16"))


@pytest.mark.slow
@pytest.mark.parametrize("window", [None, 37])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 4, 32), (8, 2, 64), (14, 2, 128), (20, 1, 64)])
@pytest.mark.parametrize("num_keys", [1, 16, 47, 290])
def test_decode(dot_backend: Backend, num_keys: int, heads: int, kv_heads: int, dim: int, window: int | None) -> None:
    generator = torch.Generator().manual_seed(num_keys)
    num_slots = -(-num_keys // 16)
    k, v = (torch.randn(num_slots, kv_heads, 16, dim, generator=generator).bfloat16() for _ in range(2))
    slots = torch.randperm(num_slots, generator=generator).tolist()
    exist = num_keys - 16 * (num_slots - 1)
    for half in (k, v):
        half[slots[-1], :, exist:] = torch.nan
    blocks = BlockTable(tuple(slots), tuple(range(0, 16 * num_slots, 16)), num_keys, 16)
    q, positions = torch.randn(1, heads, dim, generator=generator).bfloat16(), torch.tensor([num_keys - 1])
    metadata = AttentionMetadata((range(1),), (blocks,), positions)
    out, lse = dot_backend.attend(q, layer_of(dot_backend, k, v), metadata, dim**-0.5, window)
    expected_out, expected_lse = reference.micro_attention(q, k, v, blocks, positions, dim**-0.5, window)
    assert (out.double() - expected_out).norm() <= RELATIVE * expected_out.norm()
    torch.testing.assert_close(lse.double(), expected_lse, rtol=RELATIVE, atol=RELATIVE)
