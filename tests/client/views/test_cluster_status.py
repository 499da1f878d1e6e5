from __future__ import annotations

import json

import msgspec
import pytest

from distkv import AsyncClient
from tests.client.fakes import TOTAL_BLOCKS, count_up

INSTANCE_KEYS = {
    "instance_id",
    "state",
    "pid",
    "worker_pid",
    "block_tokens",
    "computes",
    "blocks",
    "borrowed_blocks",
    "running",
    "waiting",
    "counters",
    "serve_fraction",
}
COUNTER_KEYS = {"attend_queries", "query_bytes", "kv_bytes", "recomputed_tokens"}


async def test_the_shape_of_status(start_fakes):
    cluster = start_fakes(count_up, count_up)
    async with AsyncClient(cluster.address) as client:
        status = await client.status()
    assert json.loads(json.dumps(status)) == status
    assert set(status) == {"instances", "requests", "cluster"}
    assert status["cluster"]["debts"] == [{"debtor_id": "i0", "creditor_id": "i1", "num_blocks": 5}]
    assert [one["instance_id"] for one in status["instances"]] == ["i0", "i1"]
    for one in status["instances"]:
        assert set(one) == INSTANCE_KEYS
        assert set(one["counters"]) == COUNTER_KEYS
        blocks = one["blocks"]
        assert blocks["total"] == blocks["free"] + blocks["local"] + blocks["lent"] + blocks["reserved"]
    assert status["requests"][1] == {
        "request_id": "i1-r",
        "instance_id": "i1",
        "num_tokens": 32,
        "remote_share": 0.0,
        "spans": [{"instance_id": "i1", "first_token": 0, "num_tokens": 32}],
    }


async def test_an_instance_that_does_not_answer_keeps_its_last_numbers(start_fakes):
    cluster = start_fakes(count_up, count_up)
    async with AsyncClient(cluster.address) as client:
        before = (await client.status())["instances"][1]
        cluster.instances[1].die()
        status = await client.status()
    alive, silent = status["instances"]
    assert (alive["state"], silent["state"]) == ("ready", "unreachable")
    assert silent["blocks"] == before["blocks"]
    assert set(silent["counters"].values()) == {0}
    assert [request["instance_id"] for request in status["requests"]] == ["i0"]


@pytest.mark.parametrize("address", ["nonsense", "tcp://a b:1"])
async def test_an_instance_whose_address_is_none_is_unreachable(start_fakes, address):
    cluster = start_fakes(count_up, count_up)
    first, *others = cluster.gmanager.members
    cluster.gmanager.members = [msgspec.structs.replace(first, address=address), *others]
    async with AsyncClient(cluster.address) as client:
        status = await client.status()
    assert [one["state"] for one in status["instances"]] == ["unreachable", "ready"]


async def test_an_instance_that_was_drained_has_left_and_holds_nothing(start_fakes):
    cluster = start_fakes(count_up)
    gone = msgspec.structs.replace(cluster.instances[0].member(), state="dead", left=True)
    async with AsyncClient(cluster.address) as client:
        await client.status()
        cluster.gmanager.members = [gone]
        (instance,) = (await client.status())["instances"]
    assert (instance["state"], instance["running"], instance["blocks"]["total"]) == ("left", 0, 0)


async def test_a_dead_instance_is_dead_and_its_blocks_add_up(start_fakes):
    cluster = start_fakes(count_up)
    cluster.gmanager.members = [msgspec.structs.replace(cluster.instances[0].member(), state="dead")]
    async with AsyncClient(cluster.address) as client:
        (instance,) = (await client.status())["instances"]
    assert instance["state"] == "dead"
    assert instance["blocks"] == {"total": TOTAL_BLOCKS, "free": TOTAL_BLOCKS - 4, "local": 4, "lent": 0, "reserved": 0}
