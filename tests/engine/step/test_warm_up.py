"""A warm start launches whatever a request can reach, in steps, for peers and in transfers: each launch is written down
as what its kernel would be compiled for, and later ones bring nothing new."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed: it comes with the extra 'gpu'")

from triton.runtime.interpreter import InterpretedFunction

from distkv.engine.sampling import logprobs, sampler
from distkv.engine.step.warm_up import warm_up
from distkv.kernels.triton.backend import TritonBackend
from distkv.kernels.triton.tuning.tuned_table import TunedTable
from tests.checkpoints import prompt_ids, variant
from tests.engine.async_device import AsyncHost
from tests.engine.harness import GREEDY, Engine, seq_step, without

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="launches are counted at Triton's interpreter")


class Launches:
    """In place of running kernels: what each would be compiled for."""

    def __init__(self) -> None:
        self.seen: set[Any] = set()

    def run(self, kernel: Any, *args: Any, grid: Any, warmup: bool, **named: Any) -> None:
        del grid, warmup
        parameters = inspect.signature(kernel.fn).parameters
        given = dict(zip(parameters, args, strict=False)) | named
        unspecialized = kernel.kwargs.get("do_not_specialize") or ()
        unaligned = kernel.kwargs.get("do_not_specialize_on_alignment") or ()
        found = tuple(
            (name, _compiled(value, name not in unspecialized, name not in unaligned))
            if name in parameters and "constexpr" not in str(parameters[name].annotation)
            else (name, str(value))
            for name, value in sorted(given.items())
        )
        self.seen.add((kernel.fn.__name__, found))


def _compiled(value: Any, is_specialized: bool, is_aligned: bool) -> Any:
    """What a compiled kernel depends on of an argument."""
    match value:
        case None:
            return None
        case torch.Tensor():
            return str(value.dtype), is_specialized and is_aligned and value.data_ptr() % 16 == 0
        case tuple():
            return tuple(_compiled(one, is_specialized, is_aligned) for one in value)
        case int():
            width = 64 if abs(value) >= 2**31 else 32
            return width, is_specialized and (value == 1 or (is_aligned and value % 16 == 0, 16))
    return type(value).__name__


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Launches:
    found = Launches()
    # What no kernel has written may be anything, also what no token can be drawn from.
    monkeypatch.setattr(torch, "empty", torch.zeros)
    monkeypatch.setattr(torch, "empty_like", torch.zeros_like)
    monkeypatch.setattr(torch.Tensor, "new_empty", torch.Tensor.new_zeros)
    monkeypatch.setattr(InterpretedFunction, "run", lambda kernel, *args, **named: found.run(kernel, *args, **named))
    return found


@pytest.mark.parametrize(("window", "microbatches"), [(None, 1), (10, 2)])
def test_nothing_is_left_to_compile(tmp_path: Path, launches: Launches, window: int | None, microbatches: int) -> None:
    """Chunks and decodes of one row to more than graphs have, alone and together, over short and long contexts; the
    same with keys at creditors, asked and fetched; and copies of blocks."""
    options = {} if window is None else {"sliding_window": window}
    path = variant(tmp_path, "llama" if window is None else "mistral-window", layers=2, **options)
    device = AsyncHost(TritonBackend(TunedTable()))
    engine = Engine(
        path, "bfloat16", device=device, num_slots=9000, block_tokens=16, microbatches=microbatches, prefill_kv="auto"
    )
    warm_up(engine.runner, engine.model, engine.pool)
    assert engine.runner.graphs == "captured"
    ready = set(launches.seen)
    for creditor in "xy":
        engine.add_creditor(creditor, num_slots=3000)
    for rows in (1, 2, 3, 16, 17, 64, 65, 100, 130):
        for context in (0, 40, 9_000, 33_000):
            for sample in (GREEDY, None):
                _run(engine, launches, ready, rows, 1, context, sample=sample)
        _run(engine, launches, ready, rows, 1, 200, lent=1)
        _run(engine, launches, ready, rows, 1, 200, lent=2)
    for count in (1, 2, 5, 16, 33, 64, 70):
        for context in (1, 700):
            _run(engine, launches, ready, 1, count, context)
            _run(engine, launches, ready, 1, count, context, lent=1)
            _run(engine, launches, ready, 3, count, context)
    pool = engine.pool._slots.view(engine.pool.num_slots, -1)
    for count in (1, 3, 16, 70):
        slots = torch.arange(count)
        device.backend.scatter_blocks(device.backend.gather_blocks(pool, slots), pool, slots)
        device.backend.copy_blocks(pool, slots, pool, slots + 100)
        if device.backend.has_checksums(engine.pool.slot_bytes):
            device.backend.checksum_blocks(pool, slots)
    assert launches.seen - ready == set()
    assert {"_post_rows_kernel", "_take_rows_kernel", "_store", "_copy_kernel"} <= {name for name, _ in ready}


def test_every_operation_of_sampling_has_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With some rows of a step that are drawn, and all: what CUDA loads at a first call, it has loaded. And staging
    memory of all sizes that torch keeps was there at once, some times."""
    engine = Engine(variant(tmp_path, "llama", layers=2), device=AsyncHost(), num_slots=8)
    device = engine.model.device
    chosen: list[tuple[int, dict[str, Any], Any]] = []
    scored: list[int] = []
    staged: list[int] = []
    choose, score, host = sampler.choose, logprobs.score, device.host

    def choosing(logits: torch.Tensor, tables: Any, shape: Any, seen: Any) -> torch.Tensor:
        chosen.append((len(logits), tables._asdict(), shape))
        return choose(logits, tables, shape, seen)

    def scoring(*arguments: Any) -> Any:
        scored.append(len(arguments[1]))
        return score(*arguments)

    monkeypatch.setattr(sampler, "choose", choosing)
    monkeypatch.setattr(sampler, "score", scoring)
    monkeypatch.setattr(logprobs, "score", scoring)
    monkeypatch.setattr(device, "host", lambda size: staged.append(size) or host(size))
    warm_up(engine.runner, engine.model, engine.pool)
    assert len(chosen) == 2 and len(scored) == 3
    for _rows, tables, shape in chosen:
        assert [name for name, table in tables.items() if table is None and not name.startswith("new_")] == []
        assert shape == (2, False, True, True, True)
    assert chosen[0][1]["new_seen"] is not None
    assert sorted(set(staged)) == [2**power for power in range(9, 22)] and staged.count(512) == 4
    assert not engine.runner._sample._seen._rows, "nothing is kept of it"


def _run(
    engine: Engine, launches: Launches, ready: set[Any], rows: int, count: int, context: int, lent: int = 0, **step: Any
) -> None:
    """`rows` tokens of each of some sequences behind a context, so many of whose blocks are lent."""
    engine._next_slot = 0
    steps = []
    for index in range(count):
        table = engine.table(context + rows)
        remote = []
        for number in range(min(lent, context // 16)):
            name = "xy"[number]
            remote.append(engine.lend(name, table, number, 1))
        ids = prompt_ids(rows, seed=index)
        one = seq_step(
            [0] * context + ids, context, context + rows, without(table, 0, len(remote)), name=str(index),
            remote=tuple(remote), **{"sample": GREEDY} | step,
        )  # fmt: skip
        steps.append(one)
    engine.run(*steps)
    assert launches.seen - ready == set(), (rows, count, context, lent)
