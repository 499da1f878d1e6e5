from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from distkv.wire.links.memory.pool_memory import PoolRegion, host_key
from distkv.wire.links.transports.one_sided import reach
from distkv.wire.links.transports.one_sided.reach import Process, has_rdma, lands_on_gpu, why_unreachable


def here(pid: int) -> Process:
    return Process(host_key=host_key(), pid=pid, has_rdma=False)


def test_memory_of_this_host() -> None:
    byte = ctypes.create_string_buffer(1)
    assert why_unreachable(here(os.getpid()), ctypes.addressof(byte)) == ""
    assert "Bad address" in why_unreachable(here(os.getpid()), 1)


def test_a_process_that_is_gone() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
        assert "No such process" in why_unreachable(here(process.pid), 1)


@pytest.mark.parametrize(
    ("devices", "expected"), [("mlx5_0:1,eth0", True), ("eth0", False), ("", False), ("mlx5_1:1", False)]
)
def test_rdma_counts_where_ucx_may_use_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, devices: str, expected: bool
) -> None:
    (tmp_path / "mlx5_0").mkdir()
    monkeypatch.setattr(reach, "_INFINIBAND", tmp_path)
    monkeypatch.setenv("UCX_NET_DEVICES", devices)
    assert has_rdma() == expected
    for peer_has in (True, False):
        elsewhere = Process(host_key="elsewhere", pid=1, has_rdma=peer_has)
        assert (why_unreachable(elsewhere, 1) == "") == (peer_has and expected)


def test_no_device_is_no_rdma(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(reach, "_INFINIBAND", tmp_path / "missing")
    assert not has_rdma()


def test_what_arrives_on_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each of its conditions taken away."""
    for folder in ("infiniband/mlx5_0", "module/nvidia_peermem", "none"):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.setattr(reach, "_INFINIBAND", tmp_path / "infiniband")
    monkeypatch.setattr(reach, "_MODULES", tmp_path / "module")
    monkeypatch.setenv("UCX_NET_DEVICES", "mlx5_0:1")
    on_gpu, on_host = (PoolRegion(address=1, num_bytes=1, memory=memory) for memory in ("cuda", "host"))  # type: ignore[arg-type]
    assert lands_on_gpu(on_gpu, "elsewhere")
    assert not lands_on_gpu(on_host, "elsewhere")
    assert not lands_on_gpu(on_gpu, host_key())
    monkeypatch.setattr(reach, "_MODULES", tmp_path / "none")
    assert not lands_on_gpu(on_gpu, "elsewhere")
    monkeypatch.setattr(reach, "_MODULES", tmp_path / "module")
    monkeypatch.setattr(reach, "_INFINIBAND", tmp_path / "none")
    assert not lands_on_gpu(on_gpu, "elsewhere")
