"""Elsewhere: which waiting requests another instance could begin at once, each memory promised to one of them."""

from __future__ import annotations

from distkv.control.cluster.policy.elsewhere import Elsewhere
from distkv.control.cluster.policy.interface import InstanceView


def view(name: str, lendable: int = 0, tokens: tuple[int, ...] = (), extra: int = 0, **fields: int) -> InstanceView:
    """Of blocks of 16 tokens; `extra` more wait of which it is not said what they need elsewhere."""
    return InstanceView(
        instance_id=name,
        state="ready",
        host_key="",
        block_tokens=16,
        free_blocks=lendable,
        lendable_blocks=lendable,
        waiting_sizes=(*(max(1, n // 16) for n in tokens), *range(100, 100 + extra)),
        waiting_tokens=tokens,
        **({"waiting": len(tokens) + extra, "load": 0} | fields),  # type: ignore[arg-type]
    )


def test_each_goes_where_most_is_to_spare_until_nothing_fits() -> None:
    elsewhere = Elsewhere([view("a", 10), view("b", 8)])
    left, taken = elsewhere.staying(view("d", tokens=(5 * 16, 8 * 16, 0, 5 * 16, 16 * 16)))
    assert left.waiting_tokens == (0, 16 * 16) and left.waiting_sizes == (1, 16)
    assert taken == {"a": 10, "b": 8}
    again, taken = elsewhere.staying(view("e", tokens=(16,)))
    assert again.waiting_tokens == (16,) and not taken, "it is promised already"


def test_memory_that_is_lent_is_not_to_spare() -> None:
    elsewhere = Elsewhere([view("a", 10)])
    elsewhere.lends("a", 4)
    elsewhere.lends("unknown", 4)
    assert not elsewhere.staying(view("d", tokens=(7 * 16,)))[1]
    assert elsewhere.staying(view("d", tokens=(6 * 16,)))[1] == {"a": 6}


def test_nobody_goes_to_itself_or_to_a_full_batch() -> None:
    elsewhere = Elsewhere([view("d", 9), view("f", 9, load=4, max_num_seqs=4)])
    assert not elsewhere.staying(view("d", tokens=(16,)))[1]
    assert elsewhere.staying(view("x", tokens=(16,)))[1] == {"d": 1}


def test_who_fits_goes_by_those_that_wait() -> None:
    elsewhere = Elsewhere([view("d", 9, waiting=1)])
    assert elsewhere.staying(view("x", tokens=(10 * 16, 16)))[1] == {"d": 1}


def test_of_a_former_version_all_stay() -> None:
    elsewhere = Elsewhere([view("a", 10)])
    assert elsewhere.staying(view("d", extra=3))[0].waiting_sizes == (100, 101, 102)
    left, _ = elsewhere.staying(view("d", tokens=(16, 0), extra=1))
    assert left.waiting_sizes == (1, 100) and left.waiting_tokens == (0,)


def test_nobody_is_said_to_go_where_it_is_too_long() -> None:
    """It would not be sent there, and wait for memory that nobody frees."""
    elsewhere = Elsewhere([view("a", 9, max_model_len=15), view("b", 5)])
    assert elsewhere.staying(view("d", tokens=(16, 6 * 16)))[1] == {"b": 1}
