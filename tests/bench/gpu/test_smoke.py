"""The smoke cases: they pass where the kernels are right, and one that fails keeps no other from running."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed: it comes with the extra 'gpu'")

from distkv.bench.gpu import smoke
from distkv.engine.device.cpu import CpuDevice
from distkv.kernels.triton.backend import TritonBackend


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU these kernels are compiled for it")
def test_what_is_interpreted_passes() -> None:
    device = CpuDevice(TritonBackend())
    with torch.inference_mode():
        found = smoke.run(smoke.Smoke(device).cases(), lambda _: None)
    assert [case.case for case in found if case.outcome != "passed"] == []
    assert {"one pass decode", "split decode", "deep split decode"} <= {case.case for case in found}


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
