"""`distkv bench attention`: the CPU backends beside torch's fused kernel and beside reading memory; GPUs likewise.

Decode reads every key and value once, so its limit is the streaming bandwidth, measured in the same rounds. Keys are
bfloat16 in blocks of random order; torch's kernel has them contiguous, as it wants them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click
import torch

from distkv.bench.harness.alternate import Samples, alternate, paired_ratio
from distkv.bench.harness.command import Measured, Say, benchmark, unit_of_name
from distkv.bench.harness.report import Goal, at_least
from distkv.bench.harness.timing.gpu import COPY_BYTES, gpu_of
from distkv.bench.workloads.computing.attention import BLOCK_TOKENS, STREAM_BYTES, Keys, Shape, merging, rate, streaming
from distkv.errors import ConfigError
from distkv.kernels import Backend
from distkv.kernels.cpu.dispatch import available, backend_of, choose

SHAPES = (Shape(32, 8, 128), Shape(12, 4, 64), Shape(32, 32, 128), Shape(64, 8, 128))
LENGTHS = (8192, 32768, 131072)
PREFILL_TOKENS = 2048
PARTIALS = 8
LAYERS = 32
STREAM = "memory read"
FLASH = "torch flash"
HELP = """Micro-attention of the CPU backends: decode beside streaming memory and torch's fused kernel, merging of
partials, prefill; variants by turns, medians and spread.

\b
Examples:
  distkv bench attention --json attention.json --plot attention.png
  distkv bench attention --quick
  distkv bench attention --levels avx512,avx2
  distkv bench attention --device cuda --json gpu.json
"""


def measure(
    say: Say,
    *,
    quick: bool,
    device: str,
    threads: int,
    rounds: int,
    levels: str | None,
    shapes: str | None,
    tune_for: int | None,
    tables: Path | None,
    layers: int,
) -> Measured:
    """Run it."""
    wanted = _shapes(shapes) if shapes else SHAPES[:2] if quick else SHAPES
    if device != "cpu":
        return _measure_gpu(say, device, quick, rounds, wanted, tune_for, tables, layers)
    names = levels.split(",") if levels else [available()[0]]
    choices = [choose(name) for name in names]  # type: ignore[arg-type]
    backends = {choice.level: backend_of(choice) for choice in choices}
    for backend in backends.values():
        backend.use_threads(threads, ())
    stream = streaming(choices[0].native)
    lengths = (1024,) if quick else LENGTHS
    samples: Samples = {}
    for shape in wanted:
        for num_keys in lengths:
            samples |= _decode(say, shape, num_keys, backends, stream, rounds)
        samples |= _prefill(say, shape, 256 if quick else PREFILL_TOKENS, backends, rounds)
    facts = {
        "threads": threads,
        "levels here": ", ".join(available()),
        "keys": f"bfloat16, blocks of {BLOCK_TOKENS} tokens in random order",
        "contenders": {
            FLASH: "aten::_scaled_dot_product_flash_attention_for_cpu, contiguous K and V; decode: heads of a group "
            "as rows of one head, bfloat16; prefill: KV heads repeated beforehand, causal, float32 and bfloat16",
            STREAM: f"sum of {STREAM_BYTES >> 20} MiB of float32 with the same threads",
        },
    }
    return Measured(samples, _goals(samples, names[0]), facts)


def _decode(
    say: Say, shape: Shape, num_keys: int, backends: dict[str, Backend], stream: Callable[[], object], rounds: int
) -> Samples:
    case = f"decode {shape} {num_keys:,} keys, GB/s"
    say(case)
    keys = Keys(shape, num_keys)
    repeats = max(1, (1 << 27) // keys.num_bytes)
    variants = {
        name: partial(rate, keys.ours(backend, 1), keys.num_bytes / 1e9, case, repeats)
        for name, backend in backends.items()
    }
    variants[STREAM] = partial(rate, stream, STREAM_BYTES / 1e9, case)
    variants[FLASH] = partial(rate, keys.flash_decode(), keys.num_bytes / 1e9, case)
    samples = alternate(variants, rounds)
    merge_case = f"merge of {PARTIALS} beside decode {shape} {num_keys:,} keys, calls/s"
    parts = {
        f"{name} {what}": partial(rate, work, 1, merge_case, count)
        for name, backend in backends.items()
        for what, work, count in (
            ("attention", keys.ours(backend, 1), repeats),
            ("merge", merging(backend, shape, PARTIALS), 200),
        )
    }
    return samples | alternate(parts, rounds)


def _prefill(say: Say, shape: Shape, tokens: int, backends: dict[str, Backend], rounds: int) -> Samples:
    case = f"prefill {shape} {tokens:,} tokens, tokens/s"
    say(case)
    keys = Keys(shape, tokens)
    variants = {name: partial(rate, keys.ours(backend, tokens), tokens, case) for name, backend in backends.items()}
    for dtype in (torch.float32, torch.bfloat16):
        name = f"{FLASH} {str(dtype).removeprefix('torch.')}"
        variants[name] = partial(rate, keys.flash_prefill(dtype), tokens, case)
    return alternate(variants, rounds)


def _goals(samples: Samples, ours: str) -> tuple[Goal, ...]:
    goals = []
    for case, variants in samples.items():
        if case.startswith("decode"):
            share, beside = (paired_ratio(variants[ours], variants[name]) for name in (STREAM, FLASH))
            goals.append(at_least(f"{case}: {ours} beside streaming memory", share, 0.75))
            goals.append(at_least(f"{case}: {ours} beside torch's flash-for-CPU", beside, 3))
        elif case.startswith("merge"):
            cost = 100 / paired_ratio(variants[f"{ours} merge"], variants[f"{ours} attention"]).value
            target = "at most 2 %"
            goals.append(Goal(f"{case}: merging, of the attention", target, f"{cost:.2f} %", cost <= 2))
        else:
            best = max((name for name in variants if name != ours), key=lambda name: statistics.median(variants[name]))
            ratio = paired_ratio(variants[ours], variants[best])
            goals.append(at_least(f"{case}: {ours} beside {best}", ratio, 1))
    return tuple(goals)


def _shapes(given: str) -> tuple[Shape, ...]:
    found = [[int(number) for number in one.split("/") if number.isdecimal()] for one in given.split(",")]
    if any(len(numbers) != 3 or 0 in numbers or numbers[0] % numbers[1] for numbers in found):
        raise ConfigError("shapes", f"{given!r} is no list of query heads/KV heads/head dim", "for example 32/8/128")
    return tuple(Shape(*numbers) for numbers in found)


def _measure_gpu(
    say: Say,
    name: str,
    quick: bool,
    rounds: int,
    shapes: tuple[Shape, ...],
    tune_for: int | None,
    tables: Path | None,
    layers: int,
) -> Measured:
    # Triton is an extra, and takes a while to load.
    from distkv.bench.gpu import attention as gpu_attention

    device = gpu_of(name)
    return gpu_attention.measure_on(
        device,
        gpu_attention.backend_for(say, shapes, device, tables, layers=layers, tune_s=tune_for),
        say,
        shapes,
        gpu_attention.DECODE[:2] if quick else gpu_attention.DECODE,
        gpu_attention.PREFILL[1:] if quick else gpu_attention.PREFILL,
        rounds,
        COPY_BYTES,
        layers,
    )


main = benchmark(
    "attention",
    measure,
    HELP,
    [
        click.Option(["--device"], default="cpu", show_default=True, help="cpu, cuda, or cuda:N: what to measure on."),
        click.Option(["--threads"], type=click.IntRange(min=1), default=1, show_default=True, help="CPU threads."),
        click.Option(["--levels"], help="Backends to measure, by commas; the first is judged. Default: the best here."),
        click.Option(
            ["--tune-for"],
            type=click.IntRange(min=1),
            metavar="SECONDS",
            help="With cuda: first time the kernels' configs here, for about so long, and keep the best.",
        ),
        click.Option(["--shapes"], help="Query heads/KV heads/head dim, by commas: 32/8/128,64/8/128."),
        click.Option(
            ["--layers"],
            type=click.IntRange(min=1),
            default=LAYERS,
            show_default=True,
            help="With cuda: of the rBlocks, whose layers are gone over in turn.",
        ),
        click.Option(
            ["--tables"],
            type=click.Path(path_type=Path, file_okay=False),
            help="With cuda: where measured configs are kept, in place of the cache.",
        ),
    ],
    unit_of=unit_of_name,
    packages=("torch", "triton", "flashinfer-python", "flash-attn-3"),
    rounds=(9, 3),
)
