from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from distkv import LocalCluster, SamplingParams
from distkv.client.local import launch
from distkv.client.local.restarts import Restarts
from distkv.client.local.supervisor import Died, Restarted, Supervisor
from tests.client.local.test_cluster import FAKES, gone

TWO = SamplingParams(max_tokens=2)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(launch, "MODULES", FAKES)
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "config.json").touch()
    return tmp_path / "x"


def changes(supervisor: Supervisor, until: Callable[[list[object]], bool]) -> list[object]:
    """What polling shows until then, on a clock that runs fifty times as fast where it waits for a restart."""
    found: list[object] = []
    deadline_s, now_s = time.monotonic() + 60, time.monotonic()
    while not until(found):
        assert time.monotonic() < deadline_s, found
        found += supervisor.poll(now_s)
        time.sleep(0.02)
        now_s += 1.0
    return found


def back(name: str) -> Callable[[list[object]], bool]:
    return lambda found: any(isinstance(one, Restarted) and one.name == name for one in found)


def test_each_kind_of_process_comes_back_where_it_was(model):
    with LocalCluster(model, instances=2, kv_tokens=[160, 320]) as cluster:
        supervisor = Supervisor(cluster, Restarts(2), start_timeout_s=1e6)
        address, url = cluster.address, cluster.http_url
        processes = [psutil.Process(one.pid) for one in cluster.processes]
        for name in ("instance i1", "gateway", "gManager"):
            (before,) = (one for one in cluster.processes if one.name == name)
            os.kill(before.pid, signal.SIGKILL)
            died, restarted = changes(supervisor, back(name))
            assert isinstance(died, Died) and isinstance(restarted, Restarted)
            assert (died.name, died.how, died.restart_in_s, died.restarts) == (
                name,
                "it was killed by SIGKILL",
                0.5,
                1,
            )
            (after,) = (one for one in cluster.processes if one.name == name)
            assert after.pid == restarted.pid != before.pid and not before.alive
            processes.append(psutil.Process(after.pid))
        assert (cluster.address, cluster.http_url) == (address, url)
        assert [one.instance_id for one in cluster.instances] == ["i0", "i1"]
        assert cluster.generate(["a"], TWO)[0].text == "0 1 "
        assert cluster.gateway is not None
        assert not [word for word in psutil.Process(cluster.gateway.pid).cmdline() if word.startswith("--wait-for")]
        # The fake's health check passes from the second time on.
        assert [cluster.gateway.serves() for _ in range(2)] == [False, True]
        assert not supervisor.is_over and len(cluster.processes) == 4
    assert gone(processes)


def test_one_that_dies_again_and_again_stays_down(model):
    with LocalCluster(model, instances=1, kv_tokens=160, gateway=False) as cluster:
        supervisor = Supervisor(cluster, Restarts(1), start_timeout_s=1e6)
        cluster.instances[0].kill()
        found = changes(supervisor, back("instance i0"))
        cluster.instances[0].kill()
        found += changes(supervisor, lambda found: supervisor.is_over)
        assert [(one.restart_in_s, one.restarts) for one in found if isinstance(one, Died)] == [(0.5, 1), (None, 1)]


def test_what_was_stopped_in_good_order_stays_down(model):
    with LocalCluster(model, instances=1, kv_tokens=160, gateway=False) as cluster:
        supervisor = Supervisor(cluster, Restarts(5), start_timeout_s=1e6)
        cluster.instances[0].signal(signal.SIGTERM)
        (died,) = changes(supervisor, lambda found: supervisor.is_over)
        assert died == Died("instance i0", "it exited with code 0", died.log, None, 0)


def test_one_that_does_not_become_ready_is_ended_and_counts_as_dead(model):
    with LocalCluster(model, instances=1, kv_tokens=160, gateway=False) as cluster:
        supervisor = Supervisor(cluster, Restarts(1), start_timeout_s=5.0)
        # Five steps of the clock are a tenth of a second.
        cluster.instances[0].kill()
        found = changes(supervisor, lambda found: supervisor.is_over)
        assert [one.how for one in found] == ["it was killed by SIGKILL", "it was not ready in time"]


def test_one_that_cannot_be_started_counts_as_dead(model):
    with LocalCluster(model, instances=1, kv_tokens=160, gateway=False) as cluster:
        supervisor = Supervisor(cluster, Restarts(1), start_timeout_s=1e6)
        shutil.rmtree(cluster.log_dir)
        cluster.instances[0].kill()
        found = changes(supervisor, lambda found: supervisor.is_over)
        assert [one.how for one in found][1:] == ["it could not be started: No such file or directory"]
