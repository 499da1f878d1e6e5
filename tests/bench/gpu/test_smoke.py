"""The smoke cases: they pass where the kernels are right, and one that fails keeps no other from running."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed: it comes with the extra 'gpu'")

from distkv.bench.gpu import smoke
from distkv.engine.device.cpu import CpuDevice
from distkv.kernels.triton.backend import TritonBackend
from tests.engine.device import fake_cuda
from tests.wire.links.device_pools import on_host


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU these kernels are compiled for it")
@pytest.mark.slow
def test_what_is_interpreted_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distkv.bench.gpu.mail_in_a_graph.LAYERS", 4)
    device = CpuDevice(TritonBackend())
    with torch.inference_mode():
        found = smoke.run(smoke.Smoke(device).cases(), lambda _: None)
    assert [case.case for case in found if case.outcome != "passed"] == []
    assert {"one pass decode", "split decode", "deep split decode"} <= {case.case for case in found}


def test_pools_that_are_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the driver for tests, of two GPUs; then of one that is hidden; then with memory of somebody else."""
    device = on_host()
    monkeypatch.setattr(smoke, "_MAPPED_SLOTS", 3)
    monkeypatch.setattr(smoke, "_STAGED_SLOTS", 2)
    gpus = [(f"gpu {index}", fake_cuda.sharing(index), fake_cuda.UNITS[index]) for index in range(2)]
    monkeypatch.setattr(smoke, "gpus", lambda: gpus)
    before = fake_cuda.living()
    with device.stream(), torch.inference_mode():
        said = smoke.Smoke(device)._mapped()
        assert said.startswith("by the host ") and said.count("mapped read-only") == 2
        assert fake_cuda.living() == before
        monkeypatch.setenv("FAKE_CUDA_HIDES", "1")
        assert "CUDA_VISIBLE_DEVICES hides it" in smoke.Smoke(device)._mapped()
        monkeypatch.setattr(device.backend, "copy_blocks", lambda *_: None)
        with pytest.raises(AssertionError, match="gpu 0 arrived with other bytes"):
            smoke.Smoke(device)._mapped()
        device.sharing = None
        with pytest.raises(RuntimeError, match="peers map no memory of this device"):
            smoke.Smoke(device)._mapped()


def test_a_wrong_result_fails_and_the_rest_goes_on() -> None:
    told = []
    found = smoke.run(
        {"wrong": lambda: smoke._close(torch.ones(3), torch.zeros(3), 0.5), "right": lambda: "well"}, told.append
    )
    assert [(case.case, case.outcome) for case in found] == [("wrong", "failed"), ("right", "passed")]
    assert told == found and "off by 1" in found[0].detail


def test_what_is_no_number_is_wrong() -> None:
    with pytest.raises(AssertionError):
        smoke._close(torch.full((3,), torch.nan), torch.zeros(3), 0.5)
