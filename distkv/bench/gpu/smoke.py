"""The first minute on a GPU: each part of the engine once, against plain torch, and what it took. One that fails keeps
no other from running."""

from __future__ import annotations

import math
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click
import msgspec
import numpy as np
import torch
from torch import Tensor

from distkv.bench.baselines.checkpoints import MODELS
from distkv.bench.gpu.mail_in_a_graph import mail_in_a_graph
from distkv.bench.workloads.computing.decode_steps import DecodeSteps
from distkv.bench.workloads.computing.random_model import random_model
from distkv.engine.device.cpu import CpuDevice
from distkv.engine.device.device import Device
from distkv.engine.device.registry import choose_device
from distkv.engine.device.shared_memory.driver import Driver
from distkv.engine.device.shared_memory.memory import MemorySharing
from distkv.kernels import AttentionMetadata, BlockTable, FusedQkv, RowKv
from distkv.kernels.attention.static_decode import StaticInputs
from distkv.kernels.triton.attention.decode import decode_attention
from distkv.kernels.triton.attention.decode_plan import decode_plan
from distkv.kernels.triton.attention.templates import SPLIT_KEYS, Shape, Template, count_sms, heuristic
from distkv.kernels.triton.backend import TritonBackend
from distkv.kernels.triton.metadata import device_metadata

MIB = 2**20
_MAPPED_SLOTS, _STAGED_SLOTS = 256, 32
P, HEADS, KV_HEADS, DIM = 16, 32, 8, 128
ENDLESS = 2**31 - 1
CLOSE = 2e-2
"""Of attention over bfloat16."""


class Case(msgspec.Struct, frozen=True):
    """How one went. outcome: passed or failed. detail: what it found, or the end of a traceback."""

    case: str
    outcome: str
    seconds: float
    detail: str


class Smoke:
    """The cases, on a device with Triton's kernels."""

    def __init__(self, device: Device) -> None:
        self._device, self._place = device, device.place
        # The interpreter takes a second for what a GPU does in a microsecond.
        self._keys = 2048 if device.is_async else 100
        heads = (HEADS, KV_HEADS, DIM) if device.is_async else (4, 2, 16)
        self._heads, self._kv_heads, self._dim = heads

    def cases(self) -> dict[str, Callable[[], str]]:
        """By name, in order."""
        divided = {f"{template} decode": lambda template=template: self._decode(template) for template in Template}
        return {
            "matrix product": self._product,
            "rms norm": self._norm,
            "store": self._store,
            **divided,
            "split decode of fp8": lambda: self._decode(Template.SPLIT, torch.float8_e4m3fn),
            "captured decode": lambda: self._captured_decode(SPLIT_KEYS),
            "captured decode of long contexts": lambda: self._captured_decode(ENDLESS),
            "prefill": self._prefill,
            "merge": self._merge,
            "gather and scatter": self._scatter,
            "pools of peers, mapped": self._mapped,
            "copies to the host and back": self._copies,
            "a captured graph": self._capture,
            "mail in a graph": lambda: mail_in_a_graph(self._device, self._heads, self._dim),
            "decode steps of a small model": self._steps,
        }

    def _product(self) -> str:
        a, b = (self._draw(256, 256).float() for _ in range(2))
        return _close(a @ b, (a.double() @ b.double()).float(), 0.5)

    def _norm(self) -> str:
        x, weight = self._draw(5, 256), self._draw(256)
        wide = x.float()
        normal = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)
        return _close(self._device.backend.ops.rms_norm(x, weight, 1e-6), weight * normal, CLOSE)

    def _store(self) -> str:
        kv = self._pool(2)
        angle = torch.rand(3, self._dim // 2, device=self._place).repeat(1, 2).bfloat16()
        qkv = FusedQkv(self._draw(3, (self._heads + 2 * self._kv_heads) * self._dim), self._heads, angle, angle)
        slots, offsets = (torch.tensor(numbers, device=self._place) for numbers in ([1, 0, -1], [3, 5, 0]))
        q = self._device.backend.store(qkv, kv, slots, offsets)
        wanted_q, wanted_k, wanted_v = qkv.rotated()
        _close(kv.keys(slots[:2])[[0, 1], :, [3, 5]], wanted_k[:2], 0)
        _close(kv.values(slots[:2])[[0, 1], :, [3, 5]], wanted_v[:2], 0)
        return _close(q, wanted_q, 0)

    def _decode(self, template: Template, dtype: torch.dtype = torch.bfloat16) -> str:
        kv, metadata, q = self._sequence(2, dtype)
        there, shape = device_metadata(metadata, self._place), Shape.of(q, kv.k)
        per_item = self._keys if template is Template.ONE_PASS else -(-self._keys // 3)
        config = heuristic(shape)
        plan = decode_plan(there, np.arange(1), shape, config, count_sms(self._place), None, (template, per_item))
        out = torch.full((2 + plan.num_parts, self._heads, self._dim), torch.nan, device=self._place)
        lse = out.new_full(out.shape[:2], torch.nan)
        for _ in range(2):  # the second time counters have to be 0 again
            decode_attention(q, kv.k, kv.v, there, plan, out, lse, self._dim**-0.5)
        return _close(out[:2], self._expected(kv, q), CLOSE)

    def _captured_decode(self, most_keys: int) -> str:
        """Of two rows, in a graph for four, replayed for contexts that grew since."""
        kv, metadata, q = self._sequence(4, torch.bfloat16)
        (table,) = metadata.block_tables
        positions, attended = torch.zeros(4, dtype=torch.int64, device=self._place), torch.zeros_like(q)
        tables = torch.from_numpy(table.slots).int().to(self._place)
        inputs = StaticInputs(tables, len(table), positions, attended, (None,))
        decode = self._device.backend.static_decode(inputs, kv, most_keys)

        def run() -> tuple[Tensor, ...]:
            decode.attend(q, kv, self._dim**-0.5, None)
            return (attended,)

        run()
        captured = self._device.capture(run)
        decode.plan(np.zeros(2, np.int64), np.zeros(2, np.int64), np.full(2, self._keys))
        queries, expected, error = q.clone(), self._expected(kv, q), ""
        for grown in (3, 1):  # of the four rows of `expected`, whose last one sees all
            positions[:2] = torch.tensor([self._keys - 1 - grown, self._keys - grown], device=self._place)
            rows = slice(3 - grown, 5 - grown)
            q[:2] = queries[rows]
            captured.replay()
            error = _close(attended[:2], expected[rows], CLOSE)
        _close(attended[2:], torch.zeros_like(attended[2:]), 0)
        return error

    def _prefill(self) -> str:
        kv, metadata, q = self._sequence(9, torch.bfloat16)
        out, _ = self._device.backend.attend(q, kv, metadata, self._dim**-0.5)
        return _close(out, self._expected(kv, q), CLOSE)

    def _merge(self) -> str:
        outs = self._draw(2, 5, self._heads, self._dim).float()
        lses = self._draw(2, 5, self._heads).float()
        merged, lse = self._device.backend.merge([(outs[0], lses[0]), (outs[1], lses[1])])
        weights = lses.softmax(0)[..., None]
        _close(lse, lses.logsumexp(0), 1e-5)
        return _close(merged, (outs * weights).sum(0), 1e-5)

    def _scatter(self) -> str:
        pool = torch.randint(0, 255, (9, 3 * 4096), dtype=torch.uint8, device=self._place)
        slots = torch.tensor([7, 0, 3], device=self._place)
        staging, backend = self._device.backend.gather_blocks(pool, slots), self._device.backend
        target = torch.zeros_like(pool)
        backend.scatter_blocks(staging, target, slots)
        return _close(target[slots].float(), pool[slots].float(), 0)

    def _mapped(self) -> str:
        """rBlocks of 2 MiB from pools that are mapped as peers' are, of each GPU, beside the way through the host."""
        if not self._device.is_async:
            return "not with the interpreter"
        sharing, backend = self._device.sharing, self._device.backend
        if sharing is None:
            raise RuntimeError(self._device.why_not_sharing)
        slots = torch.randperm(_MAPPED_SLOTS, generator=torch.Generator().manual_seed(1)).to(self._place)
        own = torch.zeros(_MAPPED_SLOTS, 2 * MIB, dtype=torch.uint8, device=self._place)
        (staged,) = self._device.to_host(own[:_STAGED_SLOTS]).wait()

        def through_host() -> None:
            (host,) = self._device.to_host(backend.gather_blocks(own, slots[:_STAGED_SLOTS])).wait()
            staged.copy_(host)
            (back,) = self._device.to_device(staged)
            backend.scatter_blocks(back, own, slots[:_STAGED_SLOTS])

        found = [f"by the host {self._rate(through_host, _STAGED_SLOTS):.1f} GB/s"]
        for name, owner, unit in gpus():
            if why := sharing.why_unreachable(unit):
                found.append(why)
                continue
            shared = owner.allocate(own.nbytes)
            there = shared.tensor[: own.nbytes].random_()
            expected = there.to(self._place).view_as(own)
            self._device.synchronize()
            peer = sharing.map(shared.descriptor, shared.tensor.nbytes)
            with peer.in_use() as memory:
                rows = memory[: own.nbytes].view_as(own)
                rate = self._rate(partial(backend.copy_blocks, rows, slots, own, slots), _MAPPED_SLOTS)
            peer.close()
            if not torch.equal(own, expected):
                raise AssertionError(f"rBlocks of {name} arrived with other bytes")
            shared.close()
            found.append(
                f"from {name}, mapped {'read-only' if sharing.read_only else 'for writing, too'}, {rate:.1f} GB/s"
            )
        return "; ".join(found)

    def _rate(self, copy: Callable[[], None], num_slots: int) -> float:
        """GB/s of rBlocks of 2 MiB, the best of some times."""
        best_s = math.inf
        for _ in range(4):
            started_s = time.perf_counter()
            copy()
            self._device.synchronize()
            best_s = min(best_s, time.perf_counter() - started_s)
        return num_slots * 2 * MIB / best_s / 1e9

    def _copies(self) -> str:
        given = [torch.arange(1000), torch.randn(3, 7)]
        there = self._device.to_device(*given)
        found = self._device.to_host(*there, aside=True).wait()
        for one, other in zip(found, given, strict=True):
            _close(one, other, 0)
        return "the same"

    def _capture(self) -> str:
        numbers = torch.ones(4, device=self._place)

        def run() -> tuple[Tensor, ...]:
            return (numbers + numbers,)

        run()
        captured = self._device.capture(run)
        numbers.fill_(3)
        captured.replay()
        return _close(captured.results[0], torch.full_like(numbers, 6), 0)

    def _steps(self) -> str:
        if not self._device.is_async:
            return "not with the interpreter"
        steps = DecodeSteps(random_model(MODELS["b"], self._device), 4, 1000, 20)
        steps.run(1)
        started_s = time.perf_counter()
        steps.run(10)
        found = f"{(time.perf_counter() - started_s) * 100:.2f} ms a step, graphs {steps.graphs}"
        if steps.graphs != "captured":
            raise RuntimeError(found)
        return found

    def _draw(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).bfloat16().to(self._place)

    def _pool(self, num_slots: int, dtype: torch.dtype = torch.bfloat16) -> RowKv:
        memory = self._draw(num_slots, 2, self._kv_heads, P * self._dim).to(dtype)
        return RowKv.of(memory[:, 0], memory[:, 1], self._dim, P)

    def _sequence(self, rows: int, dtype: torch.dtype) -> tuple[RowKv, AttentionMetadata, Tensor]:
        """A sequence whose last `rows` tokens ask, in blocks that lie in order."""
        blocks = -(-self._keys // P)
        kv = self._pool(blocks, dtype)
        table = BlockTable(range(blocks), range(0, blocks * P, P), self._keys, P)
        positions = torch.arange(self._keys - rows, self._keys, device=self._place)
        metadata = AttentionMetadata((range(rows),), (table,), positions)
        return kv, metadata, self._draw(rows, self._heads, self._dim)

    def _expected(self, kv: RowKv, q: Tensor) -> Tensor:
        group = self._heads // self._kv_heads
        k, v = (
            half.transpose(0, 1).flatten(1, 2)[:, : self._keys].double().repeat_interleave(group, 0)
            for half in (kv.k, kv.v)
        )
        scores = torch.einsum("rhd,hkd->hrk", q.double(), k) * self._dim**-0.5
        hidden = torch.ones(scores.shape[1:], dtype=torch.bool, device=q.device).triu(self._keys - len(q) + 1)
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        return torch.einsum("hrk,hkd->rhd", weights, v).float()


def gpus() -> list[tuple[str, MemorySharing, str]]:
    """Those of this machine: the name, what it shares, the UUID of each. Raises DriverError."""
    found = []
    for index in range(torch.cuda.device_count()):
        place = torch.device("cuda", index)
        unit = str(torch.cuda.get_device_properties(place).uuid)
        found.append((str(place), MemorySharing(Driver(index), place), unit))
    return found


def run(cases: dict[str, Callable[[], str]], tell: Callable[[Case], None]) -> list[Case]:
    """Each once; tell hears of each when it has ended."""
    found = []
    for name, work in cases.items():
        started_s = time.perf_counter()
        try:
            outcome, detail = "passed", work()
        except Exception:
            outcome, detail = "failed", traceback.format_exc()[-2000:]
        found.append(Case(name, outcome, round(time.perf_counter() - started_s, 3), detail))
        tell(found[-1])
    return found


def _close(found: Tensor, expected: Tensor, most: float) -> str:
    error = float((found.float() - expected.float()).abs().max())
    if not error <= most:
        raise AssertionError(f"off by {error:.3g}, more than {most:.3g}")
    return f"off by {error:.3g} at most"


@click.command(help="Each part of the engine once, against plain torch.")
@click.option("--device", default="cuda", show_default=True, help="cuda or cuda:N; cpu with Triton's interpreter.")
@click.option(
    "--json", "file", type=click.Path(path_type=Path), help="Lines of JSON, one for each case that has ended."
)
@click.option("--only", help="Cases whose names contain one of these, by commas.")
def main(device: str, file: Path | None, only: str | None) -> None:
    """See the command's help."""
    here = CpuDevice(TritonBackend()) if device == "cpu" else choose_device(device)

    def tell(case: Case) -> None:
        click.echo(f"{case.outcome} {case.case} in {case.seconds} s: {case.detail}")
        if file is not None:
            with file.open("ab") as lines:
                lines.write(msgspec.json.encode(case) + b"\n")

    with here.stream(), torch.inference_mode():
        cases = Smoke(here).cases()
        wanted = only.split(",") if only else [""]
        chosen = {name: work for name, work in cases.items() if any(word in name for word in wanted)}
        found = run(chosen, tell)
    sys.exit(0 if found and all(case.outcome == "passed" for case in found) else 1)


if __name__ == "__main__":
    main()
