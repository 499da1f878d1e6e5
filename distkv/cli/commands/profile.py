"""`distkv profile`: measures what this machine does with a model, for instances to plan by."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from distkv.bench.harness.finite import FiniteRange
from distkv.cli.options import given, setting_option
from distkv.cli.signals import signals_interrupt
from distkv.config import InstanceConfig, settings_of

SETTINGS = (
    "model",
    "dtype",
    "device",
    "kv_cache_dtype",
    "block_size",
    "threads",
    "cpu_kernels",
    "attention_backend",
    "microbatches",
    "cpu_affinity",
)
"""Those of an instance on which its times depend."""
MOST_S = 300.0
MOST_OTHERS = 0.05
"""Of the machine's cores: when more of them are busy with something else, that is said."""
HELP = """Measure what this machine does with a model: how long decode steps take by batch and context, prefill by
chunk, attention for others, and links between instances. Two engine workers are started, a debtor and its creditor.
The profile is for instances with the same settings, on this machine or on ones like it. Then its predictions are
compared with what the two decode when more and more rBlocks of a request lie on the creditor.

Without --threads each worker has half of the cores; --cpu-affinity is shared out among them, as distkv up does it.
Measure while nothing else runs. Links by network are measured on this machine, over TCP; between machines they take
longer, so give what ping and iperf3 say of yours.

\b
Examples:
  distkv profile --model ./Llama-3.2-1B --threads 4 -o llama.json --plot llama.png
  distkv profile --model ./Llama-3.2-1B --network-round-trip-us 60 --network-gbit-s 25
  distkv up ./Llama-3.2-1B --profile llama.json
"""


@click.pass_context
def _command(
    ctx: click.Context,
    /,
    output: Path,
    plot: Path | None,
    quick: bool,
    budget: float,
    network_round_trip_us: float | None,
    network_gbit_s: float | None,
    **params: Any,
) -> int:
    from distkv.bench.harness.plots.plot import check_plot
    from distkv.bench.harness.report import check_places
    from distkv.bench.harness.timing.processes import OtherPrograms
    from distkv.bench.profiling.plot import draw
    from distkv.bench.profiling.run import run, summary, with_network
    from distkv.wire.profile_file import save_profile

    check_places(output, plot)
    check_plot(plot)
    progress = Console(stderr=True, markup=False, highlight=False)
    others = OtherPrograms()

    with signals_interrupt(once=True):
        with progress.status("profile") as status:

            def say(text: str) -> None:
                status.update(f"profile: {text}")
                if not progress.is_terminal:
                    progress.print(f"profile: {text}", soft_wrap=True)

            file = run(given(ctx, InstanceConfig, params), say, quick=quick, budget_s=budget)
        others_cores = others.cores()
        if network_round_trip_us is not None or network_gbit_s is not None:
            file = with_network(file, network_round_trip_us or 0.0, network_gbit_s or math.inf)
        try:
            save_profile(file, output)
            if plot is not None:
                draw(
                    file.points,
                    f"distkv profile: {file.profile.model}, {file.profile.device}, {file.profile.date}",
                    plot,
                )
        finally:  # what was found is seen also where a file cannot be written
            click.echo(summary(file))
            if others_cores > MOST_OTHERS * (os.cpu_count() or 1):
                click.echo(
                    f"warning: meanwhile {others_cores:.1f} cores were busy with something else, and what was measured "
                    "took longer by that; measure again while nothing else runs",
                    err=True,
                )
    click.echo(f"{output} is the profile; give it to instances: distkv up {params['model']} --profile {output}")
    return 0


command = click.Command(
    "profile",
    callback=_command,
    params=[
        *(setting_option(settings_of(InstanceConfig)[name]) for name in SETTINGS),
        click.Option(
            ["-o", "--output"], type=click.Path(dir_okay=False, path_type=Path), default="profile.json",
            show_default=True, help="The file to write.",
        ),
        click.Option(
            ["--plot"], type=click.Path(dir_okay=False, path_type=Path),
            help="Draw predictions and measurements into this PNG file.",
        ),
        click.Option(
            ["--budget"], type=FiniteRange(1, MOST_S), default=240.0, show_default=True, metavar="SECONDS",
            help="Time to measure, without loading; what there is no time for is left out.",
        ),
        click.Option(["--quick"], is_flag=True, help="Few and short measurements, to see that it works."),
        click.Option(
            ["--network-round-trip-us"], type=FiniteRange(min=0), metavar="MICROSECONDS",
            help="What ping says between machines; it is added to what TCP takes on this one.",
        ),
        click.Option(
            ["--network-gbit-s"], type=FiniteRange(min=0, min_open=True), metavar="GBIT/S",
            help="Bandwidth between machines, where it is less than what TCP does on this one.",
        ),
    ],
    help=HELP,
    context_settings={"max_content_width": 100},
)  # fmt: skip
