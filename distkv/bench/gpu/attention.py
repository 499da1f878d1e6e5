"""`distkv bench attention --device cuda`: the Triton backend beside the device's copy bandwidth and other kernels.

Decode reads every key and value once, so its limit is what the device's memory moves, measured as a copy in the same
rounds: of contiguous memory, by which decode is judged, and of the same rBlocks. Every other contender is a captured
graph: the figures are of kernels, not of launching them. It goes over all layers of a pool, as a step does.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import torch

from distkv.bench.harness.alternate import Samples, alternate, paired_ratio
from distkv.bench.harness.command import Measured, Say
from distkv.bench.harness.report import Goal, at_least
from distkv.bench.harness.timing.gpu import (
    Clock,
    Work,
    clock_of,
    copying,
    free_bytes,
    gpu_facts,
    timed_milliseconds,
    timed_rate,
)
from distkv.bench.workloads.computing.attention import BLOCK_TOKENS, Shape
from distkv.bench.workloads.computing.gpu_attention import FLASH_ATTENTION_3, FLASHINFER, Cells, PagedBatch
from distkv.kernels import Backend
from distkv.kernels.triton.attention import templates
from distkv.kernels.triton.backend import TritonBackend
from distkv.kernels.triton.tuning import measure
from distkv.kernels.triton.tuning.tuned_table import TunedTable

OURS, COPY, PAGED_COPY = "triton", "device copy", "copy of the rBlocks"
LIBRARIES = (FLASHINFER, FLASH_ATTENTION_3)
DECODE = (Cells(1, 32768), Cells(1, 131072), Cells(16, 8192), Cells(32, 2048), Cells(64, 2048))
PREFILL = (Cells(1, 8192), Cells(4, 2048))


def backend_for(
    say: Say,
    shapes: tuple[Shape, ...],
    device: torch.device,
    tables: Path | None = None,
    *,
    layers: int,
    tune_s: float | None,
) -> TritonBackend:
    """With the configs that were measured on this GPU before; tune_s: measure those of these shapes now, within about
    so long, to keep. tables: a directory in place of the cache. layers: of rBlocks that they are measured with."""
    name = torch.cuda.get_device_name(device)
    table = TunedTable.load(name, tables)
    if tune_s is not None:
        path = None
        for _ in _tuned(say, table, shapes, device, layers, tune_s):
            path = table.save(name, tables)  # each time: what is measured is not lost
        say(f"tuned configs are in {path}")
    return TritonBackend(table)


def _tuned(
    say: Say, table: TunedTable, shapes: tuple[Shape, ...], device: torch.device, layers: int, tune_s: float
) -> Iterator[None]:
    """Pauses when a case is measured. Each has its share of the time, and what those before it have left of theirs; a
    case of all shapes comes before the next case of any."""
    timer = partial(timed_milliseconds, clock_of(device))
    wanted = [
        templates.Shape(shape.heads, shape.kv_heads, shape.dim, BLOCK_TOKENS, "bfloat16", "bfloat16")
        for shape in shapes
    ]
    decode = [(shape, case) for case in measure.CASES for shape in wanted]
    prefill = [(shape, case) for case in measure.PREFILL_CASES for shape in wanted]
    begun_s, count = time.monotonic(), len(decode) + len(prefill)
    for index, (shape, (keys, rows)) in enumerate([*decode, *prefill], 1):
        ends_s = begun_s + tune_s * index / count
        is_decode = index <= len(decode)
        say(f"tuning {'decode' if is_decode else 'prefill'} of {shape.key}, {rows:,} x {keys:,} keys")
        room = fitting(layers, measure.layer_bytes(shape, keys, rows if is_decode else 1), device)
        run = measure.tune if is_decode else measure.tune_prefill
        run(table, shape, device, room, [(keys, rows)], timer=timer, ends_s=ends_s)
        yield


def fitting(layers: int, layer_bytes: int, device: torch.device) -> int:
    """So many layers, or as many as half the free memory holds, at least one."""
    return max(1, min(layers, free_bytes(device) // 2 // layer_bytes))


def measure_on(
    device: torch.device,
    backend: Backend,
    say: Say,
    shapes: tuple[Shape, ...],
    decode: tuple[Cells, ...],
    prefill: tuple[Cells, ...],
    rounds: int,
    copy_bytes: int,
    layers: int,
) -> Measured:
    """Run it."""
    clock = clock_of(device)
    samples: Samples = {}
    fewer: list[str] = []
    missing: dict[str, str] = {}

    def batch(shape: Shape, cells: Cells) -> PagedBatch:
        room = fitting(layers, PagedBatch.layer_bytes(shape, cells), device)
        if room < layers:
            fewer.append(f"{shape} {cells}: {room}")
        made = PagedBatch(shape, cells, device, room)
        # What does not fit here is left out of the table now, and compiled is all that is timed.
        backend.warm_up(shape.heads, made.kvs[0], torch.bfloat16, (None,))
        return made

    for shape in shapes:
        for cells in decode:
            samples |= _decode(say, clock, batch(shape, cells), backend, rounds, device, copy_bytes, missing)
        for cells in prefill:
            samples |= _prefill(say, clock, batch(shape, cells), backend, rounds, missing)
    facts = gpu_facts(device) | {
        "keys": f"bfloat16, rBlocks of {BLOCK_TOKENS} tokens and {layers} layers in random order",
        "fewer layers, for want of memory": "; ".join(fewer) or "none",
        "libraries that did not run": _by_reason(missing) or "none",
        "not captured": ", ".join(f"{why} ({count} times)" for why, count in clock.not_captured.items()) or "none",
        "contenders": {
            COPY: f"copy of {copy_bytes >> 20} MiB within the device, bytes read and written",
            PAGED_COPY: "copy of what each layer has in its rBlocks, one after the other, bytes read and written",
            FLASHINFER: "BatchDecodeWithPagedKVCacheWrapper or BatchPrefill..., HND, the same rBlocks",
            FLASH_ATTENTION_3: "flash_attn_with_kvcache with get_scheduler_metadata, the same rBlocks",
            "torch ...": "scaled_dot_product_attention of that backend, enable_gqa, contiguous K and V",
        },
    }
    return Measured(samples, _goals(samples), facts)


def _decode(
    say: Say,
    clock: Clock,
    batch: PagedBatch,
    backend: Backend,
    rounds: int,
    device: torch.device,
    copy_bytes: int,
    missing: dict[str, str],
) -> Samples:
    case = f"decode {batch.shape} {batch.cells} keys, GB/s"
    say(case)
    contenders: dict[str, Work] = {OURS: batch.ours(backend, 1)}
    libraries, reasons = batch.libraries(1)
    missing |= {f"{name}, {case}": reason for name, reason in reasons.items()}
    contenders |= libraries | batch.sdpa(1)
    amounts = dict.fromkeys(contenders, batch.num_bytes / 1e9)
    contenders |= {PAGED_COPY: batch.copying(), COPY: copying(device, copy_bytes)}
    amounts |= {PAGED_COPY: 2 * batch.num_bytes / 1e9, COPY: 2 * copy_bytes / 1e9}
    return _by_turns(clock, contenders, amounts, case, rounds)


def _prefill(
    say: Say, clock: Clock, batch: PagedBatch, backend: Backend, rounds: int, missing: dict[str, str]
) -> Samples:
    case = f"prefill {batch.shape} {batch.cells} tokens, tokens/s"
    say(case)
    rows = batch.cells.keys
    libraries, reasons = batch.libraries(rows)
    missing |= {f"{name}, {case}": reason for name, reason in reasons.items()}
    contenders: dict[str, Work] = {OURS: batch.ours(backend, rows), **libraries, **batch.sdpa(rows)}
    tokens = float(batch.layers * batch.cells.sequences * batch.cells.keys)
    return _by_turns(clock, contenders, dict.fromkeys(contenders, tokens), case, rounds)


def _by_reason(missing: Mapping[str, str]) -> str:
    """Each reason once, with the first case that it holds for and how many more there are."""
    cases: dict[tuple[str, str], list[str]] = {}
    for place, reason in missing.items():
        name, _, case = place.partition(", ")
        cases.setdefault((name, reason), []).append(case)
    return "; ".join(
        f"{name}: {reason} ({first}{f' and {len(rest)} more' if rest else ''})"
        for (name, reason), (first, *rest) in cases.items()
    )


def _by_turns(
    clock: Clock, contenders: Mapping[str, Work], amounts: Mapping[str, float], case: str, rounds: int
) -> Samples:
    ready = {name: work if name == COPY else clock.ready(work) for name, work in contenders.items()}
    return alternate(
        {name: partial(timed_rate, clock, work, amounts[name], case) for name, work in ready.items()}, rounds
    )


def _goals(samples: Samples) -> tuple[Goal, ...]:
    goals = []
    for case, variants in samples.items():
        others = [name for name in variants if name not in (OURS, COPY, PAGED_COPY)]
        if case.startswith("decode"):
            share = paired_ratio(variants[OURS], variants[COPY])
            goals.append(at_least(f"{case}: {OURS} beside the device's copy", share, 0.85))
            others = [name for name in others if name in LIBRARIES] or others
        if not others:
            goals.append(Goal(f"{case}: {OURS} beside others", "at least 1", "none", None, "no other kernel is here"))
            continue
        best = max(others, key=lambda name: statistics.median(variants[name]))
        least = 1 if case.startswith("decode") else 0.8
        goals.append(at_least(f"{case}: {OURS} beside {best}", paired_ratio(variants[OURS], variants[best]), least))
    return tuple(goals)
