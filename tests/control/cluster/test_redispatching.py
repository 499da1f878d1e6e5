"""Where a gManager sends requests that wait for memory."""

from __future__ import annotations

from distkv.wire.messages.to_gmanager import RedispatchQuery, WaitingRequest
from distkv.wire.messages.to_rmanager import HeartbeatAck, Redispatch
from tests.control.cluster.managed import Managed


def cluster(**lendable: int) -> Managed:
    """Instances with so much to lend of 16 rBlocks, of 4 tokens each; those with nothing have requests waiting."""
    managed = Managed()
    for name, blocks in lendable.items():
        managed.join(name)
        managed.beat(name, free_blocks=blocks, lendable_blocks=blocks, waiting=0 if blocks else 3)
    return managed


def room(managed: Managed, name: str, waiting: int) -> int:
    managed.beat(name, free_blocks=0, lendable_blocks=0, waiting=waiting)
    (ack,) = managed.answers(HeartbeatAck, name)
    return ack.room_tokens


def redispatched(managed: Managed, name: str, *num_tokens: int) -> dict[str, str]:
    requests = tuple(WaitingRequest(f"r{index}", tokens) for index, tokens in enumerate(num_tokens))
    managed.hear(name, RedispatchQuery(instance_id=name, requests=requests))
    answers = managed.answers(Redispatch, name)
    return {found.req_id: found.inst_id for answer in answers for found in answer.requests}


def test_only_who_has_requests_waiting_hears_of_memory_elsewhere() -> None:
    managed = cluster(a=0, b=12, c=5)
    assert room(managed, "a", waiting=1) == 12 * 4
    assert room(managed, "a", waiting=0) == 0


def test_memory_where_nobody_waits_is_meant_first() -> None:
    managed = cluster(a=0, b=12, c=5)
    managed.beat("b", free_blocks=12, lendable_blocks=12, waiting=1, waiting_blocks=14)
    assert room(managed, "a", waiting=1) == 12 * 4
    assert redispatched(managed, "a", 40, 20) == {"r0": "b", "r1": "c"}


def test_memory_is_meant_where_those_wait_that_need_more() -> None:
    """They leave it free, and what fits goes by."""
    managed = cluster(a=0, b=12)
    large = {"free_blocks": 12, "lendable_blocks": 12, "waiting": 3, "waiting_blocks": 3 * 14, "max_num_seqs": 3}
    managed.beat("b", **large)
    assert room(managed, "a", waiting=1) == 12 * 4
    assert redispatched(managed, "a", 40, 20, 8) == {"r0": "b", "r2": "b"}
    managed.beat("b", **large | {"running": 3})
    assert redispatched(managed, "a", 4) == {}, "its batch is full"


def test_requests_go_to_memory_that_nobody_was_promised() -> None:
    managed = cluster(a=0, b=12, c=5)
    assert redispatched(managed, "a", 40, 20, 8, 8) == {"r0": "b", "r1": "c", "r2": "b"}
    assert redispatched(managed, "a", 8) == {}


def test_who_was_sent_on_waits_no_more() -> None:
    """Nothing is planned for it from then on, though the heartbeat that names it is the newest."""
    managed = cluster(a=0, b=12, c=5)
    managed.beat(
        "a", free_blocks=0, lendable_blocks=0, waiting=4, waiting_sizes=(10, 5, 9, 2), waiting_tokens=(40, 20, 0, 8)
    )
    assert redispatched(managed, "a", 40, 4, 8) == {"r0": "b", "r1": "c", "r2": "c"}
    view = managed.gm.ledger.entries["a"].view()
    assert (view.waiting_sizes, view.waiting_tokens) == ((5, 9), (20, 0))
    managed.beat("a", waiting=1, waiting_sizes=(10,), waiting_tokens=(40,))
    assert managed.gm.ledger.entries["a"].view().waiting_sizes == (10,), "it has come back, or another one like it"


def test_the_prompt_of_who_was_sent_on_is_computed_there_and_no_more_where_it_waited() -> None:
    managed = cluster(a=0, b=12)
    entries = managed.gm.ledger.entries
    managed.beat("a", free_blocks=0, lendable_blocks=0, waiting=2, prefill_tokens=50)
    query = RedispatchQuery(instance_id="a", requests=(WaitingRequest("r", 40, 32), WaitingRequest("large", 400, 380)))
    managed.hear("a", query)
    assert (entries["a"].view().prefill_tokens, entries["b"].view().prefill_tokens) == (50 - 32, 32)
    managed.beat("a", waiting=1, prefill_tokens=18)
    managed.beat("b", running=1, prefill_tokens=20, arrived=("r~1",))
    assert (entries["a"].view().prefill_tokens, entries["b"].view().prefill_tokens) == (18, 20)


def test_a_prompt_is_no_longer_than_its_request_whoever_says_so() -> None:
    managed = cluster(a=0, b=12)
    managed.hear("a", RedispatchQuery(instance_id="a", requests=(WaitingRequest("r", 40, 10**9),)))
    views = [managed.gm.ledger.entries[name].view() for name in ("a", "b")]
    assert [view.prefill_tokens for view in views] == [0, 40]


def test_an_instance_sends_itself_nothing() -> None:
    assert redispatched(cluster(a=16), "a", 4) == {}


def test_what_drains_is_sent_nothing() -> None:
    managed = cluster(a=0, b=12)
    managed.beat("b", free_blocks=12, lendable_blocks=12, state="draining")
    assert redispatched(managed, "a", 4) == {}


def test_a_stranger_promises_nothing_away() -> None:
    managed = cluster(a=0, b=12)
    query = RedispatchQuery(instance_id="a", requests=(WaitingRequest("r", 40),))
    managed.hear("stranger", query)
    assert managed.answers(Redispatch) == []
    assert redispatched(managed, "a", 40) == {"r0": "b"}


def test_memory_is_promised_once_however_much_else_is_free() -> None:
    """What is free there but kept for its own requests is not for others."""
    managed = cluster(a=0, b=12)
    managed.beat("b", free_blocks=16, lendable_blocks=5)
    assert redispatched(managed, "a", 12, 12, 8, 8) == {"r0": "b", "r2": "b"}
    assert redispatched(managed, "a", 4) == {}
    assert managed.candidates("a") == []


def test_nothing_goes_to_a_full_batch() -> None:
    managed = cluster(a=0, b=12, c=5)
    managed.beat("b", free_blocks=12, lendable_blocks=12, running=3, max_num_seqs=4)
    assert redispatched(managed, "a", 4, 4) == {"r0": "b", "r1": "c"}
    assert room(managed, "a", waiting=1) == 4 * 4


def test_a_request_goes_to_no_instance_that_lets_none_be_so_long() -> None:
    managed = cluster(a=0, b=12, c=11)
    managed.join("d", max_model_len=43)
    managed.beat("d", free_blocks=16, lendable_blocks=16)
    assert redispatched(managed, "a", 44) == {"r0": "b"}
    assert redispatched(managed, "a", 43) == {"r0": "d"}
