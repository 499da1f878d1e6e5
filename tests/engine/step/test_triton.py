"""Steps over Triton's kernels: interpreted on the CPU as little as shows that all fits together, more on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from structlog.testing import capture_logs

from distkv.engine.device.cpu import CpuDevice
from distkv.engine.device.cuda import CudaDevice
from distkv.engine.step.warm_up import warm_up
from tests.checkpoints import prompt_ids, reference_greedy, reference_logits, variant
from tests.engine.async_device import AsyncHost
from tests.engine.harness import GREEDY, Engine, seq_step, without
from tests.engine.lent import Lent
from tests.lanes import rest_is_slow

pytest.importorskip("triton", reason="Triton is not installed: it comes with the extra 'gpu'")

HAS_GPU = torch.cuda.is_available()
pytestmark = [pytest.mark.gpu] if HAS_GPU else []
on_gpu = pytest.mark.skipif(not HAS_GPU, reason="needs a CUDA device")
interpreted = pytest.mark.skipif(HAS_GPU, reason="with a GPU these kernels are compiled for it")

ATOL = 1e-4


def engine_of(path: Path, dtype: str = "float32", **options: object) -> Engine:
    """On the first GPU, or on the host, where Triton's kernels are interpreted."""
    from distkv.kernels.triton.backend import TritonBackend

    device = CudaDevice(0) if HAS_GPU else CpuDevice(TritonBackend())
    return Engine(path, dtype, device=device, **options)  # type: ignore[arg-type]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return variant(tmp_path, "qwen3", layers=2)


def test_prompt_and_decode(path: Path) -> None:
    ids = prompt_ids(7)
    engine = engine_of(path)
    logits = engine.chunked_logits(ids, [5, 2], engine.table(8, scattered=True))
    torch.testing.assert_close(logits, reference_logits(path, ids), atol=ATOL, rtol=0)


def test_decodes_as_one_graph(path: Path) -> None:
    """Of two sequences in any order, then of one, over blocks that come one by one."""
    from distkv.kernels.triton.backend import TritonBackend

    device = CudaDevice(0) if HAS_GPU else AsyncHost(TritonBackend())
    engine = Engine(path, device=device, num_slots=16)
    prompts = {name: prompt_ids(length, seed=seed) for seed, (name, length) in enumerate([("a", 2), ("b", 1)])}
    tables = {name: engine.table(8, scattered=True) for name in prompts}
    found = {
        name: [engine.run(seq_step(ids, 0, len(ids), tables[name], name=name, sample=GREEDY))[0].token]
        for name, ids in prompts.items()
    }
    for names in (["b", "a"], ["a"]):
        ends = [len(prompts[name]) + len(found[name]) for name in names]
        results = engine.run(
            *(
                seq_step((), end - 1, end, tables[name][: -(-end // 4)], name=name, sample=GREEDY)
                for name, end in zip(names, ends, strict=True)
            )
        )
        for name, result in zip(names, results, strict=True):
            found[name].append(result.token)
    assert engine.runner.graphs == "captured"
    for name, ids in prompts.items():
        assert found[name] == reference_greedy(path, ids, len(found[name]))


@pytest.mark.parametrize(
    "kv_dtype",
    [torch.float32, pytest.param(torch.float8_e4m3fn, marks=() if HAS_GPU else pytest.mark.slow)],
    ids=str,
)
def test_a_span_on_a_peer(path: Path, kv_dtype: torch.dtype) -> None:
    """Then the peer is lost."""
    ids = prompt_ids(10)
    engine = engine_of(path, kv_dtype=kv_dtype)
    table = engine.table(10)
    local = engine.chunked_logits(ids, [9, 1], table)[-1:]
    creditor = engine.add_creditor("x", num_slots=4)
    span = engine.lend("x", table, 0, 1)
    step = seq_step(ids, 9, 10, without(table, 0, 1), remote=(span,), sample=GREEDY)
    torch.testing.assert_close(engine.logits(step), local, atol=ATOL, rtol=0)
    exact = reference_logits(path, ids)[-1:]
    if kv_dtype == torch.float32:
        torch.testing.assert_close(local, exact, atol=ATOL, rtol=0)
    else:
        assert ((local - exact).abs().mean() / exact.abs().mean()) < 0.2
    creditor.fail_at = ("collect", 0)
    assert engine.run(step)[0].status == "lost"


@interpreted
@pytest.mark.parametrize("name", rest_is_slow(["flashinfer", "fa3"]))
def test_no_graph_holds_what_a_library_plans(path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """It is refused with the reason, once, and steps are the model's all the same."""
    from distkv.kernels.triton.libraries.backend import LibraryBackend
    from tests.kernels.triton.libraries import documented

    documented.install(monkeypatch)
    device = AsyncHost(LibraryBackend(name))
    with capture_logs() as logs:
        engine = Engine(path, device=device, num_slots=8)
    reason = f"{name} plans each step on the host; use --attention-backend triton for graphs"
    assert [(line["event"], line["of"], line["reason"]) for line in logs] == [("no CUDA graphs", "all steps", reason)]
    ids, table = prompt_ids(2), engine.table(4)
    found = [engine.run(seq_step(ids, 0, 2, table, sample=GREEDY))[0].token]
    found.append(engine.run(seq_step((), 2, 3, table, sample=GREEDY))[0].token)
    assert found == reference_greedy(path, ids, 2)
    assert device.captured == 0 and engine.runner.graphs == f"none: {reason}"


@on_gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_long_runs_on_a_gpu(tmp_path: Path, dtype: str) -> None:
    """Graphs and large batches; bfloat16 is judged against float32, like transformers' own."""
    path, ids = variant(tmp_path, "llama"), prompt_ids(300)
    engine = engine_of(path, dtype, num_slots=128)
    warm_up(engine.runner, engine.model, engine.pool)
    logits = engine.chunked_logits(ids, [200, 64, 30, *[1] * 6], engine.table(300, scattered=True))
    exact = reference_logits(path, ids)
    if dtype == "float32":
        # Products on GPUs may be of TF32 elsewhere; torch's default is not.
        torch.testing.assert_close(logits, exact, atol=1e-3, rtol=0)
    else:
        theirs = (reference_logits(path, ids, torch.bfloat16) - exact).abs().mean()
        assert (logits - exact).abs().mean() <= 1.2 * theirs


@on_gpu
def test_greedy_tokens_on_a_gpu(tmp_path: Path) -> None:
    path, ids = variant(tmp_path, "llama"), prompt_ids(50)
    engine = engine_of(path, num_slots=64)
    table = engine.table(80)
    steps = [seq_step(ids, 0, 50, table, sample=GREEDY)]
    steps += [seq_step((), end - 1, end, table, sample=GREEDY) for end in range(51, 70)]
    assert [engine.run(step)[0].token for step in steps] == reference_greedy(path, ids, 20)


@on_gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_graphs_and_no_graphs_on_a_gpu(tmp_path: Path, dtype: str) -> None:
    """Batches of 1 to 9 in one graph store the same keys and values as chunks that run without, within rounding."""
    path = variant(tmp_path, "llama")
    engine = engine_of(path, dtype, num_slots=1024)
    warm_up(engine.runner, engine.model, engine.pool)
    texts = [prompt_ids(60 + 9 * seed, seed=seed) for seed in range(9)]
    tables = [[engine.table(140, scattered=True) for _ in texts] for _ in range(2)]
    for seed, ids in enumerate(texts):
        engine.run(seq_step(ids, 0, 30, tables[0][seed], name=f"g{seed}"))
        engine.run(seq_step(ids, 0, len(ids), tables[1][seed], name=f"n{seed}"))
    for end in range(31, 61):
        for group in ([0], [1, 2], [3, 4, 5, 6, 7, 8]):
            steps = [seq_step(texts[i], end - 1, end, tables[0][i], name=f"g{i}", sample=GREEDY) for i in group]
            assert all(result.token is not None for result in engine.run(*steps))
    assert engine.runner.graphs == "captured"
    torch.cuda.synchronize()
    for seed in range(len(texts)):
        with_graph, without_graph = (
            torch.stack([engine.pool.slot(run.first_slot) for run in tables[kind][seed][:15]]).view(engine.model.dtype)
            for kind in (0, 1)
        )
        torch.testing.assert_close(
            with_graph,
            without_graph,
            atol=1e-3 if dtype == "float32" else 0.1,
            rtol=1e-3 if dtype == "float32" else 0.1,
        )


@on_gpu
@pytest.mark.parametrize("microbatches", [1, 2])
def test_peers_and_losses_on_a_gpu(tmp_path: Path, microbatches: int) -> None:
    path = variant(tmp_path, "mistral-window", sliding_window=40)
    engine = engine_of(path, num_slots=128, microbatches=microbatches)
    lent = [Lent(engine, name, seed) for seed, name in enumerate("abc")]
    results = engine.run(*(one.step() for one in lent))
    assert [result.token for result in results] == [one.expected(path) for one in lent]
    engine.peers.creditors["y"].fail_at = ("send", 1)
    ids = prompt_ids(20, seed=8)
    local = seq_step(ids, 0, 20, engine.table(20), name="local", sample=GREEDY)
    results = engine.run(lent[0].step(), local, lent[1].step())
    assert [result.status for result in results] == ["lost", "ok", "lost"]
    assert results[1].token == reference_greedy(path, ids, 1)[0]
