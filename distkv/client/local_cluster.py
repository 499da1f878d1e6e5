"""A whole cluster on this machine: the real daemons as child processes."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from distkv.client import launch
from distkv.client.blocking import Client
from distkv.client.child import Child, how_it_ended, stop, wait_ready
from distkv.config import check_model_dir
from distkv.errors import ClusterUnreachable, ConfigError, StartupFailed
from distkv.types import Chunk, RequestOutput, SamplingParams

GMANAGER_STOP_S = 5.0
RESTARTS = 3
C = TypeVar("C", bound=Child)


class GManagerHandle(Child):
    """The gManager's process."""

    @property
    def address(self) -> str:
        """Where clients and instances reach it, "tcp://host:port"."""
        return str(self.facts.get("address", ""))


class InstanceHandle(GManagerHandle):
    """One instance's rManager process; its worker belongs to it. `kill()` ends both at once."""

    @property
    def instance_id(self) -> str:
        return self.name.removeprefix("instance ")


class LocalCluster:
    """A gManager and `instances` instances ("i0", "i1", ...) on loopback, ready when the constructor returns.

    model: a checkpoint directory. kv_tokens: KV pool of every instance, or one number each; rounded down to whole
    rBlocks. dtype: of weights and KV. threads: CPU threads of each engine; None shares the machine's. port: of the
    gManager, 0 is automatic. start_timeout_s, stop_timeout_s: bounds on starting, and on draining in `close`.
    log_dir: keeps the processes' logs there; None deletes them. instance_options: more settings of every instance, or
    a list with one mapping for each; gmanager_options: of the gManager. common: settings for every process that has
    them.

    Use it in `with`, or `close` it; the processes also end when this one does, however it ends. The death of an
    instance ends nothing else. Raises ConfigError, and StartupFailed with the last lines of the log.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        instances: int = 1,
        kv_tokens: int | Sequence[int] | None = None,
        dtype: str = "auto",
        threads: int | None = None,
        *,
        block_size: int = 16,
        port: int = 0,
        start_timeout_s: float = 180.0,
        stop_timeout_s: float = 15.0,
        log_dir: str | os.PathLike[str] | None = None,
        instance_options: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        gmanager_options: Mapping[str, Any] | None = None,
        **common: Any,
    ) -> None:
        sizes = launch.pool_sizes(kv_tokens, instances)
        check_model_dir(os.fspath(model))
        for_gmanager, for_instances = launch.split_common({"log_json": False} | common)
        self._gmanager_settings: dict[str, Any] = {"port": port} | for_gmanager | dict(gmanager_options or {})
        shared = {"model": os.fspath(model), "dtype": dtype, "block_size": block_size} | for_instances
        shared["threads"] = launch.share_of_cpus(instances) if threads is None else threads
        own = _each(instance_options, instances)
        self._instance_settings = [
            shared | ({"kv_tokens": size} if size is not None else {}) | more | {"instance_id": f"i{index}", "port": 0}
            for index, (size, more) in enumerate(zip(sizes, own, strict=True))
        ]
        for settings in self._instance_settings:
            launch.command("instance", settings)
        self.stop_timeout_s = stop_timeout_s
        self.gmanager: GManagerHandle
        self.instances: list[InstanceHandle] = []
        self._children: list[Child] = []
        self._clients: list[Client] = []
        self._owner_pid = os.getpid()
        self._closed = False
        self._kept_logs = log_dir is not None
        self.log_dir = Path(log_dir) if log_dir is not None else Path(tempfile.mkdtemp(prefix="distkv-"))
        self._client: Client | None = None
        atexit.register(self.close)
        try:
            self.log_dir.mkdir(parents=True, exist_ok=True)
            self._start(time.monotonic() + start_timeout_s)
        except BaseException:
            self.close(stop_timeout_s=0)
            raise

    @property
    def address(self) -> str:
        """The gManager's address."""
        return self.gmanager.address

    def generate(
        self, prompts: list[str] | list[list[int]] | str, params: SamplingParams | list[SamplingParams] | None = None
    ) -> list[RequestOutput]:
        """The outputs of several prompts, in their order, served at the same time; params are for all or one each."""
        return self._own_client().generate(prompts, params)

    def stream(
        self, prompt: str | list[int], params: SamplingParams | None = None, *, request_id: str | None = None
    ) -> Iterator[Chunk]:
        """Yield one prompt's output as it comes; leaving the loop cancels the request."""
        return self._own_client().stream(prompt, params, request_id=request_id)

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
        settings = self._gmanager_settings | {"port": int(self.address.rpartition(":")[2])}
        for attempt in range(RESTARTS):
            # An outgoing connection may hold the port for a moment while nobody listens there.
            gmanager = self._spawn(GManagerHandle, "gmanager", "gManager", settings)
            try:
                wait_ready([gmanager], deadline_s)
            except StartupFailed:
                gmanager.kill()
                if attempt == RESTARTS - 1 or time.monotonic() > deadline_s:
                    raise
            else:
                self.gmanager = gmanager
                return

    def close(self, *, stop_timeout_s: float | None = None) -> None:
        """Drain and end every process, within stop_timeout_s; 0 kills. Safe to call twice; does not raise for those
        that died before."""
        if self._closed or os.getpid() != self._owner_pid:
            return
        self._closed = True
        atexit.unregister(self.close)
        limit_s = self.stop_timeout_s if stop_timeout_s is None else stop_timeout_s
        try:
            for client in self._clients:
                client.close()
            if limit_s > 0:
                stop(self.instances, limit_s)
                stop([child for child in self._children if child not in self.instances], GMANAGER_STOP_S)
        finally:
            for child in self._children:
                child.close()
            if not self._kept_logs:
                shutil.rmtree(self.log_dir, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, deadline_s: float) -> None:
        self.gmanager = self._spawn(GManagerHandle, "gmanager", "gManager", self._gmanager_settings)
        wait_ready([self.gmanager], deadline_s)
        for settings in self._instance_settings:
            name = settings["instance_id"]
            wired = settings | {"gmanager": self.address}
            self.instances.append(self._spawn(InstanceHandle, "instance", f"instance {name}", wired))
        wait_ready(self.instances, deadline_s)
        self._wait_members(deadline_s)

    def _wait_members(self, deadline_s: float) -> None:
        wanted = {handle.instance_id for handle in self.instances}
        while True:
            ready: set[str] = set()
            with contextlib.suppress(ClusterUnreachable):
                ready = {m.instance_id for m in self._own_client().members() if m.state == "ready"}
            if wanted <= ready:
                return
            for child in self._children:
                if not child.alive:
                    raise StartupFailed(child.name, how_it_ended(child.exit_code), child.last_log())
            if time.monotonic() > deadline_s:
                late = ", ".join(sorted(wanted - ready))
                raise StartupFailed(late, "the gManager does not call it ready in time", self.gmanager.last_log())
            time.sleep(0.02)

    def _spawn(self, kind: type[C], section: str, name: str, settings: Mapping[str, Any]) -> C:
        log = self.log_dir / f"{settings.get('instance_id', section)}.log"
        child = kind(name, launch.command(section, settings), log, launch.environment())
        self._children.append(child)
        return child

    def _own_client(self) -> Client:
        if self._closed:
            raise RuntimeError("the cluster is closed")
        if self._client is None:
            self._client = self.client()
        return self._client


def _each(options: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None, instances: int) -> list[dict[str, Any]]:
    if options is None or isinstance(options, Mapping):
        return [dict(options or {}) for _ in range(instances)]
    if len(options) != instances:
        raise ConfigError("instance_options", f"expected one mapping per instance ({instances}), got {len(options)}")
    return [dict(one) for one in options]
