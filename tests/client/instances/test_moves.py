"""Requests that an instance sends elsewhere before they have begun."""

from __future__ import annotations

import pytest

from distkv import AsyncClient, RequestFailed, RequestRefused, SamplingParams
from distkv.client.instances import dispatch
from distkv.wire.messages.to_client import RequestEnded
from distkv.wire.messages.to_rmanager import Submit
from tests.client.fakes import count_up, first_only, refuse
from tests.waiting import soon

FOUR = SamplingParams(max_tokens=4)


def moving_to(name):
    def serve(instance, route, submit):
        if not submit.can_move:
            return count_up(instance, route, submit)
        ended = RequestEnded(request_id=submit.request_id, kind="failed", reason="memory", retryable=True, go_to=name)
        return [ended]

    return serve


async def test_a_request_goes_where_its_instance_says_that_there_is_memory(start_fakes):
    cluster = start_fakes(moving_to("i2"), count_up, count_up)
    async with AsyncClient(cluster.address) as client:
        output = await client.submit("x", FOUR, request_id="mine")
    assert output.token_ids == [0, 1, 2, 3] and output.request_id == "mine"
    first, second, third = ([one.request_id for one in instance.of(Submit)] for instance in cluster.instances)
    assert first == ["mine"] and not second
    assert len(third) == 1 and third[0].startswith("mine~"), "a name that nobody else has there"


async def test_a_request_says_wherever_it_goes_how_long_it_has_waited(start_fakes):
    cluster = start_fakes(moving_to("i1"), moving_to("i0"))
    async with AsyncClient(cluster.address) as client:
        await client.submit("x", FOUR)
    first, third = (one.waited_s for one in cluster.instances[0].of(Submit))
    second, fourth = (one.waited_s for one in cluster.instances[1].of(Submit))
    assert 0 == first < second < third < fourth


async def test_an_instance_that_refuses_what_it_was_sent_does_not_decide_for_the_others(start_fakes):
    cluster = start_fakes(moving_to("i1"), refuse, count_up)
    async with AsyncClient(cluster.address) as client:
        assert (await client.submit("x", FOUR)).token_ids == [0, 1, 2, 3]
    assert len(cluster.instances[1].of(Submit)) == 1


async def test_a_request_that_has_output_is_not_sent_on_when_it_is_refused(start_fakes):
    """As by what its output must be; it was sent on once before it had any."""

    def ending(instance, route, submit):
        ended = RequestEnded(request_id=submit.request_id, kind="refused", reason="structured_output: no")
        return [*first_only(instance, route, submit), ended]

    cluster = start_fakes(moving_to("i1"), ending, count_up)
    async with AsyncClient(cluster.address) as client:
        with pytest.raises(RequestRefused, match="structured_output: no"):
            await client.submit("x", FOUR)
    assert cluster.instances[2].of(Submit) == []


async def test_a_client_that_was_not_heard_for_a_while_sends_again_what_had_no_output(start_fakes):
    """It was stopped: its instance gave up its requests, and each failed with 503."""

    def not_heard(instance, route, submit):
        name = submit.request_id
        ended = RequestEnded(request_id=name, kind="failed", reason="not heard", retryable=True, go_to="i0")
        return [ended] if name == "mine" else count_up(instance, route, submit)

    cluster = start_fakes(not_heard)
    async with AsyncClient(cluster.address) as client:
        assert (await client.submit("x", FOUR, request_id="mine")).token_ids == [0, 1, 2, 3]
    first, second = (one.request_id for one in cluster.instances[0].of(Submit))
    assert first == "mine" and second.startswith("mine~")


async def test_a_client_that_is_never_heard_is_told_so_in_the_end(start_fakes):
    """As behind a link where its signs of life wait for longer; it sent each request again and again, for ever."""

    def never_heard(instance, route, submit):
        name = submit.request_id
        return [RequestEnded(request_id=name, kind="failed", reason="not heard", retryable=True, go_to="i0")]

    cluster = start_fakes(never_heard)
    async with AsyncClient(cluster.address) as client:
        with pytest.raises(RequestFailed, match="i0: not heard"):
            await soon(client.submit("x", FOUR))
    assert len(cluster.instances[0].of(Submit)) == dispatch.MAX_MOVES + 1


async def test_instances_that_send_each_other_a_request_keep_it_in_the_end(start_fakes):
    cluster = start_fakes(moving_to("i1"), moving_to("i0"))
    async with AsyncClient(cluster.address) as client:
        output = await client.submit("x", FOUR)
    assert output.token_ids == [0, 1, 2, 3]
    sent = sum(len(one.of(Submit)) for one in cluster.instances)
    assert sent == dispatch.MAX_MOVES + 1


async def test_a_request_that_is_to_go_to_an_unknown_instance_is_dispatched_again(start_fakes):
    cluster = start_fakes(moving_to("i9"), count_up)
    async with AsyncClient(cluster.address) as client:
        output = await client.submit("x", FOUR)
    assert output.token_ids == [0, 1, 2, 3]


async def test_a_request_stays_at_the_instance_that_the_user_named(start_fakes):
    cluster = start_fakes(moving_to("i1"), count_up)
    async with AsyncClient(cluster.instances[0].address) as client:
        output = await client.submit("x", FOUR)
    assert output.token_ids == [0, 1, 2, 3]
    assert [len(one.of(Submit)) for one in cluster.instances] == [1, 0]
