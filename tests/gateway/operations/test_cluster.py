from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from distkv.client.async_client import AsyncClient
from distkv.client.instances import directory
from distkv.gateway.operations import cluster as cluster_module
from distkv.gateway.operations.cluster import Cluster, Readiness
from distkv.wire.messages.common import Member
from distkv.wire.messages.to_rmanager import StatusQuery
from tests.client.fakes import FakeCluster, FakeGManager, FakeInstance
from tests.control.parts import calls
from tests.gateway.harness import Gateway, error_of, silence, speak, started, until


@asynccontextmanager
async def seen(*addresses: str) -> AsyncIterator[Cluster]:
    async with Cluster([AsyncClient(address) for address in addresses]) as cluster:
        yield cluster


def unused_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"tcp://127.0.0.1:{taken.getsockname()[1]}"


async def test_another_gmanager_is_used_when_one_does_not_answer(checkpoint: Path) -> None:
    fakes = FakeCluster(speak)
    async with started(checkpoint, fakes=fakes, gmanager=f"{unused_address()},{fakes.address}") as gateway:
        assert (await gateway.complete(max_tokens=1)).json()["choices"][0]["text"] == "a "


async def test_another_gmanager_is_used_when_one_knows_nobody() -> None:
    empty, fakes = FakeCluster(), FakeCluster(silence)
    try:
        async with seen(empty.address, fakes.address) as cluster:
            await until(lambda: cluster.ready)
            assert [one.instance_id for one in cluster.ready] == ["i0"]
    finally:
        empty.die()
        fakes.die()


async def test_the_first_gmanager_that_answers_is_used_and_used_again_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Instances keep the list of a dead one's clients up to date: that there is one does not mean that it answers."""
    monkeypatch.setattr(cluster_module, "DOUBT_S", 0.2)
    fakes = FakeCluster(silence)
    first, standby = fakes.gmanager, FakeGManager(fakes.gmanager.members)
    port = int(first.address.rsplit(":", 1)[1])
    try:
        async with seen(first.address, standby.address) as cluster:
            for _ in range(2):
                await until(lambda: cluster.ready and cluster.gmanager == first.address)  # noqa: B023
                first.die()
                await until(lambda: cluster.gmanager == standby.address)
                assert cluster.ready
                first = FakeGManager(fakes.gmanager.members, port)
            await until(lambda: cluster.gmanager == first.address)
            standby.die()
            first.die()
            await until(lambda: cluster.last_state is None)
            assert cluster.ready, "instances serve without a gManager"
    finally:
        first.die()
        standby.die()
        fakes.die()


async def test_the_log_says_which_gmanager_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "FIRST_CONTACT_S", 0.05)
    address = unused_address()
    with capture_logs() as logs:
        async with seen(address) as cluster:
            await until(lambda: cluster.unready == "the cluster does not answer")
            await until(lambda: any(line["event"] == "the cluster does not answer" for line in logs))
    told = [line for line in logs if line["event"] == "the cluster does not answer"]
    said = {address: "nothing listens there"}
    assert [(line["log_level"], line["gmanagers"]) for line in told] == [("warning", said)]


async def test_instances_with_other_tokens_than_the_gateway_serve_nothing(checkpoint: Path) -> None:
    """It would send them ids of tokens that are others to them, and answer with nonsense."""
    fakes = FakeCluster(speak)
    (member,) = fakes.gmanager.members
    with capture_logs() as logs:
        async with started(checkpoint, fakes=fakes) as gateway:
            for vocabulary, status in (("other", 503), ("", 200)):
                fakes.gmanager.members = [msgspec.structs.replace(member, vocabulary=vocabulary)]
                await until(lambda: _answers(gateway, status))  # noqa: B023
                answer = await gateway.complete(max_tokens=1)
                assert answer.status_code == status
                if status == 503:
                    assert "serve another model" in error_of(answer, 503, None, "no_ready_instance")
                    assert "serve another model" in (await gateway.http.get("/health")).text
    told = [line for line in logs if line["event"] == "instances of another model"]
    assert [line["instances"] for line in told] == [("i0",)]


async def _answers(gateway: Gateway, status: int) -> bool:
    return (await gateway.http.get("/health")).status_code == status


async def test_the_longest_request_is_all_of_one_pool_and_what_the_others_lend() -> None:
    fakes = FakeCluster(silence, silence)
    first, second = fakes.gmanager.members
    fakes.gmanager.members = [
        msgspec.structs.replace(first, total_blocks=50, lendable_blocks=40),
        msgspec.structs.replace(second, total_blocks=90, lendable_blocks=85, block_tokens=8),
    ]
    try:
        async with seen(fakes.address) as cluster:
            assert cluster.longest_request == 0
            await until(lambda: len(cluster.ready) == 2)
            assert cluster.longest_request == max(50 * 16 + 85 * 8, 90 * 8 + 40 * 16) + 1
    finally:
        fakes.die()


async def test_statuses_are_asked_once_for_all_who_want_them_at_a_time() -> None:
    fakes = FakeCluster(silence)
    try:
        async with seen(fakes.address) as cluster:
            await until(lambda: cluster.ready)
            await cluster.statuses()
            before = len(fakes.instances[0].of(StatusQuery))
            for _ in range(20):
                assert [one.instance.instance_id for one in await cluster.statuses()] == ["i0"]
            assert len(fakes.instances[0].of(StatusQuery)) <= before + 1
            assert cluster.last_statuses == await cluster.statuses()
    finally:
        fakes.die()


async def test_nothing_is_served_before_as_many_are_ready_as_are_waited_for(checkpoint: Path) -> None:
    """So that the longest request does not grow under the first ones; once they were there, one is enough."""
    fakes = FakeCluster()
    async with started(checkpoint, fakes=fakes, wait_for=2) as gateway:

        async def health() -> tuple[int, dict[str, str]]:
            answer = await gateway.http.get("/health")
            return answer.status_code, answer.json()

        async def says(status: str) -> bool:
            return (await health())[1] == {"status": status}

        await until(lambda: says("0 of 2 instances are ready"))
        for name in ("i0", "i1"):
            assert (await health())[0] == 503 and await _longest(gateway) is None
            said = error_of(await gateway.complete(max_tokens=1), 503, None, "no_ready_instance")
            assert said.endswith("of 2 instances are ready")
            error_of(await gateway.chat(), 503, None, "no_ready_instance")
            fakes.instances.append(FakeInstance(name, speak))
            fakes.gmanager.members.append(fakes.instances[-1].member())
            status = "1 of 2 instances are ready" if name == "i0" else "ok"
            await until(lambda status=status: says(status))
        first, second = fakes.gmanager.members
        assert await _longest(gateway) == (first.total_blocks + second.lendable_blocks) * 16 + 1
        assert (await gateway.complete(max_tokens=1)).status_code == 200
        fakes.gmanager.members = [second]
        await until(lambda: _is_longest(gateway, second.total_blocks * 16 + 1))
        assert await health() == (200, {"status": "ok"})


async def _longest(gateway: Gateway) -> int | None:
    found: int | None = (await gateway.http.get("/v1/models")).json()["data"][0]["max_model_len"]
    return found


async def _is_longest(gateway: Gateway, num_tokens: int) -> bool:
    return await _longest(gateway) == num_tokens


async def test_what_a_request_asks_of_the_cluster_costs_the_same_with_10_and_10_000_members() -> None:
    fakes = FakeCluster(silence)
    template = fakes.gmanager.members[0]
    counted = []
    try:
        for count in (10, 10_000):
            members = [msgspec.structs.replace(template, instance_id=f"i{index}") for index in range(count)]
            async with seen(fakes.address) as cluster:
                await until(lambda: cluster.ready)
                cluster._readiness = Readiness.of(members, {one.instance_id for one in members})
                assert len(cluster.ready) == count and not cluster.unready
                counted.append(calls(lambda: (cluster.longest_request, cluster.longest_lately)))
    finally:
        fakes.die()
    assert counted[0] == counted[1], f"{counted} calls"


def test_nobody_knows_what_an_instance_brings_that_still_loads() -> None:
    one = Member(instance_id="i", incarnation=1, address="tcp://i:1", state="ready", block_tokens=16, total_blocks=10)
    loads = Member(instance_id="j", incarnation=1, address="tcp://j:1", state="starting")
    known = msgspec.structs.replace(loads, total_blocks=10, block_tokens=16)
    assert Readiness.of([one, loads], {"i"}).is_loading
    assert not any(Readiness.of(members, {"i"}).is_loading for members in ([], [one], [one, known]))
    assert Readiness.of([one, loads], {"i"}).longest_request == 161


async def test_who_is_gone_and_listed_may_come_back_also_to_a_gateway_that_began_later(checkpoint: Path) -> None:
    """The instances say so as well; 400 would tell the client that it need not come again."""
    fakes = FakeCluster(speak, silence)
    first, second = fakes.gmanager.members
    fakes.gmanager.members = [first, msgspec.structs.replace(second, state="dead")]
    async with started(checkpoint, fakes=fakes) as gateway:
        own, both = first.total_blocks * 16 + 1, (first.total_blocks + second.lendable_blocks) * 16 + 1
        assert await _longest(gateway) == own
        error_of(await gateway.complete(prompt=[1] * own, max_tokens=None), 503, None, "too_few_instances")
        assert (await gateway.complete(prompt=[1] * own, max_tokens=1)).status_code == 200, "the instance may refuse it"
        error_of(await gateway.complete(prompt=[1] * both, max_tokens=1), 400, None, "context_length_exceeded")


@pytest.mark.parametrize(("settles_in_s", "status"), [(60.0, 503), (0.0, 400)])
async def test_a_prompt_may_come_again_that_others_may_have_room_for_which_have_not_joined_yet(
    checkpoint: Path, settles_in_s: float, status: int
) -> None:
    fakes = FakeCluster(speak)
    fakes.gmanager.settles_in_s = settles_in_s
    async with started(checkpoint, fakes=fakes) as gateway:
        own = fakes.gmanager.members[0].total_blocks * 16 + 1
        code = "too_few_instances" if status == 503 else "context_length_exceeded"
        error_of(await gateway.complete(prompt=[1] * own, max_tokens=None), status, None, code)
        assert (await gateway.complete(max_tokens=1)).status_code == 200, "what fits is served at once"


async def test_how_long_requests_may_be_is_known_also_of_a_cluster_that_was_closed() -> None:
    """A gateway that ends what did not finish in time still answers what it was reading."""
    async with seen(unused_address()) as cluster:
        pass
    assert cluster.longest_lately == 0
