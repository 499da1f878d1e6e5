"""Compiles kernels for Hopper where there is no GPU: what the interpreter runs, the compiler may still refuse.

Run as a program with a case as its argument, without TRITON_INTERPRET. Prints one JSON object per compiled kernel.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from distkv.kernels import AttentionMetadata, BlockTable, FusedQkv, RowKv
from distkv.kernels.attention.static_decode import StaticInputs
from distkv.kernels.mail_table import MailField, MailTable
from distkv.kernels.mailbox import Lane
from distkv.kernels.triton.attention.decode import decode_attention
from distkv.kernels.triton.attention.decode_plan import decode_plan
from distkv.kernels.triton.attention.prefill import prefill_attention
from distkv.kernels.triton.attention.templates import Shape, Template, heuristic
from distkv.kernels.triton.backend import TritonBackend
from distkv.kernels.triton.checksum import sums_of_blocks
from distkv.kernels.triton.copy import copy_blocks, gather_blocks, scatter_blocks
from distkv.kernels.triton.layer.linear import TritonLinear
from distkv.kernels.triton.layer.ops import TritonOps
from distkv.kernels.triton.mail_table import post_rows, take_rows
from distkv.kernels.triton.mailbox import post_mail, take_mail
from distkv.kernels.triton.metadata import device_metadata


@dataclass(frozen=True)
class Case:
    """Heads, types and blocks that kernels are compiled for, and contexts that they are not. is_whole: with every size
    of merges, and not only the first and the largest."""

    heads: int = 32
    kv_heads: int = 8
    dim: int = 128
    block_tokens: int = 16
    q_dtype: torch.dtype = torch.bfloat16
    kv_dtype: torch.dtype = torch.bfloat16
    lengths: tuple[int, ...] = (4096,)
    alibi: bool = False
    is_whole: bool = True

    @property
    def kv(self) -> RowKv:
        """A layer of one block."""
        return RowKv(*torch.zeros(2, 1, self.kv_heads, self.block_tokens, self.dim).to(self.kv_dtype))

    @property
    def merged(self) -> tuple[int, ...]:
        """How many parts are merged into one."""
        return (3, 8, 16, 32) if self.is_whole else (3, 32)

    def queries(self, rows: int) -> torch.Tensor:
        """[rows, Hq, D]"""
        return torch.zeros(rows, self.heads, self.dim, dtype=self.q_dtype)


CASES = {
    "llama": Case(lengths=(4096, 5003, 30_011), is_whole=False),
    "llama, 40k keys": Case(lengths=(40_000, 77_777)),
    "fp8": Case(kv_dtype=torch.float8_e4m3fn),
    "float32": Case(q_dtype=torch.float32, kv_dtype=torch.float32),
    "71 heads of one, dim 64": Case(heads=71, kv_heads=1, dim=64),
    "dim 80, 48 tokens, ALiBi": Case(dim=80, block_tokens=48, alibi=True),
    "dim 256": Case(dim=256),
    "blocks of 128 tokens": Case(block_tokens=128, lengths=(4096,)),
}


_ODD_BYTES = 4104
"""Of an rBlock that is no multiple of 16 bytes: every other one begins between two of them."""


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


def attend(case: Case) -> None:
    """Calls with one row of one sequence and many of another, and a merge."""
    backend, kv, q = TritonBackend(), case.kv, case.queries(301)
    slopes = torch.zeros(case.heads) if case.alibi else None
    for num_keys in case.lengths:
        starts = tuple(range(0, num_keys, case.block_tokens))
        blocks = BlockTable((0,) * len(starts), starts, num_keys, case.block_tokens)
        metadata = AttentionMetadata((range(1), range(1, 301)), (blocks, blocks), torch.zeros(301, dtype=torch.int64))
        part = backend.attend(q, kv, metadata, 0.1, None, slopes)
        for count in case.merged:
            backend.merge([part] * count)
        many = device_metadata(metadata, q.device), torch.ones(1, dtype=torch.int32), 300
        prefill_attention(q, kv.k, kv.v, *many, *part, 0.1, None, slopes, splits=2)


def persistent_decode(case: Case) -> None:
    """Of rows that are divided."""
    kv, q = case.kv, case.queries(1)
    shape = Shape.of(q, kv.k)
    config = replace(heuristic(shape), resident=2)
    blocks = BlockTable((0,) * 99, range(0, 99 * case.block_tokens, case.block_tokens), 5000, case.block_tokens)
    metadata = AttentionMetadata((range(1),), (blocks,), torch.zeros(1, dtype=torch.int64))
    there = device_metadata(metadata, q.device)
    plan = decode_plan(there, np.arange(1), shape, config, 9, None, (Template.SPLIT, 256))
    out = torch.zeros(1 + plan.num_parts, case.heads, case.dim)
    decode_attention(q, kv.k, kv.v, there, plan, out, out[:, :, 0].contiguous(), 0.1)


def captured_attention(case: Case) -> None:
    """Decode in a graph, for contexts of any length."""
    kv, attended, positions = case.kv, case.queries(2), torch.zeros(2, dtype=torch.int64)
    tables, backend = torch.zeros(9, dtype=torch.int32), TritonBackend()
    for merged_elsewhere in (False, True):
        inputs = StaticInputs(tables, 4, positions, attended, (None, 64), merged_elsewhere)
        for most_keys in backend.static_keys:
            decode = backend.static_decode(inputs, kv, most_keys)
            for window in inputs.windows:
                decode.attend(attended, kv, 0.1, window)


def beside_attention(case: Case) -> None:
    """The rest of a layer, and transfers of its rBlocks."""
    kv, angle = case.kv, torch.zeros(3, case.dim, dtype=case.q_dtype)
    rows = torch.zeros(3, (case.heads + 2 * case.kv_heads) * case.dim, dtype=case.q_dtype)
    place = torch.zeros(3, dtype=torch.int64)
    TritonBackend().store(FusedQkv(rows, case.heads, angle, angle, angle[0], angle[0]), kv, place, place)
    TritonOps().add_rms_norm(rows, rows, rows[0], 1e-5)
    TritonOps().silu_mul(rows)
    TritonBackend().likeliest(rows)
    for outputs, inputs in ((2048, 2048), (3072, 10_240)):
        linear = TritonLinear(torch.zeros(outputs, inputs, dtype=case.q_dtype), None)
        for count in (1, 3):
            linear(torch.zeros(count, inputs, dtype=case.q_dtype))
    pool = kv.k.view(1, -1).view(torch.uint8)
    scatter_blocks(gather_blocks(pool, place[:1]), pool, place[:1])
    copy_blocks(pool, place[:1], pool.clone(), place[:1])
    odd = torch.zeros(3 * _ODD_BYTES, dtype=torch.uint8)
    for at in (0, 8):
        pool = odd[at : at + 2 * _ODD_BYTES].view(2, _ODD_BYTES)
        scatter_blocks(gather_blocks(pool, place[:1]), pool, place[:1])


def checksums() -> None:
    """Of rBlocks of any size and number."""
    for num_bytes in (4096, 4104):
        for slots in (1, 3):
            sums_of_blocks(torch.zeros(3, num_bytes, dtype=torch.uint8), torch.zeros(slots, dtype=torch.int64))


def mail(case: Case) -> None:
    """What two devices say to each other in a layer, at both ends, with the number of a step far on."""
    word = torch.zeros(1, dtype=torch.int64)
    words = torch.zeros(case.heads * (case.dim + 1), dtype=torch.int32)
    lane = Lane(word, word, words, word, word.int(), word.repeat(2))
    query = torch.zeros(1, case.heads, case.dim)
    partial = query, torch.zeros(1, case.heads)
    for number in (1, 2**40):
        for tensors in ((query.bfloat16(),), partial):
            post_mail(lane, number, *tensors, timed=True)
            take_mail(lane, number, *tensors, limit_s=30.0, timed=True)


def mail_of_a_step(case: Case) -> None:
    """The same in a graph, of steps of some sizes."""
    for rows in (1, 4):
        table = MailTable(torch.zeros(2, len(MailField) + rows, dtype=torch.int64))
        queries, out = case.queries(rows), torch.zeros(3 * rows + 1, case.heads, case.dim)
        for layer in (0, 1, 16):
            post_rows(table, layer, queries, timed=True)
            take_rows(table, layer, out, out[:, :, 0].contiguous(), timed=True)


if __name__ == "__main__":
    compile_instead_of_running()
    chosen = CASES[sys.argv[1]]
    attend(chosen)
    persistent_decode(chosen)
    captured_attention(chosen)
    beside_attention(chosen)
    checksums()
    mail(chosen)
    mail_of_a_step(chosen)
