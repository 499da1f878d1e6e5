"""Requests of a dataset, drawn by a seed."""

from __future__ import annotations

from random import Random

from distkv.config import nearest
from distkv.errors import ConfigError
from distkv.sim.datasets.tables import DATASETS, Dataset
from distkv.sim.trace import TraceRequest

REQUESTS = 1000
"""Of each dataset of 000 (§6)."""
LEAST_TOKENS = 2
"""One of the prompt and one of the output; what a table prints as 1 token is drawn so."""


def dataset(name: str, *, per_s: float = 1.0, count: int = REQUESTS, seed: int = 0) -> list[TraceRequest]:
    """`count` requests of a dataset of a paper, which arrive at random `per_s` times a second on average (Poisson), the
    first at 0; the same for the same arguments.

    Lengths are spread evenly over the quantiles of the distribution, one at random within each of `count` equal shares
    of it, the least and the greatest as printed, in an order that is random: so range, mean and standard deviation are
    those of the table within 5 % for each seed, from a thousand requests on.

    Raises ConfigError naming `dataset` for a name that is none.
    """
    if name not in DATASETS:
        raise ConfigError("dataset", f"there is no dataset {name!r}", nearest(name, DATASETS))
    draw = Random(f"{name} {seed}")
    found = DATASETS[name]
    lengths = _lengths(found, count, draw)
    requests, now_s = list[TraceRequest](), 0.0
    for tokens in lengths:
        output = min(tokens - 1, max(1, round(found.output_share(tokens) * tokens)))
        requests.append(TraceRequest(now_s, tokens - output, output))
        now_s += draw.expovariate(per_s)
    return requests


def _lengths(found: Dataset, count: int, draw: Random) -> list[int]:
    distribution = found.distribution()
    shares = [(index + draw.random()) / count for index in range(count)]
    lengths = [round(distribution.quantile(share)) for share in shares]
    lengths[0], lengths[-1] = found.low, found.high
    draw.shuffle(lengths)
    return [max(LEAST_TOKENS, tokens) for tokens in lengths]
