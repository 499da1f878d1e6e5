"""The command of a daemon, from its schema and what it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click
import structlog

from distkv import __version__
from distkv.cli.daemons.daemon import Ready, daemon_options, serve
from distkv.cli.options import resolve, setting_options
from distkv.cli.version import version_option
from distkv.cli.vllm_flags import KnowsVllm
from distkv.config import Settings, values_of
from distkv.log.lines import configure
from distkv.process_priority import begin_loop

S = TypeVar("S", bound=Settings)


@dataclass(frozen=True)
class Daemon:
    """A daemon about to run. process, instance_id: how it is named in its log. drain_s: see `serve`."""

    process: str
    config: Settings
    run: Callable[[Any, Ready, asyncio.Event], Awaitable[int]]
    drain_s: float
    instance_id: str | None = None


def daemon_command(name: str, schema: type[S], help: str, prepare: Callable[[S], Daemon]) -> click.Command:
    """A command with the settings of `schema` as flags. `prepare` checks the resolved ones; what the daemon itself
    needs is imported there, so that `--help` is quick."""

    @click.pass_context
    def command(ctx: click.Context, /, **params: Any) -> int:
        daemon = prepare(resolve(ctx, schema, params))
        configure(daemon.process, daemon.instance_id, daemon.config.logging.log_level, daemon.config.logging.log_json)
        structlog.get_logger().info("configured", version=__version__, **values_of(daemon.config))
        begin_loop(computes=daemon.instance_id is not None)
        return serve(
            lambda ready, stop: daemon.run(daemon.config, ready, stop),
            drain_s=daemon.drain_s,
            ready_fd=params["ready_fd"],
            lifeline_fd=params["lifeline_fd"],
        )

    return KnowsVllm(
        name,
        callback=command,
        params=[*setting_options(schema), version_option(name), *daemon_options()],
        help=help,
        context_settings={"max_content_width": 100},
    )
