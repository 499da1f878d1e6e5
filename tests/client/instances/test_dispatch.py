"""How often and how soon a request is sent to another instance."""

from __future__ import annotations

import asyncio
import time

import msgspec
import pytest

from distkv import AsyncClient, RequestFailed, RequestRefused, SamplingParams
from distkv.client.instances import dispatch
from distkv.client.instances.connection import Connection
from distkv.client.instances.directory import LONG_PROMPT_BYTES
from distkv.client.prompts import TokenIds, check_prompt
from distkv.wire.codec import MAX_MESSAGE_BYTES
from distkv.wire.messages.common import MAX_REASON
from distkv.wire.messages.to_client import RequestEnded, TokenChunk
from distkv.wire.messages.to_rmanager import Cancel, Submit
from tests.client.fakes import count_up, first_only
from tests.token_ids import prompt_of

FOUR = SamplingParams(max_tokens=4)


def overloaded(instance, route, submit):
    return [RequestEnded(request_id=submit.request_id, kind="failed", reason="too full", retryable=True)]


async def test_a_request_is_sent_to_no_more_than_so_many_instances(start_fakes):
    cluster = start_fakes(*[overloaded] * (dispatch.MAX_DISPATCHES + 2))
    async with AsyncClient(cluster.address) as client:
        with pytest.raises(RequestFailed, match="too full") as caught:
            await client.submit("x", FOUR)
    assert caught.value.retryable
    sent = [len(one.of(Submit)) for one in cluster.instances]
    assert sent == [1] * dispatch.MAX_DISPATCHES + [0, 0]


async def test_every_instance_gets_an_id_of_its_own_and_the_user_the_one_that_was_given(start_fakes):
    cluster = start_fakes(overloaded, overloaded, count_up)
    async with AsyncClient(cluster.address) as client:
        output = await client.submit("x", FOUR, request_id="mine")
    assert output.request_id == "mine"
    names = [one.of(Submit)[0].request_id for one in cluster.instances]
    assert names[0] == "mine" and len(set(names)) == 3
    assert all(name.partition("~")[0] == "mine" for name in names)


async def test_the_id_of_another_try_is_nobody_elses(start_fakes):
    """A user may choose any id, such as one that looks like a second try's."""
    cluster = start_fakes(overloaded, first_only)
    async with AsyncClient(cluster.address) as client:
        cluster.instances[0].serve = first_only
        others = client.stream("x", FOUR, request_id="mine~1")
        await anext(others)
        cluster.instances[0].serve = overloaded
        stream = client.stream("x", FOUR, request_id="mine")
        assert (await anext(stream)).request_id == "mine"
        names = [body.request_id for one in cluster.instances for body in one.of(Submit)]
        assert len(set(names)) == 3
        await stream.aclose()
        await others.aclose()


def up_to(num_tokens):
    """An instance that was given a max_model_len."""

    def serve(instance, route, submit):
        needed = len(prompt_of(submit)) + submit.params.max_tokens
        if needed <= num_tokens:
            return count_up(instance, route, submit)
        facts = {"needed_tokens": needed, "pool_tokens": num_tokens}
        return [RequestEnded(request_id=submit.request_id, kind="refused", reason="too long", **facts)]

    return serve


def limited(cluster, *most):
    """Members that say what they take, to all."""
    members = [
        msgspec.structs.replace(one.member(), max_model_len=limit)
        for one, limit in zip(cluster.instances, most, strict=True)
    ]
    cluster.gmanager.members = members
    for one in cluster.instances:
        one.peers = members


async def test_what_is_too_long_for_one_instance_goes_to_one_that_takes_it(start_fakes):
    """Also where a gManager sends it to the wrong one, for it does not know how many tokens a text has."""
    cluster = start_fakes(up_to(30), up_to(20), up_to(100))
    limited(cluster, 30, 20, 0)
    async with AsyncClient(cluster.address) as client:
        assert (await client.submit([1] * 40, FOUR)).token_ids == [0, 1, 2, 3]
        assert [len(one.of(Submit)) for one in cluster.instances] == [1, 0, 1]
        assert (await client.submit([1] * 9, FOUR)).token_ids == [0, 1, 2, 3]
        assert [len(one.of(Submit)) for one in cluster.instances] == [2, 0, 1]


async def test_where_no_gmanager_answers_a_request_goes_to_an_instance_that_takes_it(start_fakes):
    cluster = start_fakes(up_to(30), up_to(100))
    limited(cluster, 30, 100)
    async with AsyncClient(cluster.address) as client:
        await client.members()
        cluster.gmanager.die()
        assert (await client.submit([1] * 40, FOUR)).token_ids == [0, 1, 2, 3]
    assert [len(one.of(Submit)) for one in cluster.instances] == [0, 1]


async def test_what_is_too_long_for_all_is_refused_by_the_first(start_fakes):
    cluster = start_fakes(up_to(30), up_to(40))
    limited(cluster, 30, 40)
    async with AsyncClient(cluster.address) as client:
        with pytest.raises(RequestRefused, match="too long") as caught:
            await client.submit([1] * 40, FOUR)
    assert (caught.value.needed_tokens, caught.value.pool_tokens) == (44, 30)
    assert [len(one.of(Submit)) for one in cluster.instances] == [1, 0]


async def test_a_refusal_by_an_instance_that_is_said_to_take_it_counts_for_all(start_fakes):
    """The member list is not what the cluster is, then."""
    cluster = start_fakes(up_to(20), up_to(30), up_to(100))
    limited(cluster, 20, 0, 0)
    async with AsyncClient(cluster.address) as client:
        with pytest.raises(RequestRefused, match="too long") as caught:
            await client.submit([1] * 40, FOUR)
    assert caught.value.pool_tokens == 30
    assert [len(one.of(Submit)) for one in cluster.instances] == [1, 1, 0]


async def test_all_tries_together_have_the_time_that_was_given(start_fakes):
    cluster = start_fakes(overloaded, overloaded, overloaded, count_up)
    async with AsyncClient(cluster.address) as client:
        await client.submit("x", FOUR, timeout_s=30.0)
    timeouts = [one.of(Submit)[0].timeout_s for one in cluster.instances]
    assert 30.0 >= timeouts[0] > timeouts[1] > timeouts[2] > timeouts[3] > 20.0


async def test_a_request_whose_time_is_over_is_not_tried_again(start_fakes):
    def late(instance, route, submit):
        time.sleep(submit.timeout_s)  # all the time that it has
        return overloaded(instance, route, submit)

    cluster = start_fakes(late, count_up)
    async with AsyncClient(cluster.address) as client:
        await client.members()
        with pytest.raises(RequestFailed, match="i0: too full"):
            await client.submit("x", FOUR, timeout_s=0.5)
    assert cluster.instances[1].of(Submit) == []


async def test_a_request_that_fits_no_message_is_refused_here_and_harms_nobody(start_fakes):
    cluster = start_fakes(first_only, count_up)
    too_long = SamplingParams(max_tokens=4)
    msgspec.structs.force_setattr(too_long, "stop", ("x" * MAX_MESSAGE_BYTES,))
    async with AsyncClient(cluster.address) as client:
        others = client.stream("x", FOUR)
        await anext(others)
        with pytest.raises(RequestRefused, match="does not fit a message: a frame of"):
            await client.submit("x", too_long)
        await client.status()
        assert [len(one.of(Submit)) for one in cluster.instances] == [1, 0]
        (connection,) = [c for c in client._open()._connections.values() if c.live_requests]
        assert connection.lost is None
        await others.aclose()


async def test_a_request_that_an_instance_cannot_read_fails_alone(start_fakes):
    cluster = start_fakes(first_only, count_up)
    poison = SamplingParams(max_tokens=4)
    msgspec.structs.force_setattr(poison, "top_p", 7.0)
    async with AsyncClient(cluster.address) as client:
        others = client.stream("x", FOUR)
        await anext(others)
        with pytest.raises(RequestFailed, match=r"i0: it refused what this client sent: malformed message: .*top_p"):
            await client.submit("x", poison)
        assert [len(one.of(Submit)) for one in cluster.instances] == [1, 0], "it poisons no other instance"
        (connection,) = [c for c in client._open()._connections.values() if c.live_requests]
        assert connection.lost is None
        await others.aclose()


async def test_a_reason_is_cut_where_it_comes_in(start_fakes):
    def wordy(instance, route, submit):
        return [RequestEnded(request_id=submit.request_id, kind="failed", reason="w" * 10**6)]

    cluster = start_fakes(wordy)
    async with AsyncClient(cluster.address) as client:
        with pytest.raises(RequestFailed) as caught:
            await client.submit("x", FOUR)
    assert len(caught.value.reason) <= MAX_REASON + len("i0: ")


@pytest.mark.parametrize("address", ["nonsense", "tcp://a b:1"])
async def test_an_instance_whose_address_is_none_is_left(start_fakes, address):
    cluster = start_fakes(count_up, count_up)
    first, *others = cluster.gmanager.members
    cluster.gmanager.members = [msgspec.structs.replace(first, address=address), *others]
    async with AsyncClient(cluster.address) as client:
        assert (await client.submit("x", FOUR)).text == "0 1 2 3 "
    cluster.gmanager.members = cluster.gmanager.members[:1]
    async with AsyncClient(cluster.address) as client:
        with pytest.raises(RequestFailed, match="instance i0 at") as caught:
            await client.submit("x", FOUR)
    assert caught.value.retryable
    assert [len(one.of(Submit)) for one in cluster.instances] == [0, 1]


async def test_an_instance_that_fails_late_and_is_ready_did_try(start_fakes, monkeypatch):
    """A request that it could not serve after some time would fare no better elsewhere."""
    monkeypatch.setattr(dispatch, "AT_ONCE_S", 0.0)
    cluster = start_fakes(overloaded, count_up)
    async with AsyncClient(cluster.address) as client:
        with pytest.raises(RequestFailed, match="i0: too full"):
            await client.submit("x", FOUR)
    assert cluster.instances[1].of(Submit) == []


async def test_an_instance_that_drains_is_left_before_the_member_list_says_so(start_fakes, monkeypatch):
    """What had waited there for a second failed, if its client heard of the drain before the gManager did."""
    monkeypatch.setattr(dispatch, "AT_ONCE_S", 0.0)

    def drains(instance, route, submit):
        return [RequestEnded(submit.request_id, "failed", "it drains", retryable=True, is_draining=True)]

    cluster = start_fakes(drains, count_up)
    async with AsyncClient(cluster.address) as client:
        assert (await client.submit("x", FOUR)).text == "0 1 2 3 "
    assert [len(one.of(Submit)) for one in cluster.instances] == [1, 1]


async def test_an_instance_that_fails_late_and_is_not_ready_is_left(start_fakes, monkeypatch):
    monkeypatch.setattr(dispatch, "AT_ONCE_S", 0.0)
    cluster = start_fakes()

    def drains(instance, route, submit):
        first, *others = cluster.gmanager.members
        cluster.gmanager.members = [msgspec.structs.replace(first, state="draining"), *others]
        return overloaded(instance, route, submit)

    cluster.instances[0].serve = drains
    other = start_fakes().instances[0]
    cluster.gmanager.members.append(msgspec.structs.replace(other.member(), instance_id="i9"))
    async with AsyncClient(cluster.address) as client:
        assert (await client.submit("x", FOUR)).text == "0 1 2 3 "
    assert len(other.of(Submit)) == 1


async def test_of_several_failures_the_one_that_says_what_fits_is_raised(start_fakes):
    def short(instance, route, submit):
        return [RequestEnded(submit.request_id, "failed", "one is gone", retryable=True, pool_tokens=100)]

    cluster = start_fakes(short, overloaded)
    async with AsyncClient(cluster.address) as client:
        with pytest.raises(RequestFailed, match="i0: one is gone") as caught:
            await client.submit("x", FOUR)
    assert caught.value.pool_tokens == 100
    assert [len(one.of(Submit)) for one in cluster.instances] == [1, 1]


async def test_a_request_that_cannot_be_tried_again_is_not(start_fakes):
    def fail(instance, route, submit):
        return [RequestEnded(request_id=submit.request_id, kind="failed", reason="a bug", retryable=False)]

    cluster = start_fakes(fail, count_up)
    async with AsyncClient(cluster.address) as client:
        with pytest.raises(RequestFailed, match="a bug") as caught:
            await client.submit("x", FOUR)
    assert not caught.value.retryable and cluster.instances[1].of(Submit) == []


async def test_a_request_that_ended_is_not_cancelled_and_one_that_is_left_is_once(start_fakes):
    cluster = start_fakes(count_up)
    async with AsyncClient(cluster.address) as client:
        async for _ in client.stream("x", FOUR):
            pass
        cluster.instances[0].serve = first_only
        stream = client.stream("x", FOUR, request_id="left")
        await anext(stream)
        await stream.aclose()
        await cluster.instances[0].wait_for(Cancel)
        await client.status()  # whatever else it sent came before this answer
    assert [body.request_id for body in cluster.instances[0].of(Cancel)] == ["left"]


async def test_chunks_of_a_request_that_was_left_reach_nobody(start_fakes):
    cluster = start_fakes(first_only)
    routes = []

    def note_route(instance, route, submit):
        routes.append(route)
        return first_only(instance, route, submit)

    cluster.instances[0].serve = note_route
    async with AsyncClient(cluster.address) as client:
        stream = client.stream("x", FOUR, request_id="same")
        await anext(stream)
        await stream.aclose()
        late = TokenChunk(request_id="same", token_ids=(9,), text="late")
        cluster.instances[0].say(routes[0], late)
        await client.status()
        cluster.instances[0].serve = count_up
        assert (await client.submit("x", FOUR, request_id="same")).text == "0 1 2 3 "


async def test_long_prompts_are_encoded_one_in_a_turn_of_the_event_loop(start_fakes, monkeypatch):
    """Those of the choices of one request are located together; encoding each takes milliseconds."""
    loop = asyncio.get_running_loop()
    together, most_together, sent = 0, 0, 0
    submit = Connection.submit

    def end_turn():
        nonlocal together
        together = 0

    def noting(self: Connection, *what):
        nonlocal together, most_together, sent
        together, sent = together + 1, sent + 1
        most_together = max(most_together, together)
        loop.call_soon(end_turn)  # in the next turn, before whatever this one makes ready later
        return submit(self, *what)

    cluster = start_fakes(count_up)
    async with AsyncClient(cluster.address) as client:
        await client.submit("x", FOUR)
        monkeypatch.setattr(Connection, "submit", noting)
        await asyncio.gather(*(client.submit(TokenIds([1] * LONG_PROMPT_BYTES), FOUR) for _ in range(16)))
    assert (sent, most_together) == (16, 1)


def test_ids_that_were_checked_are_taken_as_they_are():
    ids = TokenIds([1, 2])
    assert check_prompt(ids) is ids and (list(ids), ids[-1], list(ids[1:])) == ([1, 2], 2, [2])
    numbers = list(range(7))
    for part in (slice(None, None, -1), slice(5, 1, -2), slice(1, 6, 3), slice(-3, None), slice(4, 4), slice(2, 5, -1)):
        assert list(TokenIds(numbers)[part]) == numbers[part]
