"""ContractPolicy: decisions from views alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distkv.control.cluster.policy.contract import MAX_CANDIDATES, ContractPolicy
from distkv.control.cluster.policy.interface import InstanceView
from distkv.wire.messages.to_gmanager import BorrowQuery, Locate

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


def dispatched(*views: InstanceView, num_tokens: int = 16, exclude: tuple[str, ...] = ()) -> str | None:
    chosen = POLICY.dispatch(Locate(request_id="r", num_tokens=num_tokens, exclude=exclude), views)
    return None if chosen is None else chosen.instance_id


def recommended(debtor: str, *views: InstanceView, exclude: tuple[str, ...] = ()) -> list[str]:
    query = BorrowQuery(instance_id=debtor, borrow_id="b", num_blocks=3, exclude=exclude)
    return [creditor.instance_id for creditor in POLICY.recommend(query, views)]


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


def test_suspects_come_last_and_hide_nobody() -> None:
    views = [view(name, lendable_blocks=9 - index) for index, name in enumerate("bcde")]
    query = BorrowQuery(instance_id="a", borrow_id="x", num_blocks=3, suspects=("b", "c", "d"))
    assert [creditor.instance_id for creditor in POLICY.recommend(query, views)] == ["e", "b", "c"]


def test_an_empty_host_key_is_near_to_nobody() -> None:
    views = [view("a", host_key=""), view("b", host_key="", lendable_blocks=1), view("c", lendable_blocks=5)]
    assert recommended("a", *views) == ["c", "b"]


@given(
    st.lists(
        st.builds(
            view,
            st.text("abcdef", min_size=1, max_size=2),
            state=st.sampled_from(["starting", "ready", "draining", "unreachable", "dead"]),
            lendable_blocks=st.integers(0, 9),
            host_key=st.sampled_from(["", "x", "y"]),
        ),
        unique_by=lambda one: one.instance_id,
    ),
    st.sets(st.text("abcdef", min_size=1, max_size=2)),
)
def test_only_ready_ones_that_were_not_excluded_serve_and_lend(views: list[InstanceView], exclude: set[str]) -> None:
    by_name = {one.instance_id: one for one in views}
    debtor = views[0].instance_id if views else "z"
    creditors = recommended(debtor, *views, exclude=tuple(exclude))
    able = [i for i, one in by_name.items() if one.state == "ready" and one.lendable_blocks and i not in exclude]
    assert len(creditors) == min(MAX_CANDIDATES, len(set(able) - {debtor}))
    assert set(creditors) <= set(able) - {debtor}
    chosen = dispatched(*views, exclude=tuple(exclude))
    assert (chosen is None) == all(one.state != "ready" or i in exclude for i, one in by_name.items())
    assert chosen is None or (by_name[chosen].state == "ready" and chosen not in exclude)


@pytest.mark.parametrize("count", [0, 1, 50])
def test_nothing_is_planned(count: int) -> None:
    assert POLICY.plan([view(f"i{index}", load=index) for index in range(count)]) == ()
