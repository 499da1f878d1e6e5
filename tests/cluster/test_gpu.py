"""Several instances on one GPU, each with a pool of its own size: one device tests the whole system."""

from __future__ import annotations

import pytest
import torch

from distkv import LocalCluster, SamplingParams
from distkv.demo.random_checkpoint import make_checkpoint
from tests.checkpoints import prompt_ids
from tests.cluster.driving import driving

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.timeout(600),
]

GPU = {"device": "cuda:0", "attend_timeout_s": 30.0}


@pytest.mark.parametrize("microbatches", [1, 2])
async def test_two_instances_on_one_gpu(start, expect, microbatches):
    """A prompt that fits neither; the same prompt in one instance finds the same tokens."""
    prompt = prompt_ids(700)
    async with driving(start(2, 512, microbatches=microbatches, **GPU)) as driver:
        run = await driver.start(prompt, 40, at="i0")
        await run.reached(1)
        assert set(await driver.spans(run)) == {"i0", "i1"}
        found = await run.finished()
        expect(prompt, found, 40)
        await driver.settled()
    async with driving(start(1, 1024, **GPU)) as driver:
        run = await driver.start(prompt, 40, at="i0")
        expect(prompt, await run.finished(), 40)


async def test_many_requests_and_a_lost_instance(start, expect):
    cluster = start(3, 512, **GPU)
    async with driving(cluster) as driver:
        prompts = [prompt_ids(length, seed=length) for length in (700, 30, 90, 150)]
        runs = [await driver.start(prompt, 60, at="i0") for prompt in prompts]
        await runs[0].reached(4)
        creditor = max(set(await driver.spans(runs[0])) - {"i0"})
        next(handle for handle in cluster.instances if handle.instance_id == creditor).kill()
        for run, prompt in zip(runs, prompts, strict=True):
            expect(prompt, await run.finished(), 60)


async def test_fp8(start):
    """Half the memory, and another model of the same size: tokens come, and are the same when asked again."""
    async with driving(start(2, 512, kv_cache_dtype="fp8", **GPU)) as driver:
        prompt = prompt_ids(700)
        first = await (await driver.start(prompt, 20, at="i0")).finished()
        again = await (await driver.start(prompt, 20, at="i0")).finished()
        assert len(first) == 20 and first == again


def test_another_library_in_instances(tmp_path):
    """Its kernels compile when they are first called. Two instances that lend find what one with our own finds."""
    pytest.importorskip("flashinfer", reason="FlashInfer is not installed")
    model = make_checkpoint(tmp_path, hidden=256, head_dim=64, vocab=320, layers=3, dtype="bfloat16")
    greedy = SamplingParams(max_tokens=40, temperature=0.0)
    found = []
    for backend, sizes in (("triton", [1024]), ("flashinfer", [512, 512])):
        options = {"attention_backend": backend, "gateway": False, "start_timeout_s": 400.0, **GPU}
        with LocalCluster(model, len(sizes), sizes, dtype="bfloat16", **options) as cluster:
            found.append([token for chunk in cluster.stream(prompt_ids(700), greedy) for token in chunk.token_ids])
    assert len(found[0]) == 40 and found[0] == found[1]
