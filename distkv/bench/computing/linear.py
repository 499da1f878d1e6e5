"""`distkv bench linear`: linear layers of few rows beside torch's, in bytes of weights a second.

A decode step reads every weight once, so reading is all that they can take. Layers of one shape take turns over more
weights than caches hold, as those of a model do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import click
import torch
from torch import Tensor

from distkv.bench.baselines.checkpoints import MODELS, Model
from distkv.bench.harness.alternate import Samples, alternate, paired_ratio
from distkv.bench.harness.command import Measured, Say, benchmark, unit_of_name
from distkv.bench.harness.lists import sizes_of
from distkv.bench.harness.report import Goal, judged
from distkv.bench.harness.timing.gpu import Clock, clock_of, gpu_facts, gpu_of, timed_rate
from distkv.engine.device.device import Device
from distkv.engine.device.registry import choose_device
from distkv.kernels.layer.linear import Linear, TorchLinear

OURS, TORCH = "distkv", "torch"
LEAST = 0.95
"""What a choice by shape may cost: it is made once, for all rows that are few."""

COLD_BYTES = 512 << 20
"""Of weights that take turns, where there are not more: several times the caches of GPUs and servers."""

HELP = """Linear layers of few rows beside torch's (cuBLAS, oneDNN), for the shapes of a model, in bfloat16.

\b
Examples:
  distkv bench linear --device cuda --models 1b,8b --rows 1,8,16 --json linear.json
  distkv bench linear --models b --threads 2
"""


def measure(
    say: Say, *, quick: bool, device: str, models: str | None, rows: str, threads: int, rounds: int
) -> Measured:
    """Run it. Raises ConfigError for a device or a model that is not here."""
    if device != "cpu":
        gpu_of(device)
    here = choose_device(device)
    here.backend.use_threads(threads, ())
    names = (models or ("tiny" if quick else "8b" if device != "cpu" else "b")).split(",")
    counts = sizes_of("rows", rows)
    samples: Samples = {}
    with torch.inference_mode():
        for name in names:
            shape = click.Choice(sorted(MODELS)).convert(name, None, None)
            for outputs, inputs in shapes_of(MODELS[shape]):
                layers = Layers(here, outputs, inputs, 1 << 20 if quick else COLD_BYTES)
                for count in counts:
                    case = f"{outputs:,} of {inputs:,}, {count} {'row' if count == 1 else 'rows'}, GB/s"
                    if case not in samples:
                        say(case)
                        samples |= layers.measured(case, count, rounds)
                del layers
    facts = gpu_facts(here.place) | {
        "kernels": here.backend.linear_name(torch.bfloat16),
        "threads": threads,
        "models": ", ".join(names),
        "contenders": {OURS: "Backend.linear", TORCH: "torch.nn.functional.linear, the same weights"},
    }
    return Measured(samples, goals(samples), facts)


def shapes_of(model: Model) -> Sequence[tuple[int, int]]:
    """Outputs and inputs of q, k and v, of o, of gate and up, of down, and of all logits; each once."""
    kv = model.hidden // model.heads * model.kv_heads
    shapes = (
        (model.hidden + 2 * kv, model.hidden),
        (model.hidden, model.hidden),
        (2 * model.inner, model.hidden),
        (model.hidden, model.inner),
        (model.vocab, model.hidden),
    )
    return tuple(dict.fromkeys(shapes))


class Layers:
    """Layers of one shape, ours and torch's, over the same numbers."""

    def __init__(self, device: Device, outputs: int, inputs: int, least_bytes: int) -> None:
        """least_bytes: of the weights of all of them."""
        self._device, self._inputs = device, inputs
        count = -(-least_bytes // (outputs * inputs * torch.bfloat16.itemsize))
        generator = torch.Generator(device.place).manual_seed(0)
        weights = [
            torch.empty(outputs, inputs, dtype=torch.bfloat16, device=device.place).normal_(
                0, inputs**-0.5, generator=generator
            )
            for _ in range(count)
        ]
        self.num_bytes = sum(weight.nbytes for weight in weights)
        self._clock: Clock = clock_of(device.place)
        self.contenders: Mapping[str, list[Linear]] = {
            OURS: [device.backend.linear(weight, None) for weight in weights],
            TORCH: [TorchLinear(weight, None) for weight in weights],
        }

    def rows(self, count: int) -> Tensor:
        """What is multiplied, [count, inputs]."""
        generator = torch.Generator().manual_seed(count)
        return torch.randn(count, self._inputs, generator=generator).bfloat16().to(self._device.place)

    def measured(self, case: str, count: int, rounds: int) -> Samples:
        """All layers, one after another."""
        x = self.rows(count)

        def work(linears: Sequence[Linear]) -> Callable[[], object]:
            return self._clock.ready(lambda: [linear(x) for linear in linears][-1])

        ready = {name: work(linears) for name, linears in self.contenders.items()}
        return alternate(
            {name: partial(timed_rate, self._clock, one, self.num_bytes / 1e9, case) for name, one in ready.items()},
            rounds,
        )


def goals(samples: Samples) -> tuple[Goal, ...]:
    """Nowhere slower than torch's by more than a little."""
    return tuple(
        judged(f"{case}: {OURS} beside {TORCH}", paired_ratio(found[OURS], found[TORCH]), least=LEAST)
        for case, found in samples.items()
    )


main = benchmark(
    "linear",
    measure,
    HELP,
    [
        click.Option(["--device"], default="cpu", show_default=True, help="cpu, cuda, or cuda:N."),
        click.Option(["--models"], help="Whose shapes; with commas. b, on a GPU 8b, with --quick tiny."),
        click.Option(["--rows"], default="1,8,16", show_default=True, help="Rows of a step; with commas."),
        click.Option(
            ["--threads"], type=click.IntRange(min=1), default=torch.get_num_threads(), help="Of the CPU; all CPUs."
        ),
    ],
    unit_of=unit_of_name,
    packages=("torch", "triton"),
    rounds=(7, 2),
)
