"""The protocol as a whole: many state machines, a network that reorders across channels, and faults."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from distkv.control.cluster.member_feed import SETTLING_S
from distkv.sim.drawn.cluster import BLOCK, SimCluster
from distkv.sim.drawn.fake_worker import VOCAB, expected_output, logprobs_at
from distkv.wire.messages import to_rmanager as tr
from tests.lanes import rest_is_slow
from tests.sim.parts import check, prompt


def test_one_instance_serves_alone() -> None:
    cluster = SimCluster([16])
    cluster.submit("i0", "r", prompt(30), 10)
    cluster.finish()
    check(cluster, "r", prompt(30), 10)
    cluster.settle()


@pytest.mark.parametrize("seed", range(5))
def test_prompt_longer_than_any_pool_is_spread(seed: int) -> None:
    cluster = SimCluster([16, 16, 16], seed)
    cluster.submit("i1", "r", prompt(150), 16)
    assert cluster.run(60, lambda: len(cluster.outcomes["r"].tokens) >= 4)
    assert set(cluster.spans("r")) == {"i0", "i1", "i2"}
    cluster.finish()
    check(cluster, "r", prompt(150), 16)
    cluster.settle()


@pytest.mark.parametrize("owner", ["i0", "i1", "i2"])
def test_uneven_pools_serve_95_percent_of_their_sum(owner: str) -> None:
    cluster = SimCluster([16, 32, 64])
    total = int(112 * BLOCK * 0.95)
    cluster.submit(owner, "r", prompt(total - 8), 8)
    cluster.finish()
    check(cluster, "r", prompt(total - 8), 8)
    cluster.settle()


def test_what_can_never_fit_is_refused_in_numbers() -> None:
    cluster = SimCluster([16, 16])
    cluster.run(SETTLING_S)
    cluster.submit("i0", "r", prompt(200), 8)
    ended = cluster.outcomes["r"].ended
    assert ended is not None and ended.kind == "refused"
    assert (ended.needed_tokens, ended.pool_tokens) == (208, (16 + 15) * BLOCK)


def test_what_fits_once_all_have_joined_may_come_again() -> None:
    """The first of two that were started together refused it for good, a moment before the other joined."""
    cluster = SimCluster([16])
    cluster.submit("i0", "large", prompt(100), 8)
    cluster.submit("i0", "small", prompt(30), 8)
    ended = cluster.outcomes["large"].ended
    assert ended is not None and ended.retryable and (ended.needed_tokens, ended.pool_tokens) == (108, 64)
    cluster.start("i1", 16)
    cluster.run(1.0)
    cluster.submit("i0", "again", prompt(100), 8)
    cluster.finish()
    check(cluster, "again", prompt(100), 8)
    check(cluster, "small", prompt(30), 8)


def test_what_is_over_the_limit_on_length_is_refused_in_numbers_too() -> None:
    cluster = SimCluster([16], max_model_len=100)
    cluster.submit("i0", "r", prompt(90), 11)
    ended = cluster.outcomes["r"].ended
    assert ended is not None and ended.kind == "refused" and "maximum context length is 100 tokens" in ended.reason
    assert (ended.needed_tokens, ended.pool_tokens) == (101, 100)


def test_decode_growth_moves_blocks_out() -> None:
    cluster = SimCluster([8, 16])
    cluster.submit("i0", "r", prompt(8), 60)
    cluster.finish()
    check(cluster, "r", prompt(8), 60)
    cluster.settle()


def test_two_lend_to_each_other() -> None:
    cluster = SimCluster([16, 16])
    cluster.submit("i0", "a1", prompt(36, 1), 80)
    cluster.submit("i1", "b1", prompt(36, 2), 60)
    assert cluster.run(30, lambda: all(cluster.outcomes[r].tokens for r in ("a1", "b1")))
    cluster.submit("i0", "a2", prompt(30, 3), 50)
    cluster.run(0.1)
    cluster.cancel("a1")
    cluster.submit("i1", "b2", prompt(34, 4), 40)
    cluster.finish()
    for r, p, n in (("a2", prompt(30, 3), 50), ("b1", prompt(36, 2), 60), ("b2", prompt(34, 4), 40)):
        check(cluster, r, p, n)
    assert cluster.outcomes["a1"].finish == "abort"
    cluster.settle()


@pytest.mark.parametrize("seed", rest_is_slow(range(8), 4))
def test_creditor_killed_mid_decode(seed: int) -> None:
    cluster = SimCluster([32, 32, 32, 32], seed)
    cluster.submit("i0", "r", prompt(75 * BLOCK), 40)
    assert cluster.run(60, lambda: len(cluster.outcomes["r"].tokens) >= 6)
    spans = cluster.spans("r")
    victim = next(i for i in spans if i != "i0")
    cluster.kill(victim)
    cluster.finish()
    check(cluster, "r", prompt(75 * BLOCK), 40)
    assert abs(cluster.nodes["i0"].rm.state.counters.recomputed_tokens - spans[victim]) <= BLOCK
    cluster.settle()


@pytest.mark.parametrize("seed", range(4))
def test_creditor_frozen_then_back(seed: int) -> None:
    cluster = SimCluster([32, 32, 32], seed)
    cluster.submit("i0", "r", prompt(55 * BLOCK), 60)
    assert cluster.run(60, lambda: len(cluster.outcomes["r"].tokens) >= 6)
    victim = next(i for i in cluster.spans("r") if i != "i0")
    cluster.freeze(victim)
    cluster.run(3)
    cluster.freeze(victim, False)
    cluster.finish()
    check(cluster, "r", prompt(55 * BLOCK), 60)
    cluster.settle(10)


def test_without_memory_after_a_loss_the_request_fails_with_numbers() -> None:
    cluster = SimCluster([16, 16], request_timeout_s=5.0)
    cluster.submit("i0", "r", prompt(100), 16)
    assert cluster.run(60, lambda: len(cluster.outcomes["r"].tokens) >= 2)
    cluster.kill("i1")
    cluster.finish()
    ended = cluster.outcomes["r"].ended
    assert ended is not None and ended.kind == "failed" and ended.retryable
    assert "live instances together can give 64" in ended.reason
    cluster.settle()


def test_debtor_killed_gives_its_creditors_their_memory_back() -> None:
    cluster = SimCluster([16, 16, 16])
    cluster.submit("i0", "r", prompt(150), 30)
    assert cluster.run(60, lambda: len(cluster.outcomes["r"].tokens) >= 2)
    cluster.kill("i0")
    cluster.settle(12)


def test_gmanager_killed_and_restarted() -> None:
    cluster = SimCluster([16, 16, 16])
    cluster.submit("i0", "a", prompt(100), 30)
    assert cluster.run(60, lambda: cluster.outcomes["a"].tokens)
    cluster.kill_gmanager()
    cluster.submit("i1", "b", prompt(70), 8)
    cluster.finish()
    check(cluster, "a", prompt(100), 30)
    check(cluster, "b", prompt(70), 8)
    cluster.submit("i2", "c", prompt(120), 50)
    assert cluster.run(60, lambda: cluster.outcomes["c"].tokens)
    cluster.restart_gmanager()
    assert cluster.gm is not None
    cluster.run(2)
    assert len(cluster.gm.ledger.entries) == 3
    if not cluster.outcomes["c"].done:
        held = {i: -(-n // BLOCK) for i, n in cluster.spans("c").items()}
        assert set(cluster.gm.ledger.placement()["c"]) >= set(held)
    cluster.finish()
    check(cluster, "c", prompt(120), 50)
    cluster.settle()


def test_drain_gives_loans_back_or_finds_them_another_home() -> None:
    cluster = SimCluster([16, 32, 32])
    cluster.submit("i0", "r", prompt(120), 60)
    assert cluster.run(60, lambda: len(cluster.outcomes["r"].tokens) >= 2)
    victim = next(i for i in cluster.spans("r") if i != "i0")
    cluster.drain(victim)
    assert cluster.run(20, lambda: cluster.nodes[victim].exited is not None)
    exited = cluster.nodes[victim].exited
    assert exited is not None and exited.code == 0 and exited.reason == "drained"
    assert victim not in cluster.spans("r")
    cluster.finish()
    check(cluster, "r", prompt(120), 60)
    assert cluster.nodes["i0"].rm.state.counters.recomputed_tokens == 0
    cluster.settle()


@pytest.mark.parametrize("seed", range(4))
def test_a_drain_hands_back_what_waits_and_finishes_what_runs(seed: int) -> None:
    """What waits does not stay until the drain's deadline: another instance takes it."""
    cluster = SimCluster([16, 24], seed)
    cluster.submit("i0", "runs", prompt(30), 30)
    assert cluster.run(10, lambda: cluster.outcomes["runs"].tokens)
    for number in range(6):
        cluster.submit("i0", f"w{number}", prompt(60 + number), 8)
    begin = cluster.clock.now()
    cluster.drain("i0", 60.0)
    handed_back = [name for name in cluster.owner if (end := cluster.outcomes[name].ended) and end.retryable]
    assert len(handed_back) >= 5 and "runs" not in handed_back
    for name in handed_back:
        assert cluster.outcomes.pop(name).tokens == []
        cluster.submit("i1", name, prompt(60 + int(name[1:])), 8)
    assert cluster.run(20, lambda: cluster.nodes["i0"].exited is not None)
    assert cluster.clock.now() - begin < 10.0
    cluster.finish()
    check(cluster, "runs", prompt(30), 30)
    for name in handed_back:
        check(cluster, name, prompt(60 + int(name[1:])), 8)
    cluster.settle()


@pytest.mark.parametrize("seed", rest_is_slow(range(6), 2))
def test_many_mixed_requests(seed: int) -> None:
    cluster = SimCluster([32, 32, 32], seed)
    random = Random(seed)
    wanted = {}
    for index in range(16):
        tokens, max_tokens = prompt(random.choice([2, 9, 40, 100, 300]), index), random.randint(1, 30)
        wanted[f"r{index}"] = (tokens, max_tokens)
        cluster.submit(f"i{index % 3}", f"r{index}", tokens, max_tokens)
    cluster.finish(120)
    for request_id, (tokens, max_tokens) in wanted.items():
        check(cluster, request_id, tokens, max_tokens)
    cluster.settle()


def test_a_name_is_free_again_as_soon_as_its_request_ended() -> None:
    """Steps of the cancelled one are still in flight when the new one begins; they are not its own."""
    cluster = SimCluster([16, 16])
    for attempt in range(12):
        cluster.submit("i0", "r", prompt(50, attempt), 12)
        cluster.run(2.0, lambda count=attempt: len(cluster.outcomes["r"].tokens) >= count)
        if cluster.outcomes["r"].done or attempt == 11:
            break
        cluster.cancel("r")
        assert cluster.outcomes.pop("r").finish == "abort"
    cluster.finish()
    check(cluster, "r", prompt(50, attempt), 12)
    cluster.settle()


@pytest.mark.parametrize("lost", [tr.BlocksReady, tr.Complete, tr.Granted, tr.Renewed])
def test_a_connection_breaks_with_a_message_on_its_way(lost: type) -> None:
    """Whatever was lost is sent again, or runs out with its lease; nothing waits for ever."""
    cluster = SimCluster([12, 32, 32])
    cluster.submit("i0", "r", prompt(150), 40)

    def on_its_way() -> str | None:
        for (source, target, _), delivery in cluster.network.on_its_way():
            if "i0" in (source, target) and isinstance(getattr(delivery, "message", None), lost):
                return source if target == "i0" else target
        return None

    for _ in range(3):
        if cluster.run(10.0, lambda: on_its_way() is not None):
            cluster.cut("i0", str(on_its_way()))
    cluster.finish()
    check(cluster, "r", prompt(150), 40)
    cluster.settle()


def test_memory_of_a_peer_whose_connection_hiccups_still_counts() -> None:
    cluster = SimCluster([16, 16])
    cluster.cut("i0", "i1")
    cluster.submit("i0", "r", prompt(100), 8)
    assert cluster.outcomes["r"].ended is None
    cluster.finish()
    check(cluster, "r", prompt(100), 8)
    cluster.settle()


def test_logprobs_of_a_prompt_are_sent_once_however_often_it_is_computed() -> None:
    """A creditor dies, and a younger request is preempted, while prompts are computed in small chunks."""
    cluster = SimCluster([12, 40], max_num_batched_tokens=8)
    wanted = {"long": prompt(120, 1), "short": prompt(30, 2), "one": prompt(1, 3)}
    for name, tokens in wanted.items():
        cluster.submit("i0", name, tokens, 20, presence_penalty=1.0, logprobs=2, prompt_logprobs=0)
    assert cluster.run(60, lambda: len(cluster.outcomes["long"].prompt_logprobs) > 80)
    cluster.start("i2", 40)
    cluster.kill("i1")
    cluster.finish()
    for name, tokens in wanted.items():
        outcome = cluster.outcomes[name]
        assert outcome.tokens == expected_output(tokens, 20)
        assert outcome.prompt_logprobs == [None, *(logprobs_at(i, tokens[i], 0) for i in range(1, len(tokens)))]
        assert outcome.logprobs == [logprobs_at(len(tokens) + i, one, 2) for i, one in enumerate(outcome.tokens)]
        assert outcome.queue_s is not None and outcome.queue_s >= 0
    assert cluster.nodes["i0"].rm.state.counters.recomputed_tokens > 0
    cluster.settle()
    assert all(not node.worker.histories for node in cluster.nodes.values()), "Forget drops what was remembered"


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("logit_bias", {"logit_bias": {VOCAB - 1: 1.0, VOCAB: -1.0}}),
        ("allowed_token_ids", {"allowed_token_ids": [VOCAB, 3]}),
        ("bad_words", {"bad_words": ((3, VOCAB - 1), (4, VOCAB))}),
    ],
)
def test_ids_beyond_the_vocabulary_are_refused_by_name(name: str, params: dict[str, Any]) -> None:
    cluster = SimCluster([8])
    cluster.submit("i0", "r", prompt(4), 4, **params)
    ended = cluster.outcomes["r"].ended
    assert ended is not None and ended.kind == "refused"
    assert ended.reason == f"{name}: token ids must be in [0, {VOCAB}), it has {VOCAB}"
