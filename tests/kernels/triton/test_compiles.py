"""The compiler takes every kernel and makes of it what the code hopes for. No GPU is needed to see that."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed: it comes with the extra 'gpu'")

from tests.kernels.triton import hopper


@pytest.fixture
def compiled_before(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Where Triton finds what it compiled of the same sources, for another case or in another run of the tests."""
    cache: pytest.Cache | None = getattr(request.config, "cache", None)
    return tmp_path if cache is None else cache.mkdir("triton")


@pytest.mark.slow
@pytest.mark.timeout(450)
@pytest.mark.parametrize("case", hopper.CASES)
def test_kernels_compile_for_hopper(case: str, compiled_before: Path) -> None:
    environment = os.environ | {"TRITON_CACHE_DIR": str(compiled_before), "PYTHONWARNINGS": "ignore"}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.triton.hopper", case],
        env=environment,
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    kernels = [json.loads(line) for line in done.stdout.splitlines()]
    attention = {"_decode_kernel", "_prefill", "_merge_splits", "_merge_kernel"}
    beside = {"_store", "_rms_norm", "_silu_mul", "_copy_kernel"}
    names = [kernel["kernel"] for kernel in kernels]
    assert attention | beside <= set(names)
    # One that leaves partials, the same with its own merge and as a persistent grid, and two that graphs hold. Graphs
    # have no ALiBi: with it, what leaves partials in them is another kernel than beside them.
    expected = 6 if "ALiBi" in case else 5
    assert names.count("_decode_kernel") == expected, "a kernel was compiled again for another length"
    copies = [kernel["stored_bytes"] for kernel in kernels if kernel["kernel"] == "_copy_kernel"]
    assert copies == [16, 16, 16, 8, 8], "blocks are copied in small pieces, or a kernel was compiled for an address"
    for mail in ("", "_rows"):
        (post,) = (kernel for kernel in kernels if kernel["kernel"] == f"_post{mail}_kernel")
        assert post["atomics"] == ["atom.global.sys.acq_rel.add.u32", "atom.global.sys.release.exch.b64"]
        (take,) = (kernel for kernel in kernels if kernel["kernel"] == f"_take{mail}_kernel")
        assert take["loads"] == ["ld.volatile.global.b32", "ld.volatile.global.b64"] and not take["atomics"]
    assert names.count("_sums_kernel") == 1, "a kernel was compiled again for another size"
    for kernel in kernels:
        if case != "float32":
            # Some bytes, outside of loops, do no harm.
            assert kernel["stack_bytes"] <= 128, f"registers are spilled: {kernel}"
        if kernel["kernel"] == "_decode_kernel" and case.startswith("llama"):
            # One that merges, which is known by its counter, has two of these.
            most = 255 if kernel["atomics"] else 168
            assert kernel["registers"] <= most, "a multiprocessor has registers for fewer than three programs"
        if kernel["kernel"] in ("_decode_kernel", "_prefill"):
            assert max(kernel["async_copy_bytes"]) == 16, f"keys and values are not copied 16 bytes at a time: {kernel}"
            assert kernel["tensor_cores"] == (case != "float32")
