"""A cluster under a real supervisord, from the configuration that is checked in."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xmlrpc.client import ServerProxy

import httpx
import psutil
import pytest
from supervisor.xmlrpc import SupervisorTransport

from distkv import AsyncClient
from distkv.wire.messages.to_client import InstanceStatus
from tests.cluster.driving import eventually

ROOT = Path(__file__).parents[2]
RETRY_S = 0.2  # between requests that find nobody ready
SETTINGS = """
[gmanager]
port = {gmanager}

[instance]
gmanager = "tcp://127.0.0.1:{gmanager}"
kv_tokens = 256
threads = 1

[gateway]
gmanager = "tcp://127.0.0.1:{gmanager}"
port = {gateway}
served_model_name = "tiny"
drain_wait_s = 0
"""


class Supervised:
    """The running supervisord and what may be asked of it."""

    def __init__(self, directory: Path, model: Path) -> None:
        self.gmanager, self.gateway = free_ports(2)
        config = directory / "distkv.toml"
        config.write_text(SETTINGS.format(gmanager=self.gmanager, gateway=self.gateway))
        self._directory = directory
        environ = os.environ | {
            "DISTKV_CONFIG": str(config),
            "DISTKV_MODEL": str(model),
            "DISTKV_RUN_DIR": str(directory),
            "PATH": f"{ROOT / 'bin'}{os.pathsep}{os.environ['PATH']}",
        }
        conf = str(ROOT / "configs" / "supervisord.conf")
        # As under systemd: what cannot be opened again by a path.
        self._output, output = socket.socketpair()
        with output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "supervisor.supervisord", "-n", "-c", conf],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._socket = f"unix://{directory / 'supervisor.sock'}"

    def said(self) -> str:
        """The newest lines of every program."""
        return "\n".join(path.read_text()[-2000:] for path in sorted(self._directory.glob("*.log")))

    def close(self) -> None:
        """End what still runs."""
        if self.process.poll() is None:
            for process in [*psutil.Process(self.process.pid).children(recursive=True), self.process]:
                process.kill()
            self.process.wait()
        self._output.close()

    def programs(self) -> dict[str, dict[str, Any]]:
        """What supervisord knows of each program: statename, pid, ..."""
        transport = SupervisorTransport(None, None, serverurl=self._socket)
        with contextlib.closing(transport), ServerProxy("http://127.0.0.1", transport=transport) as server:
            told: Any = server.supervisor.getAllProcessInfo()
        return {one["name"]: one for one in told}


def free_ports(count: int) -> list[int]:
    """None of those that sockets get which name none: others would take them before these are bound again."""
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    others = [port for port in range(1024, 2**16) if not first <= port <= last]
    return list(itertools.islice(filter(is_free, random.sample(others, len(others))), count))


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@pytest.fixture
def supervised(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Iterator[Supervised]:
    running = Supervised(tmp_path_factory.mktemp("sv"), checkpoint)
    yield running
    running.close()


@pytest.mark.slow
async def test_a_killed_instance_comes_back_and_serves(supervised: Supervised) -> None:
    said = supervised.said
    async with (
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{supervised.gateway}", timeout=30) as http,
        AsyncClient(f"tcp://127.0.0.1:{supervised.gmanager}") as client,
    ):

        async def answer() -> str | None:
            assert supervised.process.poll() is None, said()
            with contextlib.suppress(httpx.TransportError):
                asked = {"model": "tiny", "prompt": "One pool", "max_tokens": 4, "temperature": 0}
                reply = await http.post("/v1/completions", json=asked)
                if reply.status_code == 200:
                    return str(reply.json()["choices"][0]["text"])
                assert reply.status_code == 503, reply.text
            await asyncio.sleep(RETRY_S)
            return None

        async def instance(name: str) -> InstanceStatus:
            return {one.instance.instance_id: one.instance for one in await client.statuses()}[name]

        first = await eventually(answer, 60, lambda: f"the first answer\n{said()}")
        await eventually(lambda: supervised.programs()["instance-1"]["statename"] == "RUNNING", 30, "both run")

        victim = supervised.programs()["instance-0"]["pid"]
        worker = psutil.Process((await instance("i0")).worker_pid)
        os.kill(victim, signal.SIGKILL)

        async def back() -> bool:
            now = await instance("i0")
            return now.state == "ready" and now.pid != victim

        await eventually(back, 60, lambda: f"i0 comes back\n{said()}")
        assert supervised.programs()["instance-0"]["pid"] == (await instance("i0")).pid
        worker.wait(30)

        # Drained in good order, the other one is left alone; so it is the new one that serves.
        os.kill(supervised.programs()["instance-1"]["pid"], signal.SIGTERM)
        await eventually(lambda: supervised.programs()["instance-1"]["statename"] == "EXITED", 30, "i1 has drained")
        assert await eventually(answer, 30, lambda: f"an answer of the new incarnation\n{said()}") == first

    children = psutil.Process(supervised.process.pid).children(recursive=True)
    assert len(children) == 4, [child.cmdline() for child in children]
    supervised.process.terminate()
    assert await asyncio.to_thread(supervised.process.wait, 60) == 0
    _gone, left = psutil.wait_procs(children, 10)
    assert not left, said()
