"""A worker sets its backend, threads and cores, and says so."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch
from structlog.testing import capture_logs

from distkv.actors.worker import device_setup
from distkv.errors import ConfigError
from distkv.kernels.cpu import dispatch
from distkv.kernels.cpu.calls.library import Library
from tests.actors.worker.test_spec import SPEC

ONE = msgspec.structs.replace(SPEC.engine, threads=1, cpu_affinity=None)


@pytest.fixture(autouse=True)
def _process_as_before() -> Iterator[None]:
    threads, cores = torch.get_num_threads(), os.sched_getaffinity(0)
    yield
    torch.set_num_threads(threads)
    os.sched_setaffinity(0, cores)


def test_the_choice_is_logged() -> None:
    with capture_logs() as logs:
        device = device_setup.set_up(ONE)
    assert logs == [
        {
            "event": "kernels",
            "log_level": "warning" if device.backend.name == "torch" else "info",
            "device": "cpu",
            "backend": device.backend.name,
            "threads": 1,
            "cores": [],
            "why": device.why,
        }
    ]
    assert torch.get_num_threads() == 1


def test_torch_for_want_of_native_code_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "installed", lambda: Library.load(tmp_path / "none.so"))
    with capture_logs() as logs:
        assert device_setup.set_up(ONE).backend.name == "torch"
        device_setup.set_up(msgspec.structs.replace(ONE, cpu_kernels="torch"))
    assert [line["log_level"] for line in logs] == ["warning", "info"]
    assert "was not built" in logs[0]["why"]
    with pytest.raises(ConfigError, match="avx2 is not here"):
        device_setup.set_up(msgspec.structs.replace(ONE, cpu_kernels="avx2"))


def test_the_process_stays_on_its_cores() -> None:
    core = max(os.sched_getaffinity(0))
    device_setup.set_up(msgspec.structs.replace(ONE, cpu_affinity=str(core)))
    assert os.sched_getaffinity(0) == {core}
