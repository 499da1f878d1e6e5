"""Dispatchers: where a request goes, and what looking for it costs."""

from __future__ import annotations

from random import Random
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distkv.control.cluster.dispatch.interface import expected_tokens
from distkv.control.cluster.dispatch.least_loaded import MOST_PASSED
from distkv.control.cluster.dispatch.predicted import ALL, BEST, DRAWN, Predicted
from distkv.control.cluster.dispatch.prediction import Usual, predict
from distkv.control.cluster.dispatch.registry import dispatcher_named
from distkv.control.cluster.indices.availability import Availability
from distkv.control.cluster.policy.interface import InstanceView
from distkv.types import DispatchName
from distkv.wire.messages.to_gmanager import Locate
from tests.control.cluster.dispatch.test_prediction import view
from tests.control.cluster.policy.test_contract import among, num_looks
from tests.examples import examples

NAMES: tuple[DispatchName, ...] = get_args(DispatchName)


def chosen(
    *views: InstanceView, name: DispatchName = "predicted", shares_memory: bool = True, seed: int = 0, **fields: Any
) -> str | None:
    request = Locate(request_id="r", **{"num_tokens": 60, "prompt_tokens": 40} | fields)
    found = dispatcher_named(name, Random(seed), shares_memory=shares_memory).choose(request, among(*views))
    return None if found is None else found.instance_id


@pytest.mark.parametrize("name", NAMES)
def test_only_the_ready_that_are_not_excluded_are_chosen(name: DispatchName) -> None:
    views = [view("a"), view("b"), view("c", state="draining")]
    for seed in range(20):
        assert chosen(*views, name=name, seed=seed, exclude=("a",)) == "b"
    assert chosen(*views, name=name, exclude=("a", "b")) is None
    assert chosen(name=name) is None


@pytest.mark.parametrize("name", NAMES)
def test_who_excludes_nearly_all_of_many_still_finds_the_rest(name: DispatchName) -> None:
    views = [view(f"i{index:03d}") for index in range(500)]
    exclude = tuple(one.instance_id for one in views[:499])
    assert {chosen(*views, name=name, seed=seed, exclude=exclude) for seed in range(5)} == {"i499"}


@pytest.mark.parametrize("shares_memory", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_a_request_goes_to_no_instance_that_lets_none_be_so_long(name: DispatchName, *, shares_memory: bool) -> None:
    """Unless all do, and then to the one that it would go to without limits."""
    views = [view("a", max_model_len=59), view("b", load=9, max_model_len=60), view("c", load=9), view("d", load=9)]
    takers = {"b", "c", "d"}
    for seed in range(20):
        assert chosen(*views, name=name, seed=seed, shares_memory=shares_memory) in takers
        assert chosen(*views[:2], name=name, seed=seed, shares_memory=shares_memory) == "b"
        assert chosen(*views[:1], name=name, seed=seed, shares_memory=shares_memory) == "a"
    assert chosen(*views[:2], name=name, exclude=("b",)) == "a"


def test_least_loaded_passes_over_few_that_take_no_request_so_long() -> None:
    views = [view(f"i{index}", max_model_len=10) for index in range(MOST_PASSED)]
    last = view("last", load=9)
    assert chosen(*views, last, name="least-loaded") == "last"
    more = view("more", max_model_len=10)
    assert chosen(*views, more, last, name="least-loaded") == chosen(*views, more, name="least-loaded")


def test_random_is_anywhere() -> None:
    views = [view("a"), view("b", load=99), view("c", free_blocks=0)]
    assert {chosen(*views, name="random", seed=seed) for seed in range(50)} == {"a", "b", "c"}


def test_the_shortest_queue_of_prompts_not_of_requests() -> None:
    long, short = view("a", load=1, running=1, prefill_tokens=9000), view("b", load=2, running=2, prefill_tokens=10)
    assert chosen(long, short) == "b"
    assert chosen(long, short, name="least-loaded") == "a"


def test_a_slow_instance_gets_fewer() -> None:
    slow = view("a", decode_base_s=0.1, decode_row_s=0.01, prompt_token_s=0.005)
    fast = view("b", decode_base_s=0.01, decode_row_s=0.001, prompt_token_s=0.0005, load=3, running=3)
    assert chosen(slow, fast) == "b"


def test_memory_that_would_have_to_be_waited_for_counts() -> None:
    full = view("a", free_blocks=5, context_tokens=40, load=2, running=2, output_tokens=20)
    busy = view("b", load=6, running=6, output_tokens=20)
    assert chosen(full, busy) == "b"


def test_what_fits_nowhere_alone_goes_where_most_is_free_and_least_waits() -> None:
    little, most, waits = (
        view("a", free_blocks=40),
        view("b", free_blocks=90),
        view("c", load=2, waiting=2, waiting_blocks=80),
    )
    assert chosen(little, most, waits, num_tokens=2000, prompt_tokens=1900) == "b"


def test_where_nobody_lends_only_one_that_holds_all_takes_it() -> None:
    small, large = view("a"), view("b", total_blocks=900, free_blocks=10, load=9, running=9, context_tokens=3000)
    assert chosen(small, large, num_tokens=450, prompt_tokens=40) == "a"
    assert chosen(small, large, num_tokens=450, prompt_tokens=40, shares_memory=False) == "b"


def test_expected_is_the_prompt_and_the_usual_output_and_never_more_than_was_allowed() -> None:
    known = view(output_tokens=50)
    assert expected_tokens(Locate(request_id="r", num_tokens=400, prompt_tokens=100), known) == 150
    assert expected_tokens(Locate(request_id="r", num_tokens=120, prompt_tokens=100), known) == 120
    assert expected_tokens(Locate(request_id="r", num_tokens=400), known) == 400
    assert expected_tokens(Locate(request_id="r", num_tokens=400, prompt_tokens=100), view()) == 400


VIEWS = st.lists(
    st.builds(
        view,
        st.text("abcdef", min_size=1, max_size=2),
        free_blocks=st.integers(0, 100),
        overdrawn_blocks=st.sampled_from([0, 0, 3]),
        waiting=st.sampled_from([0, 0, 2]),
        waiting_blocks=st.integers(0, 30),
        load=st.integers(0, 9),
        running=st.integers(0, 9),
        context_tokens=st.integers(0, 400),
        prefill_tokens=st.integers(0, 5000),
        prompt_token_s=st.sampled_from([0.0, 0.001, 0.01]),
        decode_base_s=st.sampled_from([0.0, 0.01, 0.1]),
        output_tokens=st.sampled_from([0, 20, 200]),
    ),
    min_size=1,
    max_size=ALL,
    unique_by=lambda one: one.instance_id,
)


@settings(max_examples=examples(200))
@given(VIEWS, st.integers(0, 900), st.integers(0, 300))
def test_of_few_it_is_the_best_of_all(views: list[InstanceView], prompt: int, output: int) -> None:
    request = Locate(request_id="r", num_tokens=prompt + output, prompt_tokens=prompt)
    usual = Usual.of(views)
    found = Predicted(Random(0), shares_memory=True).choose(request, among(*views))
    assert found is not None
    predictions = {one.instance_id: predict(request, one, usual) for one in views}
    orders = {name: (one.wait_s > 0, one.total_s) for name, one in predictions.items()}
    assert orders[found.instance_id] == min(orders.values()) and orders[found.instance_id][1] >= 0


@pytest.mark.parametrize("name", NAMES)
def test_it_looks_at_no_more_instances_when_there_are_more(name: DispatchName) -> None:
    def decide(instances: Availability) -> None:
        dispatcher = dispatcher_named(name, Random(0), shares_memory=True)
        dispatcher.choose(Locate(request_id="r", num_tokens=16, prompt_tokens=8), instances)

    views = [view(f"i{index}", load=index % 7) for index in range(10_000)]
    assert max(num_looks(views[:count], decide) for count in (100, 1000, 10_000)) <= DRAWN + 2 * BEST
