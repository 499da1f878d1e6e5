"""What the CUDA device does that needs no GPU, and on a GPU the rest."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
import torch

from distkv.engine.device.cuda import STEP_BYTES, CudaDevice, _CudaCopy
from distkv.wire.messages.to_worker import Sampling
from tests.engine.sampling.by_row import sample_rows


def on_gpu(test: Callable[..., None]) -> Callable[..., None]:
    needs = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
    return pytest.mark.gpu(needs(test))


@pytest.fixture
def packing(monkeypatch: pytest.MonkeyPatch) -> CudaDevice:
    """A device that copies to the host."""
    device = object.__new__(CudaDevice)
    device.place = torch.device("cpu")
    monkeypatch.setattr(CudaDevice, "host", lambda self, num_bytes: torch.empty(num_bytes, dtype=torch.uint8))
    return device


def some() -> list[torch.Tensor]:
    return [
        torch.arange(5),
        torch.empty(0, 3, 2, dtype=torch.bfloat16),
        torch.randn(3, 7).to(torch.float16),
        torch.tensor([True, False, True]),
        torch.randn(4, 6).T,
        torch.tensor(2.5),
    ]


@pytest.mark.parametrize("count", [0, 1, 6])
def test_tensors_travel_together(packing: CudaDevice, count: int) -> None:
    """And may be changed at once."""
    given = some()[:count]
    kept = [tensor.clone() for tensor in given]
    there = packing.to_device(*given)
    for tensor in given:
        tensor.zero_()
    for got, expected in zip(there, kept, strict=True):
        assert got.dtype == expected.dtype
        assert torch.equal(got, expected)
        assert got.data_ptr() % got.element_size() == 0


@pytest.fixture
def device() -> CudaDevice:
    return CudaDevice(0)


@on_gpu
@pytest.mark.parametrize("aside", [False, True])
def test_there_and_back(device: CudaDevice, aside: bool) -> None:
    """A copy that is under way aside is not changed by what comes next in the stream, once it was awaited."""
    with device.stream():
        there = device.to_device(*some()[:3])
        assert all(tensor.device == device.place for tensor in there)
        doubled = [tensor + tensor for tensor in there]
        found = device.to_host(*doubled, aside=aside).wait()
        for tensor in doubled:
            tensor.zero_()
        device.synchronize()
        assert [tensor.device.type for tensor in found] == ["cpu"] * 3
        assert found[0].tolist() == [0, 2, 4, 6, 8]


@on_gpu
def test_a_graph_reads_what_lies_there_when_it_runs(device: CudaDevice) -> None:
    with device.stream():
        (numbers,) = device.to_device(torch.ones(4))

        def run() -> tuple[torch.Tensor]:
            return (numbers + numbers,)

        run()
        doubled = device.capture(run)
        doubled.results[0] + 1
        again = device.capture(lambda: (doubled.results[0] + 1,))
        numbers.fill_(3)
        doubled.replay()
        again.replay()
        assert device.to_host(*doubled.results).wait()[0].tolist() == [6.0] * 4
        assert device.to_host(*again.results).wait()[0].tolist() == [7.0] * 4


@on_gpu
def test_what_cannot_be_captured_is_an_error_and_no_more(device: CudaDevice) -> None:
    with device.stream():
        (numbers,) = device.to_device(torch.ones(4))
        with pytest.raises(RuntimeError):
            device.capture(lambda: (torch.tensor(numbers.sum().item()),))
        assert float((numbers + 1).sum()) == 8
        torch.cuda.empty_cache()
        captured = device.capture(lambda: (numbers + 2,))
        captured.replay()
        assert device.to_host(*captured.results).wait()[0].tolist() == [3.0] * 4


@on_gpu
def test_graphs_come_and_go(device: CudaDevice) -> None:
    with device.stream():
        (numbers,) = device.to_device(torch.ones(4))
        numbers + 1
        for count in range(3):
            captured = device.capture(lambda count=count: (numbers + count,))
            captured.replay()
            assert device.to_host(*captured.results).wait()[0].tolist() == [1.0 + count] * 4
            del captured


@on_gpu
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"top_k": 50},
        {"allowed_token_ids": tuple(range(100)), "forbidden_token_ids": (3, 7), "bad_words": ((1, 2, 5), (2, 9))},
        {"allowed_token_ids": (3,), "forbidden_token_ids": (3,)},
    ],
    ids=str,
)
def test_tokens_are_those_of_the_host(device: CudaDevice, more: dict[str, Any]) -> None:
    logits = torch.randn(20, 500, generator=torch.Generator().manual_seed(1)) * 3
    plain = Sampling(
        temperature=0.9, top_k=0, top_p=0.9, seed=4, min_p=0.01, logit_bias={3: 2.0}, repetition_penalty=1.2
    )
    samplings = [msgspec.structs.replace(plain, seed=seed, **more) for seed in range(20)]
    rest = [3] * 20, [torch.tensor([7, 1, 2])] * 20
    with device.stream():
        (there,) = device.to_device(logits)
        assert sample_rows(there, samplings, *rest, device).tolist() == sample_rows(logits, samplings, *rest).tolist()


def test_room_is_what_all_that_is_taken_leaves(packing: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 80 GiB 10 are taken, by weights, CUDA's context and others."""
    gib = 2**30
    monkeypatch.setattr(CudaDevice, "synchronize", lambda self: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda place: (70 * gib, 80 * gib))
    assert packing.kv_budget(0.5) == 30 * gib - STEP_BYTES
    assert packing.kv_budget(1.0) == 70 * gib - STEP_BYTES


class Event:
    """arrived: whether the copy has."""

    def __init__(self) -> None:
        self.arrived = False

    def query(self) -> bool:
        return self.arrived


def test_what_is_copied_aside_is_held_until_it_has_arrived(packing: CudaDevice) -> None:
    """Also when whoever asked for the copy forgets it."""
    packing._leaving = deque()
    events = [Event(), Event(), Event()]
    held = []
    for event in events:
        tensor = torch.ones(3)
        held.append(weakref.ref(tensor))
        packing._hold(_CudaCopy((), (tensor,), event))  # type: ignore[arg-type]
        del tensor
    assert all(one() is not None for one in held)
    events[0].arrived = True
    packing._hold(_CudaCopy((), (), events[2]))  # type: ignore[arg-type]
    assert [one() is None for one in held] == [True, False, False]


@on_gpu
def test_room(device: CudaDevice) -> None:
    with device.stream():
        total_bytes = torch.cuda.mem_get_info(device.place)[1]
        assert device.kv_budget(0.5) <= total_bytes // 2 - STEP_BYTES


@on_gpu
def test_a_transfer_beside_a_capture_is_no_part_of_it(device: CudaDevice) -> None:
    """However many threads ask for a stream meanwhile."""
    with device.stream():
        (numbers,) = device.to_device(torch.ones(4))

        def transfers() -> None:
            for _ in range(40):
                with device.shared_stream():
                    (there,) = device.to_device(torch.ones(4))
                    assert device.to_host(there + 1).wait()[0].tolist() == [2.0] * 4

        def run() -> tuple[torch.Tensor]:
            with ThreadPoolExecutor(1) as thread:
                thread.submit(transfers).result()
            return (numbers + numbers,)

        run()
        captured = device.capture(run)
        captured.replay()
        assert device.to_host(*captured.results).wait()[0].tolist() == [2.0] * 4
