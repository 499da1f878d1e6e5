"""The host as a device: nothing is copied and nothing is awaited."""

from __future__ import annotations

import torch

from distkv.engine.device.cpu import DEFAULT_POOL_BYTES, CpuDevice
from distkv.engine.device.device import ThreadStreams
from distkv.kernels.cpu.dispatch import available


def test_tensors_stay_where_they_are() -> None:
    device = CpuDevice()
    tensor = torch.arange(3)
    assert device.to_device(tensor)[0] is tensor and device.to_host(tensor).wait()[0] is tensor
    assert not device.is_async and device.backend.name == available()[0]


def test_the_pool_is_a_share_of_free_memory() -> None:
    assert 0 < CpuDevice().kv_budget(0.9) <= DEFAULT_POOL_BYTES


def test_a_thread_keeps_its_stream() -> None:
    streams = ThreadStreams(CpuDevice())
    assert streams.current() is streams.current()


def test_a_capture_computes_again_from_the_same_tensors() -> None:
    numbers = torch.ones(4)
    captured = CpuDevice().capture(lambda: (numbers + numbers,))
    numbers.fill_(3)
    captured.replay()
    assert captured.results[0].tolist() == [6.0] * 4
