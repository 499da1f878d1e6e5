"""A whole cluster on this machine: the real daemons as child processes."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

from distkv.client.async_client import MAX_AT_ONCE
from distkv.client.blocking import Client
from distkv.client.local import launch
from distkv.client.local.child import Child, stop, wait_ready
from distkv.client.local.cluster_settings import ClusterSettings
from distkv.client.local.drain_watch import DrainWatch, OnWaiting
from distkv.client.local.handles import GatewayHandle, GManagerHandle, InstanceHandle
from distkv.config import DEMO_MODEL, GManagerConfig, settings_of
from distkv.endings import describe_exit
from distkv.errors import ClusterUnreachable, ConfigError, RequestFailed, StartupFailed
from distkv.types import Chunk, RequestOutput, SamplingParams
from distkv.wire.address import join_host_port

GMANAGER_STOP_S = 5.0
RESTARTS = 3
C = TypeVar("C", bound=Child)


class LocalCluster:
    """A gManager, `instances` instances ("i0", "i1", ...) and a gateway on loopback, ready once it is constructed.

    model: a checkpoint directory; "demo" is the small model that comes with distkv. kv_tokens: KV pool of every
    instance, or one number each; rounded down to whole rBlocks. dtype: of weights and KV. threads: CPU threads of each
    engine; None shares the machine's. port: of the gManager, 0 is automatic. gateway: whether to serve HTTP too, at
    `http_url`; http_port: its port, 0 is automatic. start_timeout_s, stop_timeout_s: bounds on starting, and on
    draining in `close`. log_dir: keeps the processes' logs there; None deletes them,
    unless `keep_logs` is called. instance_options: more settings of
    every instance, or a list with one mapping for each; gmanager_options, gateway_options: of these two. on_ready: is
    called with the name of each process when it is ready. common: settings for every process that has them; the cores
    of cpu_affinity are shared out.

    Use it in `with`, or `close` it; the processes also end when this one does, however it ends. The death of an
    instance or of the gateway ends nothing else. Raises ConfigError, and StartupFailed with the last lines of the log.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] = DEMO_MODEL,
        instances: int = 1,
        kv_tokens: int | Sequence[int] | None = None,
        dtype: str = "auto",
        threads: int | None = None,
        *,
        block_size: int = 16,
        port: int = 0,
        gateway: bool = True,
        http_port: int = 0,
        start_timeout_s: float = 180.0,
        stop_timeout_s: float = 15.0,
        log_dir: str | os.PathLike[str] | None = None,
        instance_options: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        gmanager_options: Mapping[str, Any] | None = None,
        gateway_options: Mapping[str, Any] | None = None,
        on_ready: Callable[[str], None] = lambda name: None,
        **common: Any,
    ) -> None:
        self._settings = ClusterSettings.of(
            model,
            instances,
            kv_tokens,
            dtype,
            threads,
            block_size=block_size,
            port=port,
            gateway=gateway,
            http_port=http_port,
            instance_options=instance_options,
            gmanager_options=gmanager_options,
            gateway_options=gateway_options,
            **common,
        )
        self._settings.check_machine()
        self.stop_timeout_s = stop_timeout_s
        self.gmanager: GManagerHandle
        self.gateway: GatewayHandle | None = None
        self.instances: list[InstanceHandle] = []
        self._children: list[Child] = []
        self._made: dict[str, tuple[type[Child], str, dict[str, Any]]] = {}
        self._clients: list[Client] = []
        self._on_ready = on_ready
        self._owner_pid = os.getpid()
        self._closed = False
        self._kept_logs = log_dir is not None
        self.log_dir = _log_dir(log_dir) if log_dir is not None else _passing_dir()
        self._client: Client | None = None
        atexit.register(self.close)
        try:
            self._make_log_dir()
            self._start(time.monotonic() + start_timeout_s)
        except BaseException:
            self.close(stop_timeout_s=0)
            raise

    @property
    def address(self) -> str:
        """The gManager's address."""
        return self.gmanager.address

    @property
    def processes(self) -> list[Child]:
        """The gManager, the gateway if there is one, and the instances; the workers belong to these."""
        return [self.gmanager, *([self.gateway] if self.gateway else []), *self.instances]

    @property
    def http_url(self) -> str:
        """Where the gateway serves HTTP, "http://127.0.0.1:PORT". Raises RuntimeError when there is none."""
        if self.gateway is None:
            raise RuntimeError("the cluster has no gateway: it was started with gateway=False")
        return self.gateway.url

    def generate(
        self,
        prompts: str | Sequence[int] | Sequence[str | Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        n: int = 1,
        at_once: int = MAX_AT_ONCE,
        on_output: Callable[[RequestOutput], None] | None = None,
        retries: int = 0,
    ) -> list[RequestOutput]:
        """See `Client.generate`."""
        client = self._own_client()
        with self.noting_deaths():
            return client.generate(prompts, params, n=n, at_once=at_once, on_output=on_output, retries=retries)

    def stream(
        self,
        prompt: str | list[int],
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        timeout_s: float | None = None,
    ) -> Iterator[Chunk]:
        """Yield one prompt's output as it comes; leaving the loop cancels the request."""
        return self._noted(self._own_client().stream(prompt, params, request_id=request_id, timeout_s=timeout_s))

    @contextmanager
    def noting_deaths(self) -> Iterator[None]:
        """What fails for want of the cluster within it has a note on each own process that has failed: how it ended,
        and what it said last."""
        try:
            yield
        except (RequestFailed, ClusterUnreachable) as error:
            for child in self.processes:
                if child.exit_code:
                    error.add_note(f"{child.name} has ended: {describe_exit(child.exit_code)}\n{child.last_log()}")
            raise

    def status(self) -> dict[str, Any]:
        """The dict of `distkv status --json`."""
        return self._own_client().status()

    def client(self) -> Client:
        """Another client of this cluster; it is closed with the cluster, or before by you."""
        client = Client(self.address)
        self._clients.append(client)
        return client

    def restart_gmanager(self, timeout_s: float = 30.0) -> None:
        """Start a new gManager at the address of the one before, which is killed if it still runs."""
        self.gmanager.kill()
        deadline_s = time.monotonic() + timeout_s
        for attempt in range(RESTARTS):
            # An outgoing connection may hold the port for a moment while nobody listens there.
            gmanager = self.start_again(self.gmanager.name)
            try:
                wait_ready([gmanager], deadline_s)
            except StartupFailed:
                gmanager.kill()
                if attempt == RESTARTS - 1 or time.monotonic() > deadline_s:
                    raise
            else:
                self.replace(gmanager)
                return

    def start_again(self, name: str) -> Child:
        """Start a process that has ended once more: the same settings and log, a gManager and a gateway also where they
        were. It takes its place by `replace`, when it is ready."""
        kind, section, settings = self._made[name]
        before = next(one for one in self.processes if one.name == name)
        if section != "instance":
            settings = settings | {"port": int(before.address.rpartition(":")[2])}
            # Who served before serves again, though an instance may be down by now.
            settings.pop("wait_for", None)
        self._let_go([one for one in self._children if one.name == name and one is not before])
        return self._spawn(kind, section, name, settings)

    def replace(self, child: Child) -> None:
        """A process that was started again is now the one of its name."""
        match child:
            case InstanceHandle():
                self.instances[[one.name for one in self.instances].index(child.name)] = child
            case GatewayHandle():
                self.gateway = child
            case GManagerHandle():
                self.gmanager = child
        self._let_go([one for one in self._children if one.name == child.name and one is not child])

    def close(self, *, stop_timeout_s: float | None = None, on_waiting: OnWaiting | None = None) -> None:
        """Drain and end every process, within stop_timeout_s; 0 kills. Safe to call twice; does not raise for those
        that died before.

        Gateway and instances are told at once, and finish what can be finished; the gManager goes last. on_waiting: is
        told meanwhile, from another thread, how many requests are waited for at which instances, whenever that changes.
        Raises RuntimeError, and ends nothing, where `generate` calls `on_output`.
        """
        if self._closed or os.getpid() != self._owner_pid:
            return
        for client in self._clients:
            client.check_thread()
        self._closed = True
        atexit.unregister(self.close)
        limit_s = self.stop_timeout_s if stop_timeout_s is None else stop_timeout_s
        try:
            for client in self._clients:
                client.close()
            if limit_s > 0:
                serving = [*([self.gateway] if self.gateway else []), *self.instances]
                with DrainWatch(self.address, on_waiting) if on_waiting else contextlib.nullcontext():
                    stop(serving, limit_s)
                stop([child for child in self._children if child not in serving], GMANAGER_STOP_S)
        finally:
            for child in self._children:
                child.close()
            if not self._kept_logs:
                shutil.rmtree(self.log_dir, ignore_errors=True)

    def keep_logs(self) -> Path:
        """Leave the processes' logs where they are when this ends; returns where that is."""
        self._kept_logs = True
        return self.log_dir

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def devices(self) -> dict[str, str]:
        """By instance, the device that it was given; not those that choose for themselves."""
        return {one["instance_id"]: one["device"] for one in self._settings.instances if "device" in one}

    def _make_log_dir(self) -> None:
        try:
            self.log_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError("log_dir", f"cannot make {self.log_dir}: {error.strerror}") from None
        gateway = [] if self._settings.gateway is None else ["gateway"]
        try:
            for name in ("gmanager", *(one["instance_id"] for one in self._settings.instances), *gateway):
                self._log_path(name).open("ab").close()
        except OSError as error:
            raise ConfigError("log_dir", f"cannot write {error.filename}: {error.strerror}") from None

    def _log_path(self, name: str) -> Path:
        """name: of an instance, or the section of another process."""
        return self.log_dir / f"{name}.log"

    def _start(self, deadline_s: float) -> None:
        of_gmanager = self._settings.gmanager
        self.gmanager = self._spawn(GManagerHandle, "gmanager", "gManager", of_gmanager)
        if of_gmanager["port"]:
            # Where it will be is known: nobody has to wait for it.
            host = of_gmanager.get("host", settings_of(GManagerConfig)["host"].default)
            wired = {"gmanager": f"tcp://{join_host_port(host, of_gmanager['port'])}"}
        else:
            wait_ready([self.gmanager], deadline_s, self._on_ready)
            wired = {"gmanager": self.address}
        for settings in self._settings.instances:
            name = settings["instance_id"]
            self.instances.append(self._spawn(InstanceHandle, "instance", f"instance {name}", settings | wired))
        if self._settings.gateway is not None:
            self.gateway = self._spawn(GatewayHandle, "gateway", "gateway", self._settings.gateway | wired)
        wait_ready([one for one in self.processes if not one.report], deadline_s, self._on_ready)
        self._wait_until(self._unready_instances, deadline_s)
        self._wait_until(self._unready_gateway, deadline_s)

    def _unready_instances(self) -> set[str]:
        ready: set[str] = set()
        with contextlib.suppress(ClusterUnreachable):
            ready = {m.instance_id for m in self._own_client().members() if m.state == "ready"}
        return {handle.instance_id for handle in self.instances} - ready

    def _unready_gateway(self) -> set[str]:
        return {self.gateway.name} if self.gateway is not None and not self.gateway.serves() else set()

    def _wait_until(self, unready: Callable[[], set[str]], deadline_s: float) -> None:
        """Wait until the cluster calls all of them ready, as they did themselves before."""
        while late := unready():
            for child in self._children:
                if not child.alive:
                    raise child.failure()
            if time.monotonic() > deadline_s:
                raise StartupFailed(
                    ", ".join(sorted(late)), "the cluster does not call it ready in time", self.gmanager.last_log()
                )
            time.sleep(0.02)

    def _spawn(self, kind: type[C], section: str, name: str, settings: dict[str, Any]) -> C:
        log = self._log_path(settings.get("instance_id", section))
        child = kind(name, launch.command(section, settings), log, launch.environment(section, settings))
        self._made[name] = kind, section, settings
        self._children.append(child)
        return child

    def _let_go(self, children: Sequence[Child]) -> None:
        for child in children:
            child.close()
            self._children.remove(child)

    def _noted(self, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        with self.noting_deaths():
            yield from chunks

    def _own_client(self) -> Client:
        if self._closed:
            raise RuntimeError("the cluster is closed")
        if self._client is None:
            self._client = self.client()
        return self._client


def _log_dir(log_dir: str | os.PathLike[str]) -> Path:
    if not os.fspath(log_dir):
        raise ConfigError("log_dir", "is empty", "leave it out to keep no logs")
    return Path(log_dir).expanduser()


def _passing_dir() -> Path:
    """For logs that nobody keeps. Raises ConfigError."""
    try:
        return Path(tempfile.mkdtemp(prefix="distkv-"))
    except OSError as error:
        raise ConfigError("log_dir", f"no directory can be made for it: {error.strerror}", "give one") from None
