"""A prefill chunk over keys at another worker, by real links: fetching gives what shipping does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from distkv.actors.worker.links.peer_links import PeerLinks
from distkv.engine.device.pool import KvPool
from distkv.engine.model.decoder import Model
from distkv.engine.step.runner import StepRunner
from distkv.types import PrefillKv, Transport
from distkv.wire.messages.common import Run
from distkv.wire.messages.from_worker import SeqResult
from distkv.wire.messages.to_worker import RemoteSpan, Sampling, SeqStep, Step
from tests.actors.links import BLOCK, DEADLINE_S, Worker, close_links, identity, span
from tests.checkpoints import prompt_ids, variant
from tests.token_ids import packed
from tests.waiting import wait_until

GREEDY = Sampling(temperature=0.0, top_k=0, top_p=1.0, seed=0, logprobs=4)
IDS = prompt_ids(40)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model.load(variant(tmp_path_factory.mktemp("checkpoint"), "llama", text_for_tokenizer=None), "float32")


@pytest.fixture(params=["inproc", "shm", "tcp"])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def creditor(model: Model, transport: str) -> Iterator[Worker]:
    worker = Worker("creditor", model.config, address=None if transport == "inproc" else "127.0.0.1:0")
    worker.registry.grant(span("s"), (5, 2, 7))
    with worker.serves():
        yield worker
    worker.close()


def chunk(model: Model, creditor: Worker, transport: str, way: PrefillKv) -> tuple[SeqResult, StepRunner]:
    """Positions 12 to 20 behind three blocks at the creditor."""
    forced: Transport = "auto" if transport == "inproc" else transport  # type: ignore[assignment]
    links = PeerLinks(identity(f"asker-{way}"), creditor.memory.slot_bytes, DEADLINE_S, forced)
    links.update((creditor.member,))
    wait_until(lambda: links.fetch_link("creditor"))
    runner = StepRunner(model, KvPool(model.config, 4, BLOCK, torch.float32), links, None, way)
    seq = SeqStep(
        request_id="r",
        version=0,
        attempt=0,
        start=12,
        end=20,
        tokens=packed(*IDS[12:20]),
        local=(Run(3, 0, 2),),
        remote=(RemoteSpan(instance_id="creditor", span=span("s"), index=0, first_block=0, num_blocks=3),),
        sample=GREEDY,
    )
    (result,) = runner.run(Step(step_id=1, seqs=(seq,)))
    close_links(links)
    return result, runner


def test_both_ways_give_the_same(model: Model, creditor: Worker, transport: str) -> None:
    shipped, shipping = chunk(model, creditor, transport, "ship")
    fetched, fetching = chunk(model, creditor, transport, "fetch")
    assert (shipped.status, fetched.status) == ("ok", "ok")
    assert shipped.logprobs is not None and fetched.logprobs is not None
    assert fetched.token == shipped.token
    assert fetched.logprobs.logprob == pytest.approx(shipped.logprobs.logprob, abs=1e-4)
    assert (shipping.counters.fetched_blocks, shipping.counters.fetched_bytes) == (0, 0)
    assert fetching.counters.fetched_blocks == 3
    assert fetching.counters.fetched_bytes == 3 * creditor.memory.slot_bytes


def test_a_creditor_that_is_gone_is_lost(model: Model, creditor: Worker, transport: str) -> None:
    creditor.registry.revoke(span("s"), lambda: None)
    result, runner = chunk(model, creditor, transport, "fetch")
    assert (result.status, result.lost) == ("lost", ("creditor",))
    assert runner.counters.fetched_blocks == 0
