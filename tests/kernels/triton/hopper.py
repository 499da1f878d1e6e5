"""Compiles kernels for Hopper where there is no GPU: what the interpreter runs, the compiler may still refuse.

Run as a program with a case as its argument, without TRITON_INTERPRET. Prints one JSON object per compiled kernel.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from distkv.kernels import AttentionMetadata, BlockTable, FusedQkv, RowKv
from distkv.kernels.mailbox import Lane
from distkv.kernels.static_decode import StaticInputs
from distkv.kernels.triton.attention.prefill import prefill_attention
from distkv.kernels.triton.attention.prefill_tiles import Tiles, takes
from distkv.kernels.triton.attention.templates import Shape
from distkv.kernels.triton.backend import TritonBackend
from distkv.kernels.triton.checksum import sums_of_blocks
from distkv.kernels.triton.copy import gather_blocks, scatter_blocks
from distkv.kernels.triton.mailbox import post_mail, take_mail
from distkv.kernels.triton.metadata import device_metadata
from distkv.kernels.triton.ops import TritonOps

CASES: dict[str, dict[str, Any]] = {
    "llama": dict(lengths=(4096, 5003, 30_011)),
    "llama, 40k keys": dict(lengths=(40_000, 77_777)),
    "fp8": dict(kv_dtype=torch.float8_e4m3fn),
    "float32": dict(q_dtype=torch.float32, kv_dtype=torch.float32),
    "71 heads of one, dim 64": dict(heads=71, kv_heads=1, dim=64),
    "dim 80, 48 tokens, ALiBi": dict(dim=80, block_tokens=48, alibi=True),
    "dim 256": dict(dim=256),
    "blocks of 128 tokens": dict(block_tokens=128, lengths=(4096,)),
}


_ODD_BYTES = 4104
"""Of an rBlock that is no multiple of 16 bytes: every other one begins between two of them."""


BY_DESCRIPTORS = (Tiles(128, 64, 8, 3, described=True), Tiles(64, 64, 4, 2, described=True))


class NoDriver:
    """What Triton asks a driver before it compiles."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device: int) -> int:
        return 0


def describe(name: str, asm: dict[str, Any]) -> dict[str, Any]:
    """How a kernel uses the machine."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(asm["cubin"])
        file.flush()
        tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
        usage = subprocess.run(
            [tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    registers, stack_bytes = map(int, re.search(r"REG:(\d+) STACK:(\d+)", usage).groups())
    copies = re.findall(r"cp\.async\.c[ag]\.shared\.global \[.*?\], \[.*?\], 0x(\w+)", asm["ptx"])
    return {
        "kernel": name,
        "registers": registers,
        "stack_bytes": stack_bytes,
        "async_copy_bytes": sorted({int(size, 16) for size in copies}),
        "stored_bytes": max(map(_stored_bytes, re.findall(r"st\.global\S*", asm["ptx"])), default=0),
        "loads": sorted(set(re.findall(r"ld\.[\w.:]*(?:volatile|relaxed|acquire)[\w.:]*", asm["ptx"]))),
        "atomics": sorted(set(re.findall(r"atom\.[\w.]+", asm["ptx"]))),
        "tma": "cp.async.bulk.tensor" in asm["ptx"],
        "tensor_cores": "wgmma" in asm["ptx"] or "mma.sync" in asm["ptx"],
    }


def _stored_bytes(instruction: str) -> int:
    """Of one thread at a time: st.global.v2.b64 stores 16."""
    vector, bits = re.fullmatch(r"st\.global.*?(?:\.v(\d))?\.[bfsu](\d+)", instruction).groups()
    return int(vector or 1) * int(bits) // 8


def compile_instead_of_running() -> None:
    """From now on launches compile, and print what came of it."""
    run, seen = JITFunction.run, set()

    def compiled(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        kernel = run(self, *args, grid=grid, warmup=True, **options)
        if kernel.hash not in seen:
            seen.add(kernel.hash)
            print(json.dumps(describe(self.fn.__name__, kernel.asm)), flush=True)
        return kernel

    JITFunction.run = compiled
    driver.set_active(NoDriver())


def attend(
    *,
    heads: int = 32,
    kv_heads: int = 8,
    dim: int = 128,
    block_tokens: int = 16,
    q_dtype: torch.dtype = torch.bfloat16,
    kv_dtype: torch.dtype = torch.bfloat16,
    lengths: tuple[int, ...] = (4096,),
    alibi: bool = False,
) -> None:
    """Calls with one row of one sequence and many of another, and a merge."""
    backend = TritonBackend()
    kv = RowKv(*torch.zeros(2, 1, kv_heads, block_tokens, dim).to(kv_dtype))
    q = torch.zeros(301, heads, dim, dtype=q_dtype)
    slopes = torch.zeros(heads) if alibi else None
    for num_keys in lengths:
        starts = tuple(range(0, num_keys, block_tokens))
        blocks = BlockTable((0,) * len(starts), starts, num_keys, block_tokens)
        metadata = AttentionMetadata((range(1), range(1, 301)), (blocks, blocks), torch.zeros(301, dtype=torch.int64))
        part = backend.attend(q, kv, metadata, 0.1, None, slopes)
        backend.merge([part, part, part])
        many = device_metadata(metadata, q.device), torch.ones(1, dtype=torch.int32), 300
        prefill_attention(q, kv.k, kv.v, *many, *part, 0.1, None, slopes, splits=2)
        for tiles in BY_DESCRIPTORS:
            if takes(tiles, Shape.of(q, kv.k), not alibi):
                prefill_attention(q, kv.k, kv.v, *many, *part, 0.1, tiles=tiles)


def captured_attention(
    *,
    heads: int = 32,
    kv_heads: int = 8,
    dim: int = 128,
    block_tokens: int = 16,
    q_dtype: torch.dtype = torch.bfloat16,
    kv_dtype: torch.dtype = torch.bfloat16,
    **_: Any,
) -> None:
    """Decode in a graph, for contexts of any length."""
    kv = RowKv(*torch.zeros(2, 1, kv_heads, block_tokens, dim).to(kv_dtype))
    positions = torch.zeros(2, dtype=torch.int64)
    attended = torch.zeros(2, heads, dim, dtype=q_dtype)
    inputs = StaticInputs(torch.zeros(9, dtype=torch.int32), 4, positions, attended, (None, 64))
    backend = TritonBackend()
    for most_keys in backend.static_keys:
        decode = backend.static_decode(inputs, kv, most_keys)
        for window in inputs.windows:
            decode.attend(attended, kv, 0.1, window)


def beside_attention(
    *,
    heads: int = 32,
    kv_heads: int = 8,
    dim: int = 128,
    block_tokens: int = 16,
    q_dtype: torch.dtype = torch.bfloat16,
    kv_dtype: torch.dtype = torch.bfloat16,
    **_: Any,
) -> None:
    """The rest of a layer, and transfers of its rBlocks."""
    kv = RowKv(*torch.zeros(2, 1, kv_heads, block_tokens, dim).to(kv_dtype))
    rows, angle = torch.zeros(3, (heads + 2 * kv_heads) * dim, dtype=q_dtype), torch.zeros(3, dim, dtype=q_dtype)
    place = torch.zeros(3, dtype=torch.int64)
    TritonBackend().store(FusedQkv(rows, heads, angle, angle, angle[0], angle[0]), kv, place, place)
    TritonOps().add_rms_norm(rows, rows, rows[0], 1e-5)
    TritonOps().silu_mul(rows)
    pool = kv.k.view(1, -1).view(torch.uint8)
    scatter_blocks(gather_blocks(pool, place[:1]), pool, place[:1])
    odd = torch.zeros(3 * _ODD_BYTES, dtype=torch.uint8)
    for at in (0, 8):
        pool = odd[at : at + 2 * _ODD_BYTES].view(2, _ODD_BYTES)
        scatter_blocks(gather_blocks(pool, place[:1]), pool, place[:1])


def checksums(**_: Any) -> None:
    """Of rBlocks of any size and number."""
    for num_bytes in (4096, 4104):
        for slots in (1, 3):
            sums_of_blocks(torch.zeros(3, num_bytes, dtype=torch.uint8), torch.zeros(slots, dtype=torch.int64))


def mail(*, heads: int = 32, dim: int = 128, **_: Any) -> None:
    """What two devices say to each other in a layer, at both ends, with the number of a step far on."""
    word = torch.zeros(1, dtype=torch.int64)
    lane = Lane(word, word, torch.zeros(heads * (dim + 1), dtype=torch.int32), word, word.int(), word.repeat(2))
    query, partial = torch.zeros(1, heads, dim).bfloat16(), (torch.zeros(1, heads, dim), torch.zeros(1, heads))
    for number in (1, 2**40):
        for tensors in ((query,), partial):
            post_mail(lane, number, *tensors, timed=True)
            take_mail(lane, number, *tensors, limit_s=30.0, timed=True)


if __name__ == "__main__":
    compile_instead_of_running()
    attend(**CASES[sys.argv[1]])
    captured_attention(**CASES[sys.argv[1]])
    beside_attention(**CASES[sys.argv[1]])
    checksums(**CASES[sys.argv[1]])
    mail(**CASES[sys.argv[1]])
