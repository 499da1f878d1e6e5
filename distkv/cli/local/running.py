"""A cluster on this machine while somebody looks at it: started, shown, watched, stopped."""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Iterator, Mapping
from typing import Any, TextIO

import click
from rich.console import Console
from rich.live import Live

from distkv.cli.live.polling import PERIOD_S, Poller
from distkv.cli.live.terminal import is_live, render_to_fit
from distkv.cli.local.introduction import introduction
from distkv.cli.local.printed_config import config_lines
from distkv.cli.local.wanted import Wanted
from distkv.cli.signals import signals_interrupt
from distkv.client.blocking import Client
from distkv.client.instances.capacity import longest_request
from distkv.client.local.cluster import LocalCluster
from distkv.client.local.cluster_settings import ClusterSettings
from distkv.client.local.restarts import WINDOW_S, Restarts
from distkv.client.local.supervisor import Died, Restarted, Supervisor
from distkv.config import UpConfig
from distkv.log.lines import configure
from distkv.wording import counted, plural

LOG_NAME = "up.log"
STOP_GRACE_S = 10.0
"""Beyond the drain of an instance."""


def run_cluster(ctx: click.Context, params: Mapping[str, Any]) -> int:
    """What `distkv up` does; returns its exit code. Raises ConfigError, StartupFailed."""
    wanted = Wanted.of(ctx, params)
    if params["print_config"]:
        click.echo("\n".join(config_lines(wanted)))
        return 0
    up = wanted.up
    ClusterSettings.of(**wanted.arguments()).check_machine()
    wanted.check_ports()
    console = Console(markup=False, highlight=False)
    with signals_interrupt():
        parts = ["a gManager", counted(up.instances, "instance")]
        started = f"{', '.join(parts)} and a gateway" if up.gateway else " and ".join(parts)
        _show(console, f"starting {started} for {wanted.model} ...")
        started_s = time.monotonic()

        def show_ready(name: str) -> None:
            _show(console, f"{name} is ready after {time.monotonic() - started_s:.1f} s")

        cluster = LocalCluster(
            **wanted.arguments(),
            start_timeout_s=up.start_timeout_s,
            stop_timeout_s=wanted.drain_s + STOP_GRACE_S,
            log_dir=up.log_dir,
            on_ready=show_ready,
        )
        with contextlib.ExitStack() as stack:
            # Until the cluster is closed, other threads may write there.
            log = (cluster.log_dir / LOG_NAME).open("a", encoding="utf-8")
            stack.callback(_close, log)
            stack.enter_context(cluster)
            configure("up", json=True, stream=log)
            try:
                client = cluster.client()
                longest = longest_request(client.members())
                for line in introduction(cluster, wanted.given["gateway"], wanted.model, longest):
                    _show(console, line)
                return _watch(cluster, client, up, console)
            except KeyboardInterrupt:
                _show(console, "stopping; Ctrl-C again ends everything at once")
                cluster.close(on_waiting=lambda requests: _show(console, _waiting(requests)))
                return 0


def _close(log: TextIO) -> None:
    """Also where what was written last has no room."""
    with contextlib.suppress(OSError):
        log.close()


def _show(console: Console, line: str, style: str | None = None) -> None:
    """A line of a cluster that runs; the cluster goes on without it where there is no room to write it, or the terminal
    is gone."""
    try:
        console.print(line, style=style, soft_wrap=True)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise


def _waiting(requests: Mapping[str, int]) -> str:
    """What a stop waits for, in words."""
    if not requests:
        return "no request is left; ending the processes"
    first, *others = (f"{count} on {name}" for name, count in requests.items())
    is_one = sum(requests.values()) == 1
    noun = plural(next(iter(requests.values())), "request")
    where = ", ".join([first.replace(" ", f" {noun} ", 1), *others])
    return f"waiting for {where}; Ctrl-C again ends {'it' if is_one else 'them'}"


def _watch(cluster: LocalCluster, client: Client, up: UpConfig, console: Console) -> int:
    """Show the cluster until all its instances are down and stay so, which is exit code 1."""
    poller = Poller(client, "Ctrl-C ends it")
    supervisor = Supervisor(cluster, Restarts(up.restart), up.start_timeout_s)
    live = Live(console=console, auto_refresh=False, transient=True) if is_live(console) else None
    with _shown(live) if live is not None else contextlib.nullcontext():
        while not supervisor.is_over:
            for change in supervisor.poll(time.monotonic()):
                style = "red" if isinstance(change, Died) else "green"
                _show(console, sentence(change), style)
                if isinstance(change, Died):
                    _show(console, change.log, "dim")
            if live is not None:
                live.update(render_to_fit(poller.poll(), console), refresh=True)
            time.sleep(PERIOD_S)
    _show(console, f"no instance is left; the logs stay in {cluster.keep_logs()}", "red")
    return 1


@contextlib.contextmanager
def _shown(live: Live) -> Iterator[None]:
    """The view within the block; whatever ends that goes on where the terminal has gone."""
    live.start()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            live.stop()


def sentence(change: Died | Restarted) -> str:
    """A change as the user reads it."""
    match change:
        case Restarted():
            return f"{change.name} is ready again after {change.after_s:.1f} s: pid {change.pid}, {change.address}"
        case Died(restart_in_s=None, restarts=0):
            return f"{change.name} died: {change.how}; the others go on"
        case Died(restart_in_s=None):
            again = (
                f"it was started again {counted(change.restarts, 'time')} in {WINDOW_S / 60:.0f} minutes and stays down"
            )
            return f"{change.name} died: {change.how}; {again}, the others go on"
        case Died():
            again = f"it is started again in {change.restart_in_s:g} s (number {change.restarts})"
            return f"{change.name} died: {change.how}; {again}, the others go on"
