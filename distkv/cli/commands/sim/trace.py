"""`distkv sim trace`: datasets of the papers, drawn again, as traces to simulate or to play."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem
from rich.console import Console
from rich.table import Table

from distkv.bench.harness.finite import FiniteRange
from distkv.cli.param_types import CountType
from distkv.cli.simulated.files import write
from distkv.sim.datasets.draw import REQUESTS, dataset
from distkv.sim.datasets.tables import DATASETS
from distkv.sim.trace import TraceRequest, trace_lines

MOST_REQUESTS = 1_000_000
HELP = """Draw a dataset of the papers and write it as a trace, one line of CSV for each request: when it arrives, how
long its prompt is and how much it generates. The requests were never published; these have the ranges, means,
deviations and shares of long requests that the tables print. Without a name all datasets are listed.

\b
Examples:
  distkv sim trace
  distkv sim trace infinite-3 --rate 2 -o trace.csv
  distkv sim trace distkv-10 --requests 200 --seed 1 > trace.csv
"""


def _figures(requests: list[TraceRequest]) -> dict[str, Any]:
    """What a table of a paper prints of them."""
    lengths = [one.num_tokens for one in requests]
    return {
        "requests": len(requests),
        "shortest_tokens": min(lengths),
        "longest_tokens": max(lengths),
        "mean_tokens": round(statistics.fmean(lengths), 1),
        "deviation_tokens": round(statistics.pstdev(lengths), 1),
        "output_tokens": sum(one.output_tokens for one in requests),
        "span_s": round(requests[-1].arrival_s, 3),
    }


def _listing() -> Table:
    table = Table("dataset", "tokens of a request", "mean", "deviation", "long requests", box=None)
    for name, one in DATASETS.items():
        table.add_row(
            name,
            f"{one.low} to {one.high:,}",
            "" if one.mean is None else f"{one.mean:,.0f}",
            "" if one.deviation is None else f"{one.deviation:,.0f}",
            ""
            if one.mean is not None or one.long_share is None
            else f"{one.long_share:.0%}, above {one.conversation_tokens:,}",
        )
    return table


def _command(dataset_name: str | None, requests: int, rate: float, seed: int, output: Path | None, json_: bool) -> int:
    if dataset_name is None:
        if json_:
            raise click.UsageError("--json is of one dataset: name it")
        Console(soft_wrap=True, highlight=False).print(_listing())
        return 0
    drawn = dataset(dataset_name, per_s=rate, count=requests, seed=seed)
    if output is not None:
        write(output, "".join(trace_lines(drawn)).encode(), "output")
    if json_:
        click.echo(json.dumps({"dataset": dataset_name, "rate": rate, "seed": seed} | _figures(drawn), indent=2))
    elif output is None:
        sys.stdout.writelines(trace_lines(drawn))
    else:
        figures = _figures(drawn)
        click.echo(
            f"{output}: {figures['requests']} requests of {figures['shortest_tokens']} to "
            f"{figures['longest_tokens']:,} tokens, mean {figures['mean_tokens']:,}, "
            f"standard deviation {figures['deviation_tokens']:,}, within {figures['span_s']:,} s"
        )
    return 0


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in DATASETS if name.startswith(incomplete)]


command = click.Command(
    "sim trace",
    callback=_command,
    params=[
        click.Argument(["dataset_name"], required=False, metavar="[DATASET]", shell_complete=_complete),
        click.Option(
            ["--requests"], type=CountType(), default=REQUESTS, show_default=True, metavar="N",
            callback=lambda ctx, param, value: _in_range(value), help="How many.",
        ),
        click.Option(
            ["--rate"], type=FiniteRange(min=1e-6), default=1.0, show_default=True,
            metavar="PER_S", help="Arrivals each second on average, at random (Poisson).",
        ),
        click.Option(["--seed"], type=int, default=0, show_default=True, help="Another seed draws other requests."),
        click.Option(
            ["-o", "--output"], type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
            help="Write the CSV here rather than to standard output.",
        ),
        click.Option(["--json", "json_"], is_flag=True, help="Print figures of what was drawn, such as its mean."),
    ],
    help=HELP,
    context_settings={"max_content_width": 100},
)  # fmt: skip


def _in_range(requests: int) -> int:
    if not 1 <= requests <= MOST_REQUESTS:
        raise click.BadParameter(f"expected 1 to {MOST_REQUESTS:,} requests, got {requests}")
    return requests
