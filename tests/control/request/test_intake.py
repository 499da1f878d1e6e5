"""RequestLifecycle: what is taken in, and what is refused, or sent away for a while."""

from __future__ import annotations

import math
import sys

import pytest

from distkv.control.request.pace import LONGEST_S
from distkv.control.request.refusals import MEMORY_BACK_S
from distkv.recent_peak import LATELY_S
from tests.control.parts import make_member
from tests.control.request.serving import Serving, ok


@pytest.mark.parametrize(
    ("prompt", "params", "settings", "why"),
    [
        ((), {}, {}, "no tokens"),
        ((1,), {"logit_bias": {1000: 1.0}}, {}, "logit_bias"),
        (
            (1, 2),
            {"max_tokens": 9},
            {"max_model_len": 10},
            "maximum context length is 10 tokens. However, you requested 9 output tokens and your prompt contains 2",
        ),
    ],
)
def test_what_can_never_be_served_is_refused(prompt, params, settings, why) -> None:
    serving = Serving(**settings)
    serving.submit("r", prompt, **params)
    ended = serving.refusal()
    assert ended.kind == "refused" and why in ended.reason and not serving.state.sequences


def test_more_than_all_memory_together_is_refused_with_the_numbers() -> None:
    serving = Serving(num_blocks=2)
    serving.submit("r", (1, 2), max_tokens=8)
    ended = serving.refusal()
    assert (ended.kind, ended.needed_tokens, ended.pool_tokens) == ("refused", 10, 8)
    serving.submit("r", (1, 2), max_tokens=7)
    assert "r" in serving.state.sequences, "the last token needs no KV"


def test_what_only_a_peer_that_died_had_room_for_may_come_again_for_a_while() -> None:
    serving = Serving(num_blocks=2)
    members, clock = serving.state.members, serving.clock
    members["p"] = make_member("p", lendable_blocks=3)
    serving.requests.tick(clock.now())
    members["p"] = make_member("p", lendable_blocks=3, state="dead")
    serving.submit("r", (1, 2), max_tokens=19)
    ended = serving.refusal()
    assert (ended.kind, ended.retryable, ended.retry_after_s) == ("failed", True, MEMORY_BACK_S)
    assert (ended.needed_tokens, ended.pool_tokens) == (21, 8) and "21 tokens" in ended.reason
    serving.submit("r", (1, 2), max_tokens=20)
    assert serving.refusal().kind == "refused", "not even with that peer"
    members["p"] = make_member("p", lendable_blocks=0, state="starting")
    clock.advance(LATELY_S - 1)
    serving.submit("r", (1, 2), max_tokens=19)
    assert serving.refusal().retryable, "also while it loads"
    clock.advance(1.0)
    serving.submit("r", (1, 2), max_tokens=19)
    assert serving.refusal().kind == "refused", "it did not come back"


def test_what_a_peer_that_still_loads_may_have_room_for_may_come_again() -> None:
    """It was refused for good, a moment before it would have been served. How much it brings nobody knows yet."""
    serving = Serving(num_blocks=2)
    serving.state.members["p"] = make_member("p", total_blocks=0, lendable_blocks=0, state="starting")
    serving.submit("r", (1, 2), max_tokens=100)
    ended = serving.refusal()
    assert (ended.kind, ended.retryable, ended.pool_tokens) == ("failed", True, 8)
    serving.state.policy = "none"
    serving.submit("r", (1, 2), max_tokens=11)
    assert serving.refusal().kind == "refused", "nobody lends"
    serving.state.policy = "contract"
    serving.state.members["p"] = make_member("p", lendable_blocks=1)
    serving.submit("r", (1, 2), max_tokens=12)
    assert serving.refusal().kind == "refused", "more than it can lend"
    serving.submit("r", (1, 2), max_tokens=11)
    assert "r" in serving.state.sequences
    serving.state.validate()


def test_what_a_peer_had_room_for_that_died_before_this_one_began_may_come_again() -> None:
    """A gateway said so, which had seen both; a client in Python was refused for good."""
    serving = Serving(num_blocks=2)
    serving.state.members["p"] = make_member("p", lendable_blocks=3, state="dead")
    serving.requests.tick(serving.clock.now())
    serving.submit("r", (1, 2), max_tokens=19)
    ended = serving.refusal()
    assert (ended.kind, ended.retryable, ended.pool_tokens) == ("failed", True, 8)
    serving.submit("r", (1, 2), max_tokens=20)
    assert serving.refusal().kind == "refused"
    del serving.state.members["p"]
    serving.submit("r", (1, 2), max_tokens=19)
    assert serving.refusal().kind == "refused", "forgotten by the gManager"


def test_what_others_may_have_room_for_may_come_again_until_a_gmanager_has_told_of_them() -> None:
    """An instance that began while the gManager was away refused for good what its cluster had room for."""
    serving = Serving(num_blocks=2)
    members, clock = serving.state.members, serving.clock
    members.listed_from = math.inf
    serving.requests.tick(clock.now())
    clock.advance(LATELY_S - 1)
    serving.submit("r", (1, 2), max_tokens=8)
    ended = serving.refusal()
    assert (ended.kind, ended.retryable, ended.pool_tokens) == ("failed", True, 8) and "not have joined" in ended.reason
    clock.advance(1.0)
    serving.submit("r", (1, 2), max_tokens=8)
    assert serving.refusal().kind == "refused", "it serves without one"


def test_a_name_in_use_and_an_instance_that_leaves() -> None:
    serving = Serving()
    serving.submit("r")
    serving.submit("r")
    assert "running already" in serving.refusal().reason
    serving.state.instance_state = "draining"
    serving.submit("s")
    ended = serving.refusal()
    assert (ended.kind, ended.retryable) == ("failed", True) and "draining" in ended.reason


def test_a_full_queue_sends_away_at_once_and_says_when_to_come_again() -> None:
    serving = Serving(num_blocks=2, max_waiting=20)
    serving.submit("holder", (1, 2, 3), max_tokens=2)
    step = serving.step()
    for index in range(20):
        serving.submit(f"r{index}", tuple(range(8)), max_tokens=1)
    serving.submit("late", (1,), max_tokens=1)
    ended = serving.refusal()
    assert (ended.request_id, ended.kind, ended.retryable) == ("late", "failed", True)
    assert ended.reason == "20 requests are waiting already" and ended.retry_after_s == LONGEST_S
    serving.answer(step, ok(5))
    serving.answer(serving.step(), ok(6))
    for index in range(5):
        serving.clock.advance(1.5)
        serving.requests.cancel(f"r{index}", serving.clock.now())
        serving.submit(f"r{20 + index}", tuple(range(8)), max_tokens=1)
    serving.answers()
    serving.submit("late", (1,), max_tokens=1)
    assert serving.refusal().retry_after_s == pytest.approx(0.1 * 20 * 1.5), "when a tenth of them has gone on"


def test_a_waiting_prompt_takes_four_bytes_a_token() -> None:
    serving = Serving(num_blocks=1024)
    serving.submit(prompt=(17,) * 4000)
    assert sys.getsizeof(serving.state.sequences["r"].request.tokens) < 17_000


@pytest.mark.parametrize("settings", [{}, {"max_model_len": 30}])
def test_a_prompt_that_is_too_long_is_refused_by_its_length(settings: dict[str, object]) -> None:
    serving = Serving(num_blocks=4, **settings)
    serving.submit(prompt=(17,) * 4000)
    refusal = serving.refusal()
    assert (refusal.kind, refusal.needed_tokens) == ("refused", 4004)
