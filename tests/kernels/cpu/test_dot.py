"""Templates for machines with products of bfloat16 pairs, or of tiles, with those in ordinary instructions."""

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
LEVELS = ("avx512bf16", "amx")
RELATIVE = 5e-3


@pytest.fixture(scope="module", params=LEVELS)
def dot_backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Backend:
    level = request.param
    compiler = shutil.which("c++")
    if compiler is None or "avx2" not in available():
        pytest.skip("needs a C++ compiler and AVX2")
    native = PATH.with_name("native")
    library = tmp_path_factory.mktemp("dot") / "dot.so"
    sources = [str(native / f"{name}.cpp") for name in (level, "threads", "machine")]
    subprocess.run([compiler, *FLAGS, EMULATE, *sources, "-o", str(library)], check=True)
    return NativeBackend(Native(ctypes.CDLL(str(library)), level))


@pytest.mark.slow
@pytest.mark.parametrize("window", [None, 37])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 4, 32), (8, 2, 64), (14, 2, 128), (20, 1, 64)])
@pytest.mark.parametrize("num_keys", [1, 16, 47, 290])
def test_decode(dot_backend: Backend, num_keys: int, heads: int, kv_heads: int, dim: int, window: int | None) -> None:
    check(dot_backend, num_keys, 1, heads, kv_heads, dim, window)


@pytest.mark.slow
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 4, 32), (8, 2, 64), (20, 1, 48)])
@pytest.mark.parametrize(("num_keys", "num_rows"), [(20, 20), (300, 70), (530, 9)])
def test_prefill(dot_backend: Backend, num_keys: int, num_rows: int, heads: int, kv_heads: int, dim: int) -> None:
    check(dot_backend, num_keys, num_rows, heads, kv_heads, dim, None)


@pytest.mark.slow
@pytest.mark.parametrize(("out", "width"), [(1, 1), (33, 7), (95, 65), (70, 600)])
def test_linear(dot_backend: Backend, out: int, width: int) -> None:
    generator = torch.Generator().manual_seed(out)
    shapes = ((out, width), (90, width), (out,))
    weight, x, bias = (torch.randn(*shape, generator=generator).bfloat16() for shape in shapes)
    linear = dot_backend.linear(weight, bias)
    for rows in (1, 4, 16, 17, 33, 64, 90):
        exact = x[:rows].double() @ weight.double().T + bias.double()
        assert (linear(x[:rows]).double() - exact).abs().max() <= RELATIVE * exact.abs().max()


def check(
    backend: Backend, num_keys: int, num_rows: int, heads: int, kv_heads: int, dim: int, window: int | None
) -> None:
    generator = torch.Generator().manual_seed(num_keys)
    num_slots = -(-num_keys // 16)
    k, v = (torch.randn(num_slots, kv_heads, 16, dim, generator=generator).bfloat16() for _ in range(2))
    slots = torch.randperm(num_slots, generator=generator).tolist()
    exist = num_keys - 16 * (num_slots - 1)
    for half in (k, v):
        half[slots[-1], :, exist:] = torch.nan
    blocks = BlockTable(tuple(slots), tuple(range(0, 16 * num_slots, 16)), num_keys, 16)
    q = torch.randn(num_rows, heads, dim, generator=generator).bfloat16()
    positions = torch.arange(num_keys - num_rows, num_keys)
    metadata = AttentionMetadata((range(num_rows),), (blocks,), positions)
    out, lse = backend.attend(q, layer_of(backend, k, v), metadata, dim**-0.5, window)
    expected_out, expected_lse = reference.micro_attention(q, k, v, blocks, positions, dim**-0.5, window)
    assert (out.double() - expected_out).norm() <= RELATIVE * expected_out.norm()
    torch.testing.assert_close(lse.double(), expected_lse, rtol=RELATIVE, atol=RELATIVE)
