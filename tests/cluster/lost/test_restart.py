"""Each kind of process is killed under a stream: as `distkv up --restart` has it, it comes back."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from distkv import LocalCluster, RequestFailed, SamplingParams
from distkv.client.local.child import Child
from distkv.client.local.restarts import Restarts
from distkv.client.local.supervisor import Died, Restarted, Supervisor
from tests.checkpoints import prompt_ids
from tests.waiting import wait_until

BACK_S = 60.0


def workers(cluster: LocalCluster) -> dict[str, int]:
    return {one["instance_id"]: one["worker_pid"] for one in cluster.status()["instances"]}


def processes_of(cluster: LocalCluster) -> set[psutil.Process]:
    return {psutil.Process(pid) for pid in (*(one.pid for one in cluster.processes), *workers(cluster).values())}


def comes_back(supervisor: Supervisor) -> tuple[str, str]:
    """The process that died, and the one that is ready again."""
    changes: list[Died | Restarted] = []
    deadline_s = time.monotonic() + BACK_S
    while not any(isinstance(one, Restarted) for one in changes):
        assert time.monotonic() < deadline_s, changes
        changes += supervisor.poll(time.monotonic())
        time.sleep(0.05)
    died, restarted = changes
    assert isinstance(died, Died) and died.restart_in_s == 0.5
    return died.name, restarted.name


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_each_kind_of_process_comes_back_under_a_stream(checkpoint: Path, expect: Callable[..., None]) -> None:
    greedy = SamplingParams(max_tokens=400, temperature=0.0, ignore_eos=True)
    prompt = prompt_ids(40, seed=1)
    with LocalCluster(checkpoint, 2, 1024, dtype="float32", threads=1) as cluster:
        supervisor = Supervisor(cluster, Restarts(2), start_timeout_s=BACK_S)
        places = cluster.address, cluster.http_url
        seen: set[psutil.Process] = set()
        for victim in ("gManager", "gateway", "worker of instance i0", "instance i1"):
            name = victim.removeprefix("worker of ")
            (process,) = (one for one in cluster.processes if one.name == name)
            seen |= processes_of(cluster)
            stream = cluster.stream(prompt, greedy)
            tokens = list(next(stream).token_ids)
            os.kill(_pid(cluster, victim, process), signal.SIGKILL)
            try:
                for chunk in stream:
                    tokens += chunk.token_ids
                expect(prompt, tokens, 400)
            except RequestFailed as failed:  # it ran where the process died
                assert failed.retryable and "instance" in name
            assert comes_back(supervisor) == (name, name)
            expect(prompt, cluster.generate([prompt], greedy)[0].token_ids, 400)
            wait_until(lambda: all(one["state"] == "ready" for one in cluster.status()["instances"]), BACK_S)
            blocks = {one["instance_id"]: one["blocks"]["total"] for one in cluster.status()["instances"]}
            assert blocks == {"i0": 64, "i1": 64}
        assert (cluster.address, cluster.http_url) == places
        assert cluster.gateway is not None
        wait_until(cluster.gateway.serves, BACK_S)
        seen |= processes_of(cluster)
    _gone, left = psutil.wait_procs(seen, timeout=BACK_S)
    assert not [one for one in left if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


def _pid(cluster: LocalCluster, victim: str, process: Child) -> int:
    return workers(cluster)[process.name.removeprefix("instance ")] if victim.startswith("worker") else process.pid
