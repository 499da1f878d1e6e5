"""The profiled step: its rows are of one step."""

from __future__ import annotations

import torch
from torch.profiler import ProfilerActivity

from distkv.bench.baselines.checkpoints import MODELS
from distkv.bench.gpu.profiled_step import STEPS, WARMUPS, profiled
from distkv.bench.workloads.computing.decode_steps import DecodeSteps
from distkv.bench.workloads.computing.random_model import random_model
from distkv.engine.device.cpu import CpuDevice
from distkv.kernels.cpu.torch_backend import TorchBackend


def test_rows_are_of_one_step() -> None:
    torch.set_num_threads(1)
    model = random_model(MODELS["tiny"], CpuDevice(TorchBackend()))
    found = profiled(DecodeSteps(model, 2, 32, WARMUPS + 2 * STEPS), [ProfilerActivity.CPU])
    calls = {row["name"]: row["calls"] for row in found["rows"]}
    # Each layer has four, and the vocabulary one.
    assert calls["aten::linear"] == 4 * MODELS["tiny"].layers + 1
    assert found["step_us"] > 0 and found["device_busy_us"] == 0
