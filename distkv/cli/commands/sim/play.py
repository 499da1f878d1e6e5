"""`distkv sim`: what pooling gives a trace on a cluster that nobody has to own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from distkv.cli.signals import signals_interrupt
from distkv.cli.simulated.files import write
from distkv.cli.simulated.options import OPTIONS

if TYPE_CHECKING:
    from distkv.bench.simulation.figures import Figures
    from distkv.bench.simulation.needed import Size
    from distkv.bench.simulation.sweep import Played

HELP = """Play a trace to a cluster in simulated time. gManager and rManagers are the real ones; engines and links take
the time that a profile says. The same arguments give the same result.

A trace is a CSV file with arrival_s, prompt_tokens and output_tokens; distkv sim trace draws some. A profile is a file
of distkv profile, or the name of a GPU and a model, whose times a roofline says. Policies, rates and sizes can be given
more than once, or separated by commas; each is played with each. single is one instance over the GPUs of all; with
migrate whole requests move. With a goal it says the smallest cluster that meets it.

\b
Examples:
  distkv sim --trace trace.csv --instances 8 --kv-tokens 60K --profile a100-llama2-7b
  distkv sim --trace trace.csv --instances 2 --kv-tokens 4K --profile llama.json --policy none,greedy
  distkv sim --trace trace.csv --profile h100-llama2-13b --rate-scale 1,2 --json sim.json --plot sim.png
  distkv sim --trace trace.csv --instances 32 --profile a100-llama2-7b --policy none,single,contract
  distkv sim --trace trace.csv --instances 4,8,16 --profile a100-llama2-7b --goal-ttft-p99 2
  distkv sim --trace trace.csv --profile a100-llama2-7b --fail i3@60-90,gmanager@30-40 --timeline memory.png
"""

TABLE_WIDTH = 152
"""What the figures need; where there is less, lines are as long."""


def _command(**options: Any) -> int:
    from distkv.bench.harness.plots.plot import check_plot
    from distkv.bench.simulation.needed import needed
    from distkv.bench.simulation.plot import draw
    from distkv.bench.simulation.sweep import sweep
    from distkv.bench.simulation.timeline import draw_timeline
    from distkv.cli.simulated.asked import Asked
    from distkv.cli.simulated.table import table

    asked = Asked(**options)
    asked.check_paths()
    for flag, path in (("--plot", asked.plot_path), ("--timeline", asked.timeline_path)):
        check_plot(path, flag)
    specs, wanted = asked.specs(), asked.requests_of_trace()
    of_size = len(wanted) * len(asked.chosen) * len(asked.scales)
    played: list[tuple[Size, Played]] = []
    with signals_interrupt(once=True):
        with _progress() as bar:
            task = bar.add_task("requests alone", total=of_size * len(specs), now_s=0.0)
            for index, (size, spec) in enumerate(specs):

                def tell(name: str, now_s: float, ended: int, size: Size = size, before: int = index * of_size) -> None:
                    what = f"{size}, {name}" if len(specs) > 1 else name
                    bar.update(task, description=what, completed=before + ended, now_s=now_s)

                played += ((size, one) for one in sweep(wanted, spec, asked.chosen, asked.scales, tell))
        rows = [(size, one.figures) for size, one in played]
        answers = needed(rows, asked.wanted, len(wanted)) if asked.wanted is not None else []
        try:
            if asked.json_path is not None:
                found: dict[str, Any] = {"results": [_row(size, row, len(specs) > 1) for size, row in rows]}
                if asked.wanted is not None:
                    found |= {"goal": asked.wanted, "needed": answers}
                write(asked.json_path, msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")
            title = f"distkv sim: {len(wanted)} requests, {asked.known.profile.model}, {asked.known.profile.device}"
            if asked.plot_path is not None:
                labels = [f"{row.policy}, {size}" if len(specs) > 1 else row.policy for size, row in rows]
                of = f"{title}, {specs[0][0]}" if len(specs) == 1 else title
                draw([one for _, one in played], labels, of, asked.plot_path)
            if asked.timeline_path is not None:
                size, last = played[-1]
                what = f"{title}, {size}, {last.figures.policy}, rate x {last.figures.rate_scale:g}"
                draw_timeline(last.result.samples, specs[-1][1].faults, what, asked.timeline_path)
        finally:  # what was found is seen also where a file cannot be written
            console = Console(highlight=False)
            console.width = max(console.width, TABLE_WIDTH)
            console.print(table(rows))
            for size, one in played:
                if (prefills := one.result.prefill_instances) is not None:
                    of = f"prefill-decode, {size}, rate x {one.figures.rate_scale:g}"
                    console.print(f"{of}: {prefills} compute prompts", soft_wrap=True)
            for answer in answers:
                console.print(str(answer), soft_wrap=True)
    return 0


def _row(size: Size, figures: Figures, has_size: bool) -> dict[str, Any]:
    """Its size stands in it where there are several."""
    row: dict[str, Any] = msgspec.structs.asdict(figures)
    return row | (msgspec.structs.asdict(size) if has_size else {})


def _progress() -> Progress:
    """A bar of requests that have ended, with the simulated time."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,} of {task.total:,} requests, {task.fields[now_s]:,.0f} s simulated"),
        TimeRemainingColumn(),
        console=Console(stderr=True, highlight=False),
        transient=True,
    )


command = click.Command(
    "sim",
    callback=_command,
    params=OPTIONS,
    help=HELP,
    context_settings={"max_content_width": 100},
)
