"""A worker ends with its rManager from its first moment on, long before it has loaded what it needs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import distkv
from distkv.actors.instance.worker_rank import WorkerRank
from distkv.actors.worker.spec import SPEC_VARIABLE, WorkerSpec
from distkv.config import InstanceConfig, build
from distkv.errors import StartupFailed
from distkv.wire.envelope_factory import EnvelopeFactory
from tests.waiting import soon

PACKAGE = Path(distkv.__file__).parent.parent
CONFIG = build(InstanceConfig, {"model": "m", "cpu_kernels": "torch"})


def test_one_whose_rmanager_is_gone_loads_nothing(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(f"open({str(tmp_path / 'loaded')!r}, 'w').close()")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        spec = WorkerSpec(
            pipe_fd=theirs.fileno(), instance_id="i", incarnation=1, data_address="127.0.0.1:0", insecure=False,
            engine=CONFIG.engine, data=CONFIG.data, logging=CONFIG.logging,
        )  # fmt: skip
        ours.close()
        ended = subprocess.run(
            [sys.executable, "-P", "-m", "distkv.actors.worker.start"],
            env={
                **os.environ,
                "PYTHONPATH": f"{tmp_path}:{PACKAGE}",
                SPEC_VARIABLE: msgspec.json.encode(spec).decode(),
            },
            pass_fds=(theirs.fileno(),),
            timeout=60,
            check=False,
        )
    assert ended.returncode == 1
    assert not (tmp_path / "loaded").exists()


async def test_one_that_loads_is_killed_with_its_rmanager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text(
        "import ctypes\n"
        "signum = ctypes.c_int()\n"
        "ctypes.CDLL(None).prctl(2, ctypes.byref(signum))\n"  # PR_GET_PDEATHSIG
        "raise ImportError(f'killed by {signum.value}')\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{PACKAGE}")
    worker = await WorkerRank.start(CONFIG, 1, EnvelopeFactory("i"))
    try:
        with pytest.raises(StartupFailed, match=f"killed by {int(signal.SIGKILL)}"):
            await soon(worker.wait_ready())
    finally:
        await worker.stop()
