"""What tests of simulated clusters share: prompts, and what a request must have brought."""

from __future__ import annotations

from random import Random

from distkv.sim.drawn.cluster import SimCluster
from distkv.sim.drawn.fake_worker import VOCAB, expected_output


def prompt(n: int, salt: int = 0) -> list[int]:
    random = Random(n * 1000 + salt)
    return [random.randrange(VOCAB) for _ in range(n)]


def check(cluster: SimCluster, request_id: str, tokens: list[int], max_tokens: int) -> None:
    outcome = cluster.outcomes[request_id]
    assert outcome.ended is None, outcome.ended
    assert outcome.tokens == expected_output(tokens, max_tokens)
    assert outcome.finish == "length"
