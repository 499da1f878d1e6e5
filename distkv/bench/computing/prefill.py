"""`distkv bench prefill`: chunks of a prompt whose KV lies at a creditor (000, Fig. 12).

Shipping their queries there, fetching the KV, and what distkv chooses, over a grid of chunks, spans and links; and the
time to first token of a long prompt.
"""

from __future__ import annotations

import random
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import click
import msgspec

from distkv.bench.baselines.checkpoints import MODELS
from distkv.bench.baselines.checkpoints import Model as Shape
from distkv.bench.harness.alternate import Samples, alternate, paired_ratio
from distkv.bench.harness.command import Measured, Say, benchmark, unit_of_name
from distkv.bench.harness.contenders import first_token_s
from distkv.bench.harness.cores import two_cores
from distkv.bench.harness.lists import names_of, sizes_of
from distkv.bench.harness.report import Goal
from distkv.bench.workloads.computing.creditor import BLOCK_TOKENS, Creditor, Lent
from distkv.bench.workloads.computing.random_model import random_model
from distkv.bench.workloads.computing.remote_prefill import RemotePrefill
from distkv.client.local.cluster import LocalCluster
from distkv.demo.random_checkpoint import make_checkpoint
from distkv.engine.device.cpu import CpuDevice
from distkv.engine.model.decoder import Model
from distkv.types import PrefillKv, Transport

SHIP, FETCH, CHOSEN = "ship", "fetch", "chosen"
WAYS: dict[str, PrefillKv] = {CHOSEN: "auto", SHIP: "ship", FETCH: "fetch"}
LINKS: dict[str, Transport] = {"host": "auto", "tcp": "tcp"}
LAYERS = 2
WITHIN = 1.05
LEAST_ROUNDS = 9
"""Of fewer the interval says too little for a verdict."""
ALL_FETCHED = 0.99
"""Of the KV. A fetch that cannot begin ships its queries instead: where less was fetched, fetching was not measured."""
SAMPLE_S = 0.1
"""A sample is as many steps as take so long, at least one."""
LEARNING_STEPS, LEARNING_S = 24, 3.0
"""Steps of a cell, and seconds for them, in which the choice learns before it is measured."""
HELP = """Chunks of a prompt whose KV lies at a creditor: shipping queries, fetching KV, and what distkv chooses, by
turns; then the time to first token of a prompt with most of its KV elsewhere.

\b
Examples:
  distkv bench prefill --json prefill.json --plot prefill.png
  distkv bench prefill --quick
  distkv bench prefill --rows 128,512 --remote 8192 --links tcp --creditor busy
"""


class Size(msgspec.Struct, frozen=True):
    """Of the prompt. pool_tokens: of each of the instances, of which the prompt fills three quarters."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    vocab: int
    pool_tokens: int
    instances: int = 4

    @property
    def prompt_tokens(self) -> int:
        """More than an instance holds."""
        return self.instances * self.pool_tokens * 3 // 4


FULL = Size(768, 6, 12, 4, 8192, pool_tokens=2048)
QUICK = Size(128, 2, 4, 2, 512, pool_tokens=256, instances=2)


def measure(
    say: Say,
    *,
    quick: bool,
    rows: str | None,
    remote: str | None,
    links: str | None,
    creditor: str | None,
    rounds: int,
) -> Measured:
    """Run it. Nothing that it started or wrote is left on return."""
    size = QUICK if quick else FULL
    shape = msgspec.structs.replace(MODELS["tiny" if quick else "b"], layers=LAYERS)
    grid = Grid(
        sizes_of("rows", rows or ("32" if quick else "16,128,512"), least=BLOCK_TOKENS),
        sizes_of("remote", remote or ("256" if quick else "1024,8192,32768"), least=BLOCK_TOKENS),
        names_of("links", links or ("host" if quick else "host,tcp"), LINKS),
        names_of("creditor", creditor or ("idle" if quick else "idle,busy"), ("idle", "busy")),
    )
    with two_cores() as (own, others):
        samples, fetched = grid.measure(say, shape, rounds, own, others)
    goals = tuple(_within(case, variants, fetched[case]) for case, variants in samples.items())
    first = _first_tokens(say, size, grid.links, rounds)
    samples |= first
    facts = {
        "model": f"random Llama {shape.name} of {LAYERS} layers, bfloat16, 1 thread",
        "contenders": {
            CHOSEN: f"prefill_kv auto, after {LEARNING_STEPS} steps of the cell or {LEARNING_S:g} s, its tries of the "
            "other way included; first tokens: as the others, greedy, default settings",
            SHIP: "prefill_kv ship: what distkv did before it could fetch",
            FETCH: "prefill_kv fetch: a mapped pool is attended to where it lies; over tcp in pieces",
            "busy creditor": "decodes 4 sequences of 512 tokens all the time",
        },
        "share of the KV that fetch fetched": {case: round(share, 4) for case, share in fetched.items()},
    }
    goals += tuple(_sooner(case, variants) for case, variants in first.items())
    return Measured(samples, goals, facts)


class Grid(msgspec.Struct, frozen=True):
    """Rows of a chunk, tokens at the creditor, links, and whether the creditor computes steps of its own."""

    rows: tuple[int, ...]
    remote: tuple[int, ...]
    links: tuple[str, ...]
    loads: tuple[str, ...]

    def measure(
        self, say: Say, shape: Shape, rounds: int, own: int | None, others: int | None
    ) -> tuple[Samples, dict[str, float]]:
        """All cells, and which share of the KV `fetch` fetched in each; each contender learns from its own steps,
        through all of them. own, others: cores."""
        say("making a model and a creditor")
        device = CpuDevice()
        device.backend.use_threads(1, () if own is None else (own,))
        model = random_model(shape, device)
        samples: Samples = {}
        fetched: dict[str, float] = {}
        with Creditor(Lent(shape, max(self.remote) // BLOCK_TOKENS, others)) as creditor, ExitStack() as stack:
            for link in self.links:
                debtors = {name: self._debtor(model, creditor, way, link) for name, way in WAYS.items()}
                for debtor in debtors.values():
                    stack.callback(debtor.close)
                for load in self.loads:
                    creditor.load(load == "busy")
                    for rows in self.rows:
                        for remote in self.remote:
                            case = f"{rows} rows over {remote:,} tokens, {link}, {load} creditor, ms"
                            say(case)
                            one = debtors[FETCH]
                            fetched_before, remote_before = one.fetched_blocks, one.remote_blocks
                            samples |= alternate(_contenders(debtors, rows, remote, case), rounds, warmups=3)
                            fetched[case] = (one.fetched_blocks - fetched_before) / (one.remote_blocks - remote_before)
        return samples, fetched

    def _debtor(self, model: Model, creditor: Creditor, way: PrefillKv, link: str) -> RemotePrefill:
        return RemotePrefill(model, max(self.rows), creditor.member, way, LINKS[link])


def _contenders(
    debtors: Mapping[str, RemotePrefill], rows: int, remote: int, case: str
) -> dict[str, partial[Mapping[str, float]]]:
    """The choice has learned before: a creditor is chosen for hundreds of chunks, not for the first ones of a size."""
    once_s = min(debtor.step(rows, remote) for debtor in debtors.values())
    for _ in range(min(LEARNING_STEPS, round(LEARNING_S / once_s))):
        debtors[CHOSEN].step(rows, remote)
    count = max(1, round(SAMPLE_S / once_s))
    return {name: partial(_steps, debtor, rows, remote, count, case) for name, debtor in debtors.items()}


def _steps(debtor: RemotePrefill, rows: int, remote: int, count: int, case: str) -> Mapping[str, float]:
    return {case: 1e3 * statistics.fmean(debtor.step(rows, remote) for _ in range(count))}


def _first_tokens(say: Say, size: Size, links: Sequence[str], rounds: int) -> Samples:
    """The time to first token of a prompt that only all instances together hold."""
    samples: Samples = {}
    draw = random.Random(0)
    prompt = [draw.randrange(1, size.vocab) for _ in range(size.prompt_tokens)]
    shape = {name: getattr(size, name) for name in ("hidden", "layers", "heads", "kv_heads", "vocab")}
    with tempfile.TemporaryDirectory(prefix="distkv-bench-") as place:
        model = Path(place) / "model"
        say("making a checkpoint")
        make_checkpoint(model, **shape)
        for link in links:
            case = f"first token of {size.prompt_tokens:,}, {size.instances} pools of {size.pool_tokens:,}, {link}, s"
            say(case)
            with ExitStack() as stack:
                clusters = {
                    name: stack.enter_context(
                        LocalCluster(
                            model,
                            size.instances,
                            size.pool_tokens,
                            dtype="bfloat16",
                            threads=1,
                            gateway=False,
                            prefill_kv=WAYS[name],
                            tensor_transport=LINKS[link],
                        )
                    )
                    for name in (CHOSEN, SHIP)
                }
                contenders = {name: partial(_first, one, prompt, case) for name, one in clusters.items()}
                samples |= alternate(contenders, rounds, warmups=2)
    return samples


def _first(cluster: LocalCluster, prompt: Sequence[int], case: str) -> Mapping[str, float]:
    return {case: first_token_s(cluster, prompt)}


def _within(case: str, variants: Mapping[str, list[float]], fetched: float) -> Goal:
    """fetched: the share of the KV that `fetch` fetched."""
    better = min((SHIP, FETCH), key=lambda name: statistics.median(variants[name]))
    ratio = paired_ratio(variants[CHOSEN], variants[better])
    met = True if ratio.high <= WITHIN else False if ratio.low > WITHIN else None
    why = f"the better one is {better}" + ("; its interval holds the target" if met is None else "")
    if fetched < ALL_FETCHED:
        met, why = None, f"fetch fetched {fetched:.0%} of the KV and shipped queries to the rest"
    elif unsure := _too_few(variants):
        met, why = None, unsure
    return Goal(f"{case}: chosen beside the better one", f"at most {WITHIN}, whole interval", str(ratio), met, why)


def _sooner(case: str, variants: Mapping[str, list[float]]) -> Goal:
    ratio = paired_ratio(variants[SHIP], variants[CHOSEN])
    met = True if ratio.low > 1 else False if ratio.high < 1 else None
    why = "its interval holds 1" if met is None else ""
    if unsure := _too_few(variants):
        met, why = None, unsure
    return Goal(f"{case}: before beside now", "over 1, whole interval", str(ratio), met, why)


def _too_few(variants: Mapping[str, list[float]]) -> str:
    """Why there is no verdict; empty if there were enough rounds."""
    rounds = min(map(len, variants.values()))
    return "" if rounds >= LEAST_ROUNDS else f"{rounds} rounds, and a verdict takes {LEAST_ROUNDS}"


main = benchmark(
    "prefill",
    measure,
    HELP,
    [
        click.Option(["--rows"], help="Tokens of a chunk; with commas."),
        click.Option(["--remote"], help="Tokens that lie at the creditor; with commas."),
        click.Option(["--links"], help="host, where pools are mapped, and tcp; with commas."),
        click.Option(["--creditor"], help="idle, busy or both, with a comma: whether it computes steps of its own."),
    ],
    unit_of=unit_of_name,
    packages=("torch",),
    rounds=(LEAST_ROUNDS, 2),
)
