"""The options of `distkv sim`."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import click

from distkv.bench.harness.finite import FiniteRange
from distkv.cli.param_types import CountType
from distkv.cli.simulated.lists import ListType
from distkv.cli.simulated.profiles import INSTANCES_PER_HOST
from distkv.config import AdviceSettings
from distkv.sim.profiles.hardware import NetworkName
from distkv.sim.spec import MOST_FAILURES_PER_HOUR, SimPolicyName
from distkv.types import DispatchName

OPTIONS: list[click.Parameter] = [
    click.Option(
        ["--trace"], required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="CSV",
        help="Requests: arrival_s, prompt_tokens, output_tokens.",
    ),
    click.Option(
        ["--instances"], type=ListType(click.IntRange(min=1)), multiple=True, default=((4,),), metavar="N[,N]",
        help="How many, 4 if not given; several are played one after the other, to find out how many are needed.",
    ),
    click.Option(
        ["--kv-tokens"], type=ListType(CountType()), multiple=True, metavar="TOKENS[,TOKENS]",
        help="KV pool of each; what is left of a GPU's memory for a built-in profile if not given.",
    ),
    click.Option(
        ["--goal-ttft-p99", "goal_ttft_p99_s"], type=FiniteRange(min=0, min_open=True), metavar="SECONDS",
        help="Longest time to first token, p99: says the smallest cluster, of those that are played, that meets it.",
    ),
    click.Option(
        ["--goal-tpot-p99", "goal_tpot_p99_s"], type=FiniteRange(min=0, min_open=True), metavar="SECONDS",
        help="The same of the time per token.",
    ),
    click.Option(
        ["--goal-completed"], type=FiniteRange(0, 1), metavar="SHARE",
        help="The same of the requests that complete; all, where another goal is given.",
    ),
    click.Option(
        ["--profile"], required=True, metavar="NAME|FILE",
        help="What computes: a100-llama2-7b and the like, or a file of distkv profile.",
    ),
    click.Option(
        ["--single-profile"], metavar="NAME|FILE",
        help="What the one instance of --policy single computes; for a built-in profile the same GPUs, "
        "tensor-parallel in a host and pipelined over hosts.",
    ),
    click.Option(
        ["--prefill-instances"], type=click.IntRange(min=1), metavar="N",
        help="How many compute prompts, of --policy prefill-decode; the best of a few if not given.",
    ),
    click.Option(
        ["--policy", "policies"], type=ListType(click.Choice(get_args(SimPolicyName))), multiple=True,
        default=(("contract",),), metavar="POLICY[,POLICY]",
        help=f"How memory is shared: {', '.join(get_args(SimPolicyName))}; none is instances side by side, "
        "single one over the GPUs of all, migrate moves whole requests, prefill-decode computes prompts apart. "
        "contract if not given.",
    ),
    click.Option(
        ["--rate-scale", "rate_scales"], type=ListType(FiniteRange(min=1e-6)), multiple=True,
        default=((1.0,),), metavar="X[,X]",
        help="Arrivals come so many times as often as in the trace. 1 if not given.",
    ),
    click.Option(
        ["--dispatch"], type=click.Choice(get_args(DispatchName)), default=AdviceSettings().dispatch,
        show_default=True, help="Where requests go.",
    ),
    click.Option(["--no-swaps"], is_flag=True, help="contract without DGFM: loans that go round stay."),
    click.Option(
        ["--scale-tokens"], type=FiniteRange(min=0, max=1e3, min_open=True), default=1.0, show_default=True,
        help="Multiplies the lengths of the trace.",
    ),
    click.Option(["--requests"], type=click.IntRange(min=1), help="How many of the trace, from its beginning."),
    click.Option(
        ["--deadline", "deadline_s"], type=FiniteRange(min=0, min_open=True), metavar="SECONDS",
        help="After which clients give a request up; never if not given.",
    ),
    click.Option(
        ["--instances-per-host"], type=click.IntRange(min=1),
        help=f"So many share a host, and what lies between instances of one: {INSTANCES_PER_HOST}, or those that 8 "
        "GPUs are enough for.",
    ),
    click.Option(
        ["--network"], type=click.Choice(get_args(NetworkName)),
        help="What lies between hosts of a built-in profile; by default that of the paper that used the GPU.",
    ),
    click.Option(
        ["--fail", "failures"], type=ListType(click.STRING), multiple=True, metavar="NAME@S[-S]",
        help="An instance, i0 and so on, or gmanager dies, and is started again at the second time: i3@60, "
        "gmanager@30-40.",
    ),
    click.Option(
        ["--restart", "restarts"], type=ListType(click.STRING), multiple=True, metavar="NAME@S",
        help="What is dead is started again: i3@90.",
    ),
    click.Option(
        ["--slow", "stragglers"], type=ListType(click.STRING), multiple=True, metavar="NAME@S-SxFACTOR",
        help="An instance takes so many times as long for everything: i2@10-50x3.",
    ),
    click.Option(
        ["--failures-per-hour"], type=FiniteRange(0, MOST_FAILURES_PER_HOUR), default=0.0, metavar="X",
        help="So many of the instances together die at random.",
    ),
    click.Option(
        ["--repair", "repair_s"], type=FiniteRange(min=0, min_open=True), default=60.0, show_default=True,
        metavar="SECONDS", help="After which they are started again.",
    ),
    click.Option(["--seed"], type=int, default=0, show_default=True, help="Of what is drawn in a cluster."),
    click.Option(
        ["--json", "json_path"], type=click.Path(dir_okay=False, path_type=Path), help="Write the figures here.",
    ),
    click.Option(
        ["--plot", "plot_path"], type=click.Path(dir_okay=False, path_type=Path),
        help="Draw the figures, and the memory of the last run by instance and owner, into this PNG file.",
    ),
    click.Option(
        ["--timeline", "timeline_path"], type=click.Path(dir_okay=False, path_type=Path),
        help="Draw the memory of the last run over time, by instance and owner, with the requests that wait and what "
        "failed, into this PNG file.",
    ),
]  # fmt: skip
