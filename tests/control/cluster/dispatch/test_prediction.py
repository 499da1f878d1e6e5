"""Predictions of one request on one instance."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from distkv.control.cluster.dispatch.prediction import (
    BORROW_S,
    MIXED,
    RECLAIM_S,
    USUAL_BASE_S,
    USUAL_OUTPUT_TOKENS,
    USUAL_PROMPT_TOKEN_S,
    USUAL_ROW_S,
    Prediction,
    Usual,
    predict,
)
from distkv.control.cluster.policy.interface import InstanceView
from distkv.control.performance.model import PerformanceModel
from distkv.wire.messages.to_gmanager import Locate
from tests.control.performance.profiles import make_profile

USUAL = Usual.of([])


def view(name: str = "a", **fields: Any) -> InstanceView:
    usual: dict[str, Any] = {
        "state": "ready",
        "host_key": "h",
        "block_tokens": 4,
        "free_blocks": 100,
        "lendable_blocks": 90,
        "waiting": 0,
        "load": 0,
        "total_blocks": 100,
    }
    return InstanceView(instance_id=name, **usual | fields)


def predicted(prompt: int = 40, output: int = 20, usual_output: int = USUAL_OUTPUT_TOKENS, **fields: Any) -> Prediction:
    request = Locate(request_id="r", num_tokens=prompt + output, prompt_tokens=prompt)
    return predict(request, view(**fields), msgspec.structs.replace(USUAL, output_tokens=usual_output))


def test_an_idle_instance_prefills_at_once_and_then_decodes_alone() -> None:
    assert predicted() == Prediction(0.0, 40 * USUAL_PROMPT_TOKEN_S, USUAL_BASE_S + USUAL_ROW_S, 20)


def test_what_an_instance_told_counts() -> None:
    told = predicted(decode_base_s=0.5, decode_row_s=0.25, prompt_token_s=0.125)
    assert told == Prediction(0.0, 40 * 0.125, 0.75, 20)


def test_what_differs_little_is_no_other_machine() -> None:
    told = predicted(
        decode_base_s=1.2 * USUAL_BASE_S, decode_row_s=USUAL_ROW_S, prompt_token_s=0.8 * USUAL_PROMPT_TOKEN_S
    )
    assert told == predicted()


def test_prompts_before_it_are_waited_for_and_decodes_beside_it_double_that() -> None:
    assert predicted(prefill_tokens=60).first_token_s == pytest.approx(100 * USUAL_PROMPT_TOKEN_S)
    beside = predicted(prefill_tokens=60, load=3, running=3)
    assert beside.first_token_s == pytest.approx(MIXED * 100 * USUAL_PROMPT_TOKEN_S)
    assert beside.token_s == pytest.approx(USUAL_BASE_S + 4 * USUAL_ROW_S)


def test_memory_that_lacks_comes_free_as_others_end() -> None:
    """60 tokens, and 20 for those that run to grow: 32 lack, of 200 that run. These have all ended after 10 steps."""
    plain = predicted(load=4, running=4, usual_output=10, prompt=50)
    known: dict[str, Any] = {"load": 4, "running": 4, "context_tokens": 200, "growing_blocks": 5, "total_blocks": 62}
    lacking = predicted(free_blocks=12, usual_output=10, prompt=50, **known)
    assert lacking.first_token_s - plain.first_token_s == pytest.approx(32 / 200 * 10 * plain.token_s)


def test_memory_of_those_on_their_way_comes_free_as_well() -> None:
    """Of 400 tokens a heartbeat knew of 20 that run, and then so many came that none are free; 200 are lent."""
    plain = predicted(load=8, running=1, usual_output=10, prompt=50)
    known: dict[str, Any] = {"load": 8, "running": 1, "context_tokens": 20, "free_blocks": 0, "usual_output": 10}
    before = predicted(prompt=50, lent_blocks=50, **known)
    assert before.first_token_s - plain.first_token_s == pytest.approx(60 / 200 * 10 * plain.token_s)
    alone = predicted(prompt=50, lent_blocks=50, **known | {"context_tokens": 300})
    assert alone.first_token_s - plain.first_token_s == pytest.approx(60 / 300 * 10 * plain.token_s), "it has borrowed"


def test_where_one_waits_what_is_free_is_not_for_another() -> None:
    """60 tokens, 40 for the one that waits and 10 for its output, of 200 that run."""
    found = predicted(load=5, running=4, waiting=1, waiting_blocks=10, context_tokens=200, usual_output=10, prompt=50)
    assert found.wait_s == pytest.approx(110 / 200 * 10 * found.token_s)
    assert predicted(free_blocks=0).first_token_s - predicted().first_token_s == pytest.approx(RECLAIM_S)


def test_who_fits_goes_by_those_that_need_more_than_there_is() -> None:
    """Of 60 rBlocks that are free 40 are not for growth; the four that wait take more than 40 each."""
    waiting: dict[str, Any] = {"load": 5, "running": 1, "waiting": 4, "context_tokens": 160, "free_blocks": 60}
    waiting["growing_blocks"] = 20
    assert predicted(waiting_blocks=161, **waiting).wait_s == 0
    assert predicted(waiting_blocks=161, max_num_seqs=4, **waiting).wait_s == 0, "they have no place in the batch"
    assert predicted(waiting_blocks=160, **waiting).wait_s > 0, "one of them may begin first"
    assert predicted(waiting_blocks=161, prompt=164, **waiting).wait_s > 0, "it does not fit"
    assert predicted(waiting_blocks=161, prompt=120, output=60, **waiting).wait_s > 0, "its output does not"


def test_prompts_of_those_that_it_goes_by_are_computed_after_it() -> None:
    """Those that wait take 644 tokens of the 700 that are to be computed, or 640."""
    waiting: dict[str, Any] = {"load": 5, "running": 1, "waiting": 4, "context_tokens": 160, "prefill_tokens": 700}
    waiting |= {"free_blocks": 60, "growing_blocks": 20}
    goes_by, behind = predicted(waiting_blocks=161, **waiting), predicted(waiting_blocks=160, **waiting)
    assert goes_by.first_token_s == pytest.approx(MIXED * (56 + 40) * USUAL_PROMPT_TOKEN_S)
    assert behind.first_token_s - behind.wait_s == pytest.approx(MIXED * (700 + 40) * USUAL_PROMPT_TOKEN_S)


def test_a_full_batch_is_waited_for() -> None:
    """One waits before it for one of four places, of which each is taken for ten steps."""
    full = predicted(load=5, running=4, waiting=1, max_num_seqs=4, usual_output=10)
    assert full.token_s == pytest.approx(USUAL_BASE_S + 4 * USUAL_ROW_S)
    assert full.first_token_s == pytest.approx(MIXED * 40 * USUAL_PROMPT_TOKEN_S + full.wait_s)
    assert full.wait_s == max(RECLAIM_S, 2 / 4 * 10 * full.token_s)
    assert predicted(load=4, running=4, max_num_seqs=4, usual_output=10).wait_s == pytest.approx(
        1 / 4 * 10 * full.token_s
    )


def test_what_an_instance_does_not_have_at_all_is_borrowed_and_where_more_is_free_it_is_less() -> None:
    large = predicted(prompt=1000)
    assert large.first_token_s > 1000 * USUAL_PROMPT_TOKEN_S + BORROW_S
    assert large.first_token_s < predicted(prompt=1000, free_blocks=50).first_token_s
    assert large.first_token_s < predicted(prompt=1000, waiting=1, waiting_blocks=9, load=1).first_token_s


def test_an_output_that_may_get_too_long_for_the_pool_is_a_risk() -> None:
    """120 tokens are left for the output, 128 are usual."""
    at_most = predicted(prompt=280, output=120)
    more = predicted(prompt=280, output=4000)
    assert at_most.first_token_s == pytest.approx(280 * USUAL_PROMPT_TOKEN_S)
    assert more.tokens == USUAL_OUTPUT_TOKENS and more.first_token_s > at_most.first_token_s


def test_an_unknown_prompt_is_all_of_it() -> None:
    request = Locate(request_id="r", num_tokens=60)
    found = predict(request, view(), USUAL)
    assert (found.first_token_s, found.tokens) == (pytest.approx(60 * USUAL_PROMPT_TOKEN_S), 0)
    assert predict(Locate(request_id="r"), view(), USUAL).first_token_s == 0


def test_a_profile_says_it_better() -> None:
    profile = make_profile()
    model = PerformanceModel(profile)
    found = predicted(profile=profile, model=model, load=2, running=2, context_tokens=100, borrowed_blocks=5)
    assert found.token_s == model.step_s(3, 140, remote_tokens=20)
    assert found.first_token_s == pytest.approx(MIXED * model.prefill_s(40))
    serving = predicted(profile=profile, model=model, load=2, running=2, context_tokens=100, lent_blocks=50)
    assert serving.token_s > model.step_s(3, 140)


def test_what_one_has_not_told_is_as_with_the_others() -> None:
    others = [view("b", decode_base_s=1.0, decode_row_s=0.5, prompt_token_s=3.0, output_tokens=9), view("c")]
    assert Usual.of(others) == Usual(1.0, 0.5, 3.0, 9)
