"""ContractPolicy: decisions from views alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distkv.control.cluster.dispatch.least_loaded import LeastLoaded
from distkv.control.cluster.indices.availability import Availability, standing_of
from distkv.control.cluster.planning.balance import BalanceIndex
from distkv.control.cluster.policy.contract import MAX_CANDIDATES, MAX_COMPARED, ContractPolicy
from distkv.control.cluster.policy.interface import MOST_LOAD, InstanceView
from distkv.wire.messages.to_gmanager import BorrowQuery, Locate
from tests.control.cluster.policy.exhaustive import Anything
from tests.control.performance.profiles import HOST, NETWORK, make_profile
from tests.examples import examples

POLICY = ContractPolicy()


def view(name: str, **fields: Any) -> InstanceView:
    usual = {
        "state": "ready",
        "host_key": "h",
        "block_tokens": 4,
        "free_blocks": 8,
        "lendable_blocks": 7,
        "waiting": 0,
        "load": 0,
    }
    return InstanceView(instance_id=name, **usual | fields)


def num_looks(views: Sequence[InstanceView], decide: Callable[[Availability], object]) -> int:
    """How many instances are looked at to decide something."""
    by_name = {one.instance_id: one for one in views}
    seen: list[str] = []

    def get(name: str) -> InstanceView | None:
        seen.append(name)
        return by_name.get(name)

    instances = Availability(get, lambda: iter(by_name.values()))
    for one in views:
        instances.put(one.instance_id, standing_of(one))
    decide(instances)
    return len(seen)


def among(*views: InstanceView, lent: Mapping[tuple[str, str], int] | None = None) -> Availability:
    """The instances as the gManager keeps them: all were something else before. lent: by creditor and debtor."""
    by_name = {one.instance_id: one for one in views}
    known = Counter(lent or {})
    instances = Availability(by_name.get, lambda: iter(by_name.values()), lambda *names: known[names])
    for one in views:
        other = msgspec.structs.replace(one, load=one.load + 1, lendable_blocks=3, waiting=1 - min(1, one.waiting))
        instances.put(one.instance_id, standing_of(other))
    for one in views:
        instances.put(one.instance_id, standing_of(one))
    instances.validate()
    return instances


def dispatched(*views: InstanceView, num_tokens: int = 16, exclude: tuple[str, ...] = ()) -> str | None:
    request = Locate(request_id="r", num_tokens=num_tokens, exclude=exclude)
    chosen = LeastLoaded().choose(request, among(*views))
    return None if chosen is None else chosen.instance_id


def recommended(
    debtor: str,
    *views: InstanceView,
    exclude: tuple[str, ...] = (),
    suspects: tuple[str, ...] = (),
    lent: Mapping[tuple[str, str], int] | None = None,
) -> list[str]:
    query = BorrowQuery(instance_id=debtor, borrow_id="b", num_blocks=3, exclude=exclude, suspects=suspects)
    return [creditor.instance_id for creditor in POLICY.recommend(query, among(*views, lent=lent))]


# --- the same by looking at every instance


def dispatched_by_looking_at_all(views: list[InstanceView], num_tokens: int, exclude: set[str]) -> str | None:
    def unfitness(one: InstanceView) -> tuple[bool, bool, int, int, str]:
        fits = one.free_blocks - one.overdrawn_blocks >= one.blocks_for(num_tokens)
        return one.waiting > 0, not fits, min(one.load, MOST_LOAD) if fits else 0, -one.room_tokens, one.instance_id

    able = [one for one in views if one.state == "ready" and one.instance_id not in exclude]
    chosen = min(able, key=unfitness, default=None)
    return None if chosen is None else chosen.instance_id


def recommended_by_looking_at_all(
    debtor: str, views: list[InstanceView], exclude: set[str], suspects: set[str]
) -> list[str]:
    """Nothing is lent yet, and fewer instances than are compared at once: those with most are first."""
    host = next((one.host_key for one in views if one.instance_id == debtor), "")
    able = [one for one in views if one.state == "ready" and one.lendable_blocks > 0]
    able = [one for one in able if one.instance_id not in exclude | {debtor}]

    def order(one: InstanceView) -> tuple[bool, bool, bool, int, str]:
        is_doubted, is_far = one.instance_id in suspects, bool(host) and one.host_key != host
        waits = not is_doubted and one.waiting > 0
        return is_doubted, waits, is_far, -one.lendable_blocks, one.instance_id

    return [one.instance_id for one in sorted(able, key=order)[:MAX_CANDIDATES]]


def test_blocks_for_tokens_are_rounded_up() -> None:
    assert [view("a").blocks_for(n) for n in (0, 1, 4, 5)] == [0, 1, 1, 2]
    assert view("a", block_tokens=0).blocks_for(3) == 3, "one that is loading does not know them yet"


def test_where_nobody_waits_comes_first_then_where_it_fits_then_where_least_runs() -> None:
    waits, full = view("a", waiting=1), view("b", free_blocks=3)
    busy, idle = view("c", load=2), view("d", load=1)
    assert dispatched(waits, full, busy, idle) == "d"
    assert dispatched(waits, full, busy) == "c"
    assert dispatched(waits, full) == "b"
    assert dispatched(waits) == "a"
    assert dispatched() is None


def test_equal_ones_are_told_apart_by_name_whatever_their_order() -> None:
    assert dispatched(view("b"), view("a")) == dispatched(view("a"), view("b")) == "a"


def test_what_fits_nowhere_goes_where_most_is_free_however_busy() -> None:
    assert dispatched(view("a", free_blocks=3), view("b", free_blocks=5, load=9), num_tokens=400) == "b"


def test_near_ones_come_first_then_those_that_lend_most() -> None:
    views = [view("a"), view("far", host_key="x", lendable_blocks=9), view("b", lendable_blocks=2), view("c")]
    assert recommended("a", *views) == ["c", "b", "far"]
    assert recommended("stranger", *views) == ["far", "a", "c"], "nothing is near to one that is not known"
    assert recommended("a", *views, exclude=("c",)) == ["b", "far"]


def test_where_own_requests_wait_for_memory_comes_later_however_near() -> None:
    views = [
        view("a"),
        view("b", waiting=1),
        view("far", host_key="x", lendable_blocks=1),
        view("c", lendable_blocks=2),
    ]
    assert recommended("a", *views) == ["c", "far", "b"]


def test_what_a_link_costs_is_what_was_measured() -> None:
    """Over these links a row and its partial take 104 µs on one host, and 540 or 104 µs by the network."""
    views = [view("b", lendable_blocks=2), view("far", host_key="x", lendable_blocks=9)]
    fast = msgspec.structs.replace(NETWORK, round_trip_s=100e-6, bytes_per_s=1e8)
    faster = msgspec.structs.replace(fast, round_trip_s=10e-6)
    for links, found in (
        ({"host": HOST, "network": NETWORK}, ["b", "far"]),
        ({"host": HOST, "network": fast}, ["far", "b"]),  # equally near: by memory
        ({"host": HOST, "network": faster}, ["far", "b"]),
        ({"host": HOST}, ["b", "far"]),
        ({"network": NETWORK}, ["b", "far"]),
    ):
        assert recommended("a", view("a", profile=make_profile(links=links)), *views) == found, links
    small = [view("b", lendable_blocks=9), view("far", host_key="x", lendable_blocks=2)]
    assert (
        recommended("a", view("a", profile=make_profile(links={"host": HOST, "network": faster})), *small)[0] == "far"
    )


def test_what_one_debtor_borrows_is_spread_by_memory() -> None:
    lent: Counter[tuple[str, str]] = Counter()
    sizes = {"b": 40, "c": 20, "d": 20, "e": 20}
    for _ in range(10):
        views = [view(name, lendable_blocks=size - lent[name, "a"]) for name, size in sizes.items()]
        first = recommended("a", *views, lent=lent)[0]
        lent[first, "a"] += 3
    assert {name: lent[name, "a"] for name in sizes} == {"b": 12, "c": 6, "d": 6, "e": 6}


def test_who_can_lend_all_comes_before_who_cannot() -> None:
    lent = Counter({("b", "a"): 90})
    assert recommended("a", view("b", lendable_blocks=3), view("c", lendable_blocks=2), lent=lent) == ["b", "c"]


def test_many_on_one_host_hide_nobody_for_long() -> None:
    """The debtor's link to others is the cheaper one, and all but one are on its own host."""
    links = {"host": NETWORK, "network": HOST}
    views = [view(f"i{index:03d}") for index in range(500)]
    own = view("a", profile=make_profile(links=links))
    assert recommended("a", own, *views, view("far", host_key="x", lendable_blocks=9))[0] == "far"
    assert recommended("a", own, *views, view("far", host_key="x", lendable_blocks=1)) == ["i000", "i001", "i002"]


def test_suspects_come_last_and_hide_nobody() -> None:
    views = [view(name, lendable_blocks=9 - index) for index, name in enumerate("bcde")]
    assert recommended("a", *views, suspects=("b", "c", "d")) == ["e", "b", "c"]


def test_an_empty_host_key_is_near_to_nobody() -> None:
    views = [view("a", host_key=""), view("b", host_key="", lendable_blocks=1), view("c", lendable_blocks=5)]
    assert recommended("a", *views) == ["c", "b"]


NAMES = st.text("abcdef", min_size=1, max_size=2)
VIEWS = st.lists(
    st.builds(
        view,
        NAMES,
        state=st.sampled_from(["starting", "ready", "ready", "ready", "draining", "unreachable", "dead"]),
        block_tokens=st.sampled_from([0, 4, 4, 4, 16]),
        free_blocks=st.integers(0, 12),
        overdrawn_blocks=st.sampled_from([0, 0, 0, 2]),
        lendable_blocks=st.integers(0, 9),
        host_key=st.sampled_from(["", "x", "y"]),
        waiting=st.sampled_from([0, 0, 3]),
        load=st.sampled_from([0, 1, 2, 9, MOST_LOAD, MOST_LOAD + 7]),
    ),
    max_size=30,
    unique_by=lambda one: one.instance_id,
)


@settings(max_examples=examples(400))
@given(VIEWS, st.sets(NAMES, max_size=4), st.sets(NAMES, max_size=4), st.integers(0, 99), NAMES)
def test_indices_decide_what_looking_at_all_would(
    views: list[InstanceView], exclude: set[str], suspects: set[str], num_tokens: int, debtor: str
) -> None:
    wanted = dispatched_by_looking_at_all(views, num_tokens, exclude)
    assert dispatched(*views, num_tokens=num_tokens, exclude=tuple(exclude)) == wanted
    for name in {debtor, *(one.instance_id for one in views[:2])}:
        found = recommended(name, *views, exclude=tuple(exclude), suspects=tuple(suspects))
        assert found == recommended_by_looking_at_all(name, views, exclude, suspects)


@pytest.mark.parametrize("question", ["dispatch", "recommend"])
def test_a_question_looks_at_no_more_instances_when_there_are_more(question: str) -> None:
    def decide(instances: Availability) -> None:
        if question == "dispatch":
            LeastLoaded().choose(Locate(request_id="r", num_tokens=16, exclude=("i0", "i7")), instances)
        else:
            POLICY.recommend(BorrowQuery(instance_id="i1", borrow_id="b", num_blocks=3, exclude=("i49",)), instances)

    views = [view(f"i{index}", load=index % 7, lendable_blocks=index % 50) for index in range(10_000)]
    assert num_looks(views[:1000], decide) == num_looks(views, decide) <= 2 + MAX_COMPARED


def test_nothing_is_planned() -> None:
    balance = BalanceIndex(lambda name: None, lambda name: {})
    assert not POLICY.plans and POLICY.plan(balance, Anything()) == ()
