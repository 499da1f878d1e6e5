"""`distkv top`: a cluster, watched live."""

from __future__ import annotations

import contextlib
import sys
import time
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from distkv.bench.harness.finite import FiniteRange
from distkv.cli.live.dashboard import render
from distkv.cli.live.polling import PERIOD_S, Poller
from distkv.cli.live.terminal import is_live, keys, output_console, render_to_fit
from distkv.cli.options import address_option
from distkv.cli.signals import signals_interrupt
from distkv.client.blocking import Client

TURN_S = 0.02
HELP = """Watch a cluster: its instances and their KV memory, who lends to whom, running requests, throughput. Members
that do not answer are shown without numbers; nothing ends it but q or Ctrl-C. Without a terminal it prints one view, as
wide as it needs to be.

\b
Examples:
  distkv top
  distkv top --address tcp://127.0.0.1:7171 --interval 2
  distkv top --once
"""


def _command(**options: Any) -> int:
    console = output_console()
    # The client is closed before the thread is waited for: that ends what the thread waits for.
    with signals_interrupt(), ThreadPoolExecutor(1) as asker, Client(options["address"]) as client:
        if options["once"] or not is_live(console):
            # Raises when nobody answers, which the view would only show.
            client.members()
            poller = Poller(client, f"distkv at {client.address}")
            poller.poll()
            time.sleep(options["interval"])
            view = poller.poll()
            width = console.width if sys.stdout.isatty() else None
            console.print(render(view, width=width, ascii_only=console.options.ascii_only))
        else:
            with contextlib.suppress(KeyboardInterrupt):
                _show(Poller(client, f"distkv at {client.address}   q ends"), asker, console, options["interval"])
    return 0


def _show(poller: Poller, asker: Executor, console: Console, interval_s: float) -> None:
    asking = Text("asking ...")
    with Live(asking, console=console, auto_refresh=False, screen=True) as live, keys() as pressed:
        live.refresh()
        while True:
            due_s = time.monotonic() + interval_s
            view = asker.submit(poller.poll)
            while not view.done():
                if _ends(pressed(TURN_S)):
                    return
            live.update(render_to_fit(view.result(), console), refresh=True)
            while (left_s := due_s - time.monotonic()) > 0:
                if _ends(pressed(left_s)):
                    return


def _ends(pressed: str) -> bool:
    return "q" in pressed.lower()


command = click.Command(
    "top",
    callback=_command,
    params=[
        address_option(),
        click.Option(
            ["--interval"],
            type=FiniteRange(0.1, 3600),
            default=PERIOD_S,
            show_default=True,
            metavar="SECONDS",
            help="Time between two views.",
        ),
        click.Option(["--once"], is_flag=True, help="Print one view, all of it, and exit."),
    ],
    help=HELP,
    context_settings={"max_content_width": 100},
)
