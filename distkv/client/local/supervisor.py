"""Watching the processes of a local cluster, and starting again what died."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import structlog

from distkv.client.local.child import Child
from distkv.client.local.cluster import LocalCluster
from distkv.client.local.restarts import Restarts
from distkv.endings import describe_exit
from distkv.errors import StartupFailed


@dataclass(frozen=True)
class Died:
    """A process ended that nobody had stopped. how: in words. log: its last lines. restart_in_s: None if it stays down;
    then `restarts` says how often it was started again before, else which time this is."""

    name: str
    how: str
    log: str
    restart_in_s: float | None
    restarts: int


@dataclass(frozen=True)
class Restarted:
    """A process that had died is ready again, at its former place if it is a gManager or a gateway."""

    name: str
    pid: int
    address: str
    after_s: float


class Supervisor:
    """Of one cluster; to be polled by whoever watches it. What ends with code 0 was stopped and stays down."""

    def __init__(self, cluster: LocalCluster, restarts: Restarts, start_timeout_s: float) -> None:
        """start_timeout_s: how long one that is started again may take until it is ready."""
        self._cluster = cluster
        self._restarts = restarts
        self._start_timeout_s = start_timeout_s
        self._down: set[str] = set()
        self._died_s: dict[str, float] = {}
        self._due_s: dict[str, float] = {}
        self._starting: dict[str, tuple[Child, float]] = {}
        self._log = structlog.get_logger()

    @property
    def is_over(self) -> bool:
        """Whether all instances are down, and none will be started again."""
        return all(one.name in self._down for one in self._cluster.instances)

    def poll(self, now_s: float) -> Iterator[Died | Restarted]:
        """What has changed since the last time; starts what is due. Does not wait for anything."""
        for child in self._cluster.processes:
            name = child.name
            if name in self._starting:
                yield from self._look_at_start(*self._starting[name], now_s)
            elif name in self._due_s:
                if now_s >= self._due_s[name]:
                    yield from self._start(child, now_s)
            elif name not in self._down and not child.alive:
                self._died_s[name] = now_s
                yield self._died(child, describe_exit(child.exit_code), now_s)

    def _start(self, dead: Child, now_s: float) -> Iterator[Died]:
        del self._due_s[dead.name]
        try:
            self._starting[dead.name] = self._cluster.start_again(dead.name), now_s + self._start_timeout_s
        except OSError as error:
            yield self._died(dead, f"it could not be started: {error.strerror}", now_s)

    def _look_at_start(self, child: Child, deadline_s: float, now_s: float) -> Iterator[Died | Restarted]:
        name = child.name
        try:
            if child.is_ready():
                del self._starting[name]
                self._cluster.replace(child)
                address, after_s = child.address, now_s - self._died_s[name]
                self._log.info("a process is ready again", name=name, pid=child.pid, address=address, after_s=after_s)
                yield Restarted(name, child.pid, address, after_s)
                return
        except StartupFailed as failure:
            how = failure.why
        else:
            if now_s < deadline_s:
                return
            child.kill()
            how = "it was not ready in time"
        del self._starting[name]
        yield self._died(child, how, now_s)

    def _died(self, child: Child, how: str, now_s: float) -> Died:
        name = child.name
        pause_s, restarts = None, 0
        if child.exit_code != 0:
            pause_s = self._restarts.grant(name, now_s)
            restarts = self._restarts.count(name, now_s)
        if pause_s is None:
            self._down.add(name)
        else:
            self._due_s[name] = now_s + pause_s
        self._log.warning("a process died", name=name, how=how, restart_in_s=pause_s, restarts=restarts)
        return Died(name, how, child.last_log(), pause_s, restarts)
