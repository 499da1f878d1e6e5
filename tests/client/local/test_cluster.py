from __future__ import annotations

import asyncio
import errno
import functools
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from distkv import ConfigError, DistKVError, InvalidParams, LocalCluster, RequestOutput, SamplingParams, StartupFailed
from distkv.client.local import launch
from distkv.client.local.cluster_settings import ClusterSettings

FAKES = {
    "gmanager": "tests.client.local.fake_gmanager",
    "instance": "tests.client.local.fake_instance",
    "gateway": "tests.client.local.fake_gateway",
}
without_gateway = functools.partial(LocalCluster, gateway=False)
TWO = SamplingParams(max_tokens=2)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Makes the fakes' model directories."""
    monkeypatch.setattr(launch, "MODULES", FAKES)

    def make(kind: str) -> Path:
        (tmp_path / kind).mkdir(exist_ok=True)
        (tmp_path / kind / "config.json").touch()
        return tmp_path / kind

    return make


def gone(processes: list[psutil.Process]) -> bool:
    _, left = psutil.wait_procs(processes, timeout=30)
    return not [one for one in left if is_there(one)]


def is_there(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def processes_of(cluster: LocalCluster) -> list[psutil.Process]:
    """All of them, while they live; a number alone may come to name another process."""
    pids = [*(one.pid for one in cluster.processes), *workers(cluster)]
    return [psutil.Process(pid) for pid in pids]


def workers(cluster: LocalCluster) -> list[int]:
    return [one.report["worker_pid"] for one in cluster.instances]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_may_look_whether_processes_run(model):
    """It cannot wait for them, took them for ended, and made sure of it; and they lived as long as it did."""

    def look(cluster: LocalCluster) -> None:
        os._exit(all(one.alive and one.exit_code is None and one.fileno() < 0 for one in cluster.processes))

    with without_gateway(model("x"), kv_tokens=160) as cluster:
        looking = multiprocessing.get_context("fork").Process(target=look, args=(cluster,))
        looking.start()
        looking.join(20)
        assert looking.exitcode == 1 and all(one.alive for one in cluster.processes)


def test_without_a_directory_for_temporary_files_it_says_what_to_give(model, monkeypatch):
    def fails(prefix: str) -> str:
        raise FileNotFoundError(errno.ENOENT, f"no usable directory for {prefix}")

    monkeypatch.setattr(tempfile, "mkdtemp", fails)
    with pytest.raises(ConfigError, match=r"log_dir: no directory .* usable"):
        without_gateway(model("x"), kv_tokens=160)


def test_it_serves_and_leaves_nothing_behind(model):
    with without_gateway(model=model("x"), instances=2, kv_tokens=[160, 320], dtype="float32", threads=1) as cluster:
        assert [one.instance_id for one in cluster.instances] == ["i0", "i1"]
        assert [out.text for out in cluster.generate(["a", "b"], TWO)] == ["0 1 ", "0 1 "]
        told: list[RequestOutput] = []
        assert cluster.generate(["a", "b"], TWO, n=2, at_once=1, on_output=told.append, retries=1) == told
        chunks = list(cluster.stream("a", TWO, request_id="mine", timeout_s=20.0))
        assert ("".join(chunk.text for chunk in chunks), {chunk.request_id for chunk in chunks}) == ("0 1 ", {"mine"})
        assert [one["instance_id"] for one in cluster.status()["instances"]] == ["i0", "i1"]
        assert {one.instance_id: one.total_blocks for one in cluster.client().members()} == {"i0": 10, "i1": 20}
        for use in (cluster.status, cluster.close):
            with pytest.raises(RuntimeError, match="called from on_output"):
                cluster.generate(["a"], TWO, on_output=lambda _, use=use: use())
        assert cluster.generate(["a"], TWO), "nothing of it was closed"
        assert cluster.address == cluster.gmanager.address
        log_dir, processes = cluster.log_dir, processes_of(cluster)
        assert log_dir.is_dir()
    assert gone(processes)
    assert not log_dir.exists()
    with pytest.raises(RuntimeError, match="closed"):
        cluster.status()
    cluster.close()


def test_nobody_waits_for_a_gmanager_whose_port_is_known(model):
    started: list[int] = []

    def on_ready(name: str) -> None:
        started.append(len(set(psutil.Process().children()) - before))

    before = set(psutil.Process().children())
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with without_gateway(model("x"), instances=2, kv_tokens=160, port=port, on_ready=on_ready) as cluster:
        assert cluster.address == f"tcp://127.0.0.1:{port}"
        assert started == [3] * 3
        assert cluster.generate(["a"], TWO)[0].text == "0 1 "


async def test_it_works_while_a_loop_runs_in_the_calling_thread(model):
    assert asyncio.get_running_loop().is_running()
    with without_gateway(model("x"), kv_tokens=160) as cluster:
        assert cluster.generate(["a"], TWO)[0].finish_reason == "length"


def test_the_death_of_an_instance_ends_nothing_else(model):
    with without_gateway(model("x"), instances=2, kv_tokens=160) as cluster:
        worker = psutil.Process(workers(cluster)[0])
        cluster.instances[0].kill()
        assert cluster.instances[0].exit_code == -signal.SIGKILL
        assert gone([worker])
        assert cluster.generate(["a"], TWO)[0].text == "0 1 "
        assert [one["state"] for one in cluster.status()["instances"]] == ["unreachable", "ready"]


def test_what_fails_since_an_instance_died_says_how_it_ended(model):
    with without_gateway(model("x"), kv_tokens=160) as cluster:
        assert cluster.generate(["a"], TWO)
        cluster.instances[0].kill()
        for ask in (lambda: cluster.generate(["a"], TWO), lambda: list(cluster.stream("a", TWO))):
            with pytest.raises(DistKVError) as caught:
                ask()
            assert "instance i0 has ended: it was killed by SIGKILL" in "\n".join(caught.value.__notes__)
        with pytest.raises(InvalidParams) as invalid, cluster.noting_deaths():
            raise InvalidParams("temperature", "a number", "hot")
        assert not hasattr(invalid.value, "__notes__"), "no death has to do with that"


def test_the_worker_of_an_instance_killed_by_others_ends_too(model):
    with without_gateway(model("x"), kv_tokens=160) as cluster:
        (worker,) = map(psutil.Process, workers(cluster))
        os.kill(cluster.instances[0].pid, signal.SIGKILL)
        os.waitid(os.P_PID, cluster.instances[0].pid, os.WEXITED | os.WNOWAIT)
        assert not cluster.instances[0].alive
        assert gone([worker])


def test_requests_outlive_the_gmanager_and_it_can_come_back(model):
    with without_gateway(model("x"), kv_tokens=160) as cluster:
        address = cluster.address
        cluster.gmanager.kill()
        assert cluster.generate(["a"], TWO)[0].text == "0 1 "
        cluster.restart_gmanager()
        assert cluster.address == address and cluster.gmanager.alive
        assert cluster.generate(["a"], TWO)[0].text == "0 1 "


def test_a_stopped_process_is_killed_in_the_end(model):
    cluster = without_gateway(model("x"), kv_tokens=160, stop_timeout_s=0.2)
    processes = processes_of(cluster)
    os.kill(cluster.instances[0].pid, signal.SIGSTOP)
    cluster.close()
    assert gone(processes)


def test_one_that_ignores_its_stop_event_is_ended(model):
    cluster = without_gateway(model("stays"), kv_tokens=160, shutdown_timeout_s=0.1)
    processes = processes_of(cluster)
    cluster.close()
    assert gone(processes)
    assert cluster.instances[0].process.returncode == 1


def test_a_start_that_fails_says_why_and_leaves_nothing(model):
    with pytest.raises(StartupFailed, match=r"instance i[01] did not start: it exited with code 1(.|\n)*no weights"):
        without_gateway(model("dies"), instances=2, kv_tokens=160)


def test_a_start_has_a_deadline(model):
    with pytest.raises(StartupFailed, match="not ready in time"):
        without_gateway(model("hangs"), kv_tokens=160, start_timeout_s=2.0)


def test_a_gateway_serves_http_beside_the_instances(model, tmp_path):
    options = {"gateway_options": {"api_key": ["sk-first", "sk-second"]}, "log_dir": tmp_path / "logs"}
    with LocalCluster(model("x"), kv_tokens=160, **options) as cluster:
        assert cluster.http_url.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(f"{cluster.http_url}/health", timeout=10) as answer:
            assert answer.status == 200
        report = cluster.gateway.report
        assert (report["gmanager"], report["keys"]) == (cluster.address, 2)
        processes = processes_of(cluster)
    assert gone(processes)
    assert cluster.gateway.process.returncode == 0
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["gateway.log", "gmanager.log", "i0.log"]


def test_keys_are_not_on_the_command_line():
    settings = {"model": "m", "api_key": ["sk-first", "sk-second"]}
    assert not [word for word in launch.command("gateway", settings) if "sk-" in word]
    assert launch.environment("gateway", settings)["DISTKV_API_KEY"] == "sk-first,sk-second"


def test_the_death_of_the_gateway_ends_nothing_else(model):
    with LocalCluster(model("x"), kv_tokens=160) as cluster:
        cluster.gateway.kill()
        assert cluster.generate(["a"], TWO)[0].text == "0 1 "
        assert cluster.instances[0].alive and cluster.gmanager.alive
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(f"{cluster.http_url}/health", timeout=10)


def test_a_gateway_whose_port_is_taken_says_so(model):
    with LocalCluster(model("x"), kv_tokens=160) as cluster:
        taken = int(cluster.http_url.rpartition(":")[2])
        with pytest.raises(StartupFailed, match=r"gateway did not start: it exited with code 1(.|\n)*in use"):
            LocalCluster(model("x"), kv_tokens=160, http_port=taken)


def test_without_a_gateway_there_is_no_url(model):
    with without_gateway(model("x"), kv_tokens=160) as cluster, pytest.raises(RuntimeError, match="gateway=False"):
        _ = cluster.http_url


def test_logs_are_kept_where_the_user_wants_them(model, tmp_path):
    with without_gateway(model("x"), kv_tokens=160, log_dir=tmp_path / "logs"):
        pass
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["gmanager.log", "i0.log"]


def test_logs_that_cannot_be_written_start_nothing(model, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "logs" / "i0.log").mkdir(parents=True)
    with pytest.raises(ConfigError, match=rf"log_dir: cannot write {tmp_path}/logs/i0\.log: Is a directory"):
        without_gateway(model("x"), kv_tokens=160, log_dir="~/logs")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"instances": 0}, "instances: expected an integer ≥ 1"),
        ({"kv_tokens": [1, 2, 3], "instances": 2}, "one per instance"),
        ({"kv_tokens": 8}, "less than one rBlock"),
        ({"kv_tokens": 1.5}, "kv_tokens: expected an integer or one per instance"),
        ({"kv_tokens": "64"}, "kv_tokens: expected an integer or one per instance"),
        ({"threads": 0}, "threads: expected an integer from 1 to 4096"),
        ({"threads": 100_000}, "threads: expected an integer from 1 to 4096"),
        ({"dtype": "int8"}, "dtype: expected one of"),
        ({"cpu_affinity": "0-"}, "cpu_affinity: expected cores such as 0-3,6, got '0-'"),
        ({"cpu_affinity": 3}, "cpu_affinity: expected a text"),
        ({"cpu_affinity": "0-3", "threads": 3, "instances": 2}, "threads: 3 are more than the 2 cores"),
        ({"cpu_kernels": "mmx"}, "cpu_kernels: expected one of amx, auto"),
        ({"max_num_seq": 3}, "max_num_seq: unknown setting .did you mean max_num_seqs"),
        ({"instance": 3}, "instance: unknown setting .did you mean instances"),
        ({"http_prt": 3}, "did you mean http_port"),
        ({"zzzzzz": 3}, "zzzzzz: unknown setting .docs/configuration.md has all of them"),
        ({"tensor_parallel_size": 2}, "tensor_parallel_size: one process computes .* .use instances=N for several"),
        ({"data_parallel_size": 2}, "data_parallel_size: .* .use instances=N"),
        ({"quantization": "awq"}, "quantization: weights are not quantized .*; kv_cache_dtype fp8 halves"),
        ({"enable_prefix_caching": True}, "there is no prefix caching .leave it out"),
        ({"enable_chunked_prefill": False}, "bound the parts with max_num_batched_tokens"),
        ({"instance_options": {"max_num_seq": 3}}, "did you mean max_num_seqs"),
        ({"instance_options": [{}, {}, {}], "instances": 2}, "one mapping per instance"),
        ({"http_port": 70000}, "port: expected an integer from 0 to 65535"),
        ({"gateway_options": {"api_keys": "x"}}, "did you mean api_key"),
        ({"gateway": False, "gateway_options": {"api_key": "x"}}, "gateway is false"),
        ({"gateway_options": {"gmanager": "tcp://127.0.0.1:7070"}}, "it asks this cluster's"),
        ({"instance_options": {"port": 7080}}, "port: is not for others to set: the cluster chooses it for every inst"),
        ({"instance_options": [{}, {"instance_id": "x"}], "instances": 2}, "instance_id: is not for others to set"),
        ({"gmanager": "tcp://10.0.0.1:7070"}, "gmanager: is not for others to set"),
        ({"log_dir": ""}, "log_dir: is empty"),
        ({"gateway": False, "max_body_bytes": 3}, "max_body_bytes: unknown setting"),
    ],
)
def test_wrong_arguments_start_nothing(model, arguments, told):
    with pytest.raises(ConfigError, match=told):
        LocalCluster(model("x"), **arguments)


def test_arguments_of_vllm_that_ask_for_what_is_so_anyway_may_stand():
    wanted = {"tensor_parallel_size": 1, "enable_chunked_prefill": True, "enforce_eager": False, "quantization": None}
    more = {"trust_remote_code": False, "load_format": "auto", "enable_lora": False, "max_num_seqs": 3}
    assert launch.split_common(wanted | more, ("instance",)) == {"instance": {"max_num_seqs": 3}}


def test_a_directory_that_is_no_model_starts_nothing(tmp_path):
    with pytest.raises(ConfigError, match="there is no directory"):
        LocalCluster(tmp_path / "none")
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        LocalCluster(tmp_path)


def test_cores_that_are_not_here_start_nothing(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(10)))
    with pytest.raises(ConfigError, match=r"cpu_affinity: this process may not use cores 10-12 .it may use 0-9"):
        LocalCluster("demo", 1, cpu_affinity="8-12")
    with pytest.raises(ConfigError, match="may not use core 11 "):
        LocalCluster("demo", 2, instance_options=[{}, {"cpu_affinity": "11"}])


def test_instances_share_the_cores():
    assert launch.shares_of_cores("0-4,9", 3) == ["0,1", "2,3", "4,9"]
    assert launch.shares_of_cores("4,5,6", 2) == ["4", "5,6"]
    assert launch.shares_of_cores("3,1", 3) == ["3", "3", "1"]
    assert launch.shares_of_cores("7", 2) == ["7", "7"]
    assert launch.shares_of_cores(None, 2) == launch.shares_of_cores("auto", 2) == [None, None]


def test_settings_reach_the_processes_that_have_them(model):
    command = launch.command("instance", {"model": "m", "kv_tokens": "1K", "insecure": True, "gmanager": "a:1,b:2"})
    assert command[4:] == ["--model=m", "--kv-tokens=1024", "--insecure", "--gmanager=a:1,b:2"]
    common = {"heartbeat_s": 0.1, "lease_s": 2, "request_timeout_s": 9}
    assert launch.split_common(common, ("gmanager", "instance", "gateway")) == {
        "gmanager": {"heartbeat_s": 0.1},
        "instance": common,
        "gateway": {"request_timeout_s": 9},
    }


def test_the_environment_does_not_configure_a_local_cluster(monkeypatch):
    monkeypatch.setenv("DISTKV_KV_CACHE_MEMORY_BYTES", "4G")
    monkeypatch.setenv("DISTKV_CONFIG", "nowhere.toml")
    assert not [name for name in launch.environment() if name in ("DISTKV_KV_CACHE_MEMORY_BYTES", "DISTKV_CONFIG")]


def test_children_end_when_their_parent_is_killed(model):
    program = (
        "import sys, time\n"
        "from distkv import LocalCluster\n"
        "from distkv.client.local import launch\n"
        f"launch.MODULES = {FAKES!r}\n"
        f"cluster = LocalCluster({str(model('x'))!r}, instances=2, kv_tokens=160, gateway=False)\n"
        "print(cluster.log_dir, cluster.gmanager.pid, *(one.pid for one in cluster.instances), flush=True)\n"
        "time.sleep(100)\n"
    )
    before = set(psutil.Process().children())
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        log_dir, *pids = parent.stdout.readline().split()
    children = [psutil.Process(int(pid)) for pid in pids]
    parent.kill()
    parent.wait()
    assert gone(children)
    for worker in set(psutil.Process().children()) - before:
        worker.kill()
    for file in Path(log_dir).iterdir():
        file.unlink()
    Path(log_dir).rmdir()


def test_the_gateway_waits_for_all_instances_or_as_many_as_it_is_told():
    for given, waits_for in ((None, 3), ({"wait_for": 2}, 2)):
        gateway = ClusterSettings.of("demo", 3, 1024, gateway_options=given).gateway
        assert gateway is not None and gateway["wait_for"] == waits_for
    with pytest.raises(ConfigError, match="wait_for: expected at most 3, as many as start, got 4"):
        ClusterSettings.of("demo", 3, 1024, gateway_options={"wait_for": 4})
