"""What may not be chosen is the same at every position, however often a request is computed and wherever it lies."""

from __future__ import annotations

from distkv.sim.drawn.cluster import SimCluster
from distkv.sim.drawn.fake_worker import VOCAB, choose
from distkv.wire.messages.to_worker import Sampling
from tests.sim.parts import prompt

MIN_TOKENS = 24
ENDS = range(VOCAB // 2)
ALLOWED = [*range(100, 500), *range(700, 1000)]


def expected(tokens: list[int], bad_words: tuple[tuple[int, ...], ...]) -> list[int]:
    """The output from the definition: no end among the first MIN_TOKENS, then the first one ends it."""
    sampling = Sampling(
        temperature=0, top_k=0, top_p=1, seed=0, allowed_token_ids=tuple(ALLOWED), prompt_tokens=len(tokens),
        forbidden_token_ids=tuple(ENDS), bad_words=bad_words,
    )  # fmt: skip
    ids = list(tokens)
    for _ in range(MIN_TOKENS):
        ids.append(choose(ids, sampling))
    later = Sampling(
        temperature=0, top_k=0, top_p=1, seed=0, allowed_token_ids=tuple(ALLOWED), prompt_tokens=len(tokens),
        bad_words=bad_words,
    )  # fmt: skip
    while ids[-1] not in ENDS:
        ids.append(choose(ids, later))
    return ids[len(tokens) :]


def test_what_is_left_out_holds_through_losses_and_preemption() -> None:
    """A creditor dies and a younger request is preempted while steps run ahead of their tokens. A bad word is what the
    output would have had otherwise."""
    cluster = SimCluster([12, 40], max_num_batched_tokens=8)
    wanted = {"long": prompt(120, 1), "short": prompt(30, 2), "one": prompt(1, 3)}
    plain = {name: expected(tokens, ()) for name, tokens in wanted.items()}
    words = {name: ((output[4], output[5]), tuple(output[20:23])) for name, output in plain.items()}
    for name, tokens in wanted.items():
        cluster.submit(
            "i0", name, tokens, 80, min_tokens=MIN_TOKENS, stop_token_ids=list(ENDS), allowed_token_ids=ALLOWED,
            bad_words=words[name],
        )  # fmt: skip
    assert cluster.run(60, lambda: len(cluster.outcomes["long"].tokens) > 8)
    cluster.start("i2", 40)
    cluster.kill("i1")
    cluster.finish()
    for name, tokens in wanted.items():
        outcome = cluster.outcomes[name]
        assert outcome.ended is None and outcome.finish == "stop"
        assert outcome.tokens == expected(tokens, words[name]) != plain[name]
    assert cluster.nodes["i0"].rm.state.counters.recomputed_tokens > 0
    cluster.settle()
    assert all(not node.worker.histories for node in cluster.nodes.values())
