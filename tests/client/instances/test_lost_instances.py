"""AsyncClient: instances that are lost, drain or say nothing, and gManagers that are gone or know nobody yet."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from distkv import (
    AsyncClient,
    ClusterUnreachable,
    ConfigError,
    NoInstanceReady,
    RequestFailed,
    SamplingParams,
)
from distkv.client.instances import connection, directory
from distkv.wire.messages.to_client import RequestEnded
from distkv.wire.messages.to_gmanager import MAX_NAMES, Locate, MembersQuery
from distkv.wire.messages.to_rmanager import Cancel, KeepAlive, Members, Submit
from tests.client.fakes import FakeGManager, count_up, first_only, nothing

FOUR = SamplingParams(max_tokens=4)
UNUSED = "tcp://127.0.0.1:9"


async def test_closing_the_client_does_not_send_a_request_elsewhere(start_fakes):
    cluster = start_fakes(nothing, nothing)
    async with AsyncClient(cluster.address) as client:
        task = asyncio.create_task(client.submit("x", FOUR))
        await cluster.instances[0].wait_for(Submit)
    with pytest.raises(RequestFailed, match="closed by this client"):
        await task
    assert cluster.instances[1].of(Submit) == []


async def test_a_cluster_without_instances_is_said_to_have_none_once(start_fakes):
    cluster = start_fakes(count_up)
    cluster.gmanager.members = []
    async with AsyncClient(cluster.address) as client:
        with pytest.raises(NoInstanceReady) as caught:
            await client.submit("x", FOUR)
    assert caught.value.retryable and caught.value.reason == "no instance is ready"


async def test_an_instance_just_lost_is_not_tried_first_again(start_fakes):
    cluster = start_fakes(count_up, count_up)
    async with AsyncClient(cluster.address) as client:
        await client.submit("x", FOUR)
        cluster.instances[0].die()
        await client.submit("x", FOUR)
        await client.submit("x", FOUR)
    assert cluster.gmanager.of(Locate)[-1].exclude == ("i0",)
    assert len(cluster.instances[1].of(Submit)) == 2


async def test_of_many_instances_just_lost_those_lost_last_are_named(start_fakes):
    cluster = start_fakes(count_up)
    async with AsyncClient(cluster.address) as client:
        await client.submit("x", FOUR)
        for number in range(2 * MAX_NAMES):
            client._open().suspect(f"lost{number}")
        await client.submit("x", FOUR)
    assert set(cluster.gmanager.of(Locate)[-1].exclude) == {f"lost{n}" for n in range(MAX_NAMES, 2 * MAX_NAMES)}


async def test_an_instance_that_dies_after_a_token_fails_the_request_as_retryable(start_fakes):
    cluster = start_fakes(first_only)
    async with AsyncClient(cluster.address) as client:
        stream = client.stream("x", FOUR)
        await anext(stream)
        cluster.instances[0].die()
        with pytest.raises(RequestFailed, match="instance i0") as caught:
            await anext(stream)
    assert caught.value.retryable


async def test_an_instance_that_dies_before_a_token_is_replaced(start_fakes):
    cluster = start_fakes(nothing)
    other = start_fakes()
    async with AsyncClient(cluster.address) as client:
        task = asyncio.create_task(client.submit("x", FOUR, request_id="r"))
        await cluster.instances[0].wait_for(Submit)
        cluster.gmanager.members.append(msgspec.structs.replace(other.instances[0].member(), instance_id="i9"))
        cluster.instances[0].die()
        output = await task
    assert (output.request_id, output.text) == ("r", "0 1 2 3 ")
    (again,) = [body for body in cluster.gmanager.of(Locate) if body.exclude]
    assert again.exclude == ("i0",)


async def test_a_draining_instance_is_left_for_another(start_fakes):
    def draining(instance, route, submit):
        return [RequestEnded(request_id=submit.request_id, kind="failed", reason="it drains", retryable=True)]

    cluster = start_fakes(draining, count_up)
    async with AsyncClient(cluster.address) as client:
        assert (await client.submit("x", FOUR)).text == "0 1 2 3 "


async def test_when_every_instance_drains_the_reason_of_one_is_told(start_fakes):
    def draining(instance, route, submit):
        return [RequestEnded(request_id=submit.request_id, kind="failed", reason="it drains", retryable=True)]

    cluster = start_fakes(draining, draining)
    async with AsyncClient(cluster.address) as client:
        with pytest.raises(RequestFailed, match="i1: it drains") as caught:
            await client.submit("x", FOUR)
    assert caught.value.retryable
    assert all(len(one.of(Submit)) == 1 for one in cluster.instances)


async def test_requests_go_on_without_a_gmanager(start_fakes):
    cluster = start_fakes()
    async with AsyncClient(cluster.address) as client:
        await client.submit("x", FOUR)
        cluster.gmanager.die()
        for _ in range(3):
            assert (await client.submit("x", FOUR)).text == "0 1 2 3 "
        assert (await client.status())["instances"][0]["state"] == "ready"


async def forgetful_gmanager(port: int) -> FakeGManager:
    """One without members, at the port of one that just died, which ZeroMQ gives back a moment later."""
    async with asyncio.timeout(20):
        while True:
            try:
                return FakeGManager([], port)
            except ConfigError:
                await asyncio.sleep(0.01)


async def test_a_restarted_gmanager_that_knows_nobody_yet_changes_nothing(start_fakes):
    cluster = start_fakes()
    port = int(cluster.address.rpartition(":")[2])
    async with AsyncClient(cluster.address) as client:
        await client.submit("x", FOUR)
        cluster.gmanager.die()
        cluster.gmanager = await forgetful_gmanager(port)
        await cluster.gmanager.wait_for(object)
        assert (await client.submit("x", FOUR)).text == "0 1 2 3 "
        assert [member.instance_id for member in await client.members()] == ["i0"]


class HalfHeardGManager(FakeGManager):
    """After its first answer, the whole list comes in parts, of which only the first arrives."""

    def answers(self, route, body):
        if not isinstance(body, MembersQuery):
            return super().answers(route, body)
        if not self.of(MembersQuery):
            return [Members(version=2, incarnation=1, members=tuple(self.members))]
        return [Members(version=1, incarnation=2, members=tuple(self.members[:1]), more=True, newest=2)]


async def test_no_instance_is_missing_while_a_list_comes_in_parts(start_fakes, monkeypatch):
    monkeypatch.setattr(directory, "ANSWER_S", 0.5)
    gmanager = HalfHeardGManager([one.member() for one in start_fakes(count_up, count_up).instances])
    async with AsyncClient(gmanager.address) as client:
        assert len(await client.members()) == 2
        assert [member.instance_id for member in await client.members()] == ["i0", "i1"]
        assert len(gmanager.of(MembersQuery)) > 1 and not client.address_answers
    gmanager.die()


async def test_nobody_answers(monkeypatch):
    monkeypatch.setattr(directory, "FIRST_CONTACT_S", 0.05)
    async with AsyncClient(UNUSED) as client:
        with pytest.raises(ClusterUnreachable, match=UNUSED):
            await client.submit("x")
        with pytest.raises(ClusterUnreachable):
            await client.status()


async def test_an_unreachable_instance_is_told_by_name(start_fakes, monkeypatch):
    cluster = start_fakes()
    cluster.instances[0].die()
    async with AsyncClient(cluster.address) as client:
        with pytest.raises(RequestFailed, match="instance i0 at tcp") as caught:
            await client.submit("x", FOUR)
    assert caught.value.retryable


async def test_live_requests_are_kept_alive(start_fakes, monkeypatch):
    monkeypatch.setattr(directory, "REFRESH_S", 0.02)
    cluster = start_fakes(count_up)
    async with AsyncClient(cluster.address) as client:
        await client.submit("x", FOUR)
        await cluster.gmanager.wait_for(MembersQuery, 3)
        assert cluster.instances[0].of(KeepAlive) == []
        cluster.instances[0].serve = first_only
        stream = client.stream("x", FOUR)
        await anext(stream)
        await cluster.instances[0].wait_for(KeepAlive, 3)
        await stream.aclose()
        await cluster.instances[0].wait_for(Cancel)
        kept = len(cluster.instances[0].of(KeepAlive))
        await cluster.gmanager.wait_for(MembersQuery, len(cluster.gmanager.of(MembersQuery)) + 3)
        assert len(cluster.instances[0].of(KeepAlive)) <= kept + 1


async def test_a_silent_instance_is_given_up(start_fakes, monkeypatch):
    monkeypatch.setattr(directory, "REFRESH_S", 0.02)
    cluster = start_fakes(first_only)
    async with AsyncClient(cluster.address) as client:
        stream = client.stream("x", FOUR)
        await anext(stream)
        monkeypatch.setattr(connection, "SILENCE_S", 0.1)
        cluster.instances[0].answers = lambda route, body: []
        with pytest.raises(RequestFailed, match="silent"):
            await anext(stream)
