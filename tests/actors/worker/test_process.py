"""The worker process, driven over its pipe: commands in, results out, and its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import xxhash

from distkv.actors.instance.worker_group import WorkerGroup
from distkv.actors.instance.worker_rank import WorkerGone
from distkv.actors.task_scope import task_scope
from distkv.checksums import pack, unpack
from distkv.config import InstanceConfig, build
from distkv.errors import StartupFailed
from distkv.wire.envelope_factory import EnvelopeFactory
from distkv.wire.messages import from_worker as fw
from distkv.wire.messages import to_worker as tw
from distkv.wire.messages.common import Epoch, Run, SpanRef
from tests.checkpoints import prompt_ids, reference_greedy, variant
from tests.token_ids import packed

pytestmark = pytest.mark.asyncio(loop_scope="module")
DEADLINE_S = 60.0
BLOCK = 16
GREEDY = tw.Sampling(temperature=0.0, top_k=0, top_p=1.0, seed=0)


class Worker:
    def __init__(self, group: WorkerGroup, ready: fw.WorkerReady, model: Path) -> None:
        self.group, self.ready, self.model = group, ready, model

    async def ask(self, command: Any, cause: str = "why") -> Any:
        """What the worker answers to one command."""
        self.group.send(command, cause)
        return (await asyncio.wait_for(self.group.recv(), DEADLINE_S)).body


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Worker]:
    """Shared by the tests here, each of which has slots of its own; the last one ends it."""
    model = variant(tmp_path_factory.mktemp("worker"), "llama", text_for_tokenizer=None)
    config = build(InstanceConfig, {"model": str(model), "dtype": "float32", "kv_tokens": 8 * BLOCK, "threads": 1})
    async with await WorkerGroup.start(config, 1, EnvelopeFactory("a")) as group:
        yield Worker(group, await asyncio.wait_for(group.wait_ready(), DEADLINE_S), model)


def step(ids: list[int], first_slot: int, step_id: int = 1) -> tw.Step:
    blocks = -(-len(ids) // BLOCK)
    seq = tw.SeqStep(
        request_id="r", version=0, attempt=0, start=0, end=len(ids), tokens=packed(*ids),
        local=(Run(first_block=0, first_slot=first_slot, num_blocks=blocks),), sample=GREEDY,
    )  # fmt: skip
    return tw.Step(step_id=step_id, seqs=(seq,))


async def test_it_is_ready_and_computes(worker: Worker) -> None:
    assert (worker.ready.pid, worker.ready.num_slots, worker.ready.block_tokens) == (worker.group.pid, 8, BLOCK)
    ids = prompt_ids(40)
    result = await worker.ask(step(ids, 0))
    assert isinstance(result, fw.StepResult) and result.step_id == 1 and result.compute_s > 0
    assert [(one.status, one.token) for one in result.results] == [("ok", reference_greedy(worker.model, ids, 1)[0])]
    stats = await worker.ask(tw.StatsQuery(query_id=9))
    assert (stats.query_id, stats.counters.steps) == (9, 1)


async def test_checksums_are_those_of_the_slots_and_a_computed_one_differs(worker: Worker) -> None:
    empty = xxhash.xxh3_64_intdigest(bytes(worker.ready.data.slot_bytes))
    assert await worker.ask(tw.Checksum(checksum_id=1, slots=(6, 7))) == fw.Checksummed(
        checksum_id=1, checksums=pack((empty, empty))
    )
    await worker.ask(step(prompt_ids(BLOCK), 6, step_id=2))
    after = await worker.ask(tw.Checksum(checksum_id=2, slots=(6, 7)))
    computed, untouched = unpack(after.checksums)
    assert computed != empty and untouched == empty


async def test_a_span_without_readers_is_revoked_at_once_and_a_pull_into_it_fails(worker: Worker) -> None:
    span = SpanRef(span_id="s", epoch=Epoch(1, 1))
    worker.group.send(tw.Grant(span=span, slots=(4,)), "")
    assert await worker.ask(tw.Revoke(span=span)) == fw.Revoked(span=span)
    pull = tw.Pull(
        pull_id=5, source_id="b", source_incarnation=1, source_slots=(0,), slots=(4,), checksums=pack([1]), span=span
    )
    assert await worker.ask(pull) == fw.Pulled(pull_id=5, problem="the span is gone")
    stranger = await worker.ask(
        tw.Pull(**{name: getattr(pull, name) for name in pull.__struct_fields__} | {"span": None})
    )
    assert stranger.pull_id == 5 and "no live member" in stranger.problem


async def test_its_end_is_noticed(worker: Worker) -> None:
    with pytest.raises(WorkerGone, match="the engine worker is gone: it exited with code 0"):
        async with asyncio.timeout(DEADLINE_S), task_scope() as tasks:
            worker.group.watch(tasks)
            worker.group.send(tw.Shutdown(), "")
            await asyncio.Event().wait()


async def test_what_is_wrong_with_a_checkpoint_is_a_sentence(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Where the worker found it out is of no use to who has to mend it."""
    model = variant(tmp_path, "llama", text_for_tokenizer=None)
    (model / "model.safetensors").write_bytes(b"no weights")
    config = build(InstanceConfig, {"model": str(model), "kv_tokens": 8 * BLOCK, "threads": 1})
    async with await WorkerGroup.start(config, 1, EnvelopeFactory("a")) as group:
        with pytest.raises(StartupFailed, match="cannot be read as safetensors"):
            await asyncio.wait_for(group.wait_ready(), DEADLINE_S)
    said = "".join(capfd.readouterr())
    assert "worker failed" in said and "Traceback" not in said
