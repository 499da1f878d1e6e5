"""Steps on a device that is not the host: copies, peers, and the order of everything."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from distkv.wire.messages.to_worker import PromptLogprobs, Sampling
from tests.checkpoints import check_logprobs, prompt_ids, reference_greedy, reference_logits
from tests.engine.async_device import AsyncHost
from tests.engine.harness import GREEDY, Engine, seq_step
from tests.engine.lent import Lent
from tests.token_ids import packed

PROMPT = prompt_ids(50)


def test_a_step_waits_once_for_its_tokens(engine: Engine, path: Path, device: AsyncHost) -> None:
    """Greedy tokens are chosen on the device; rows of logits come along where more is asked."""
    tables = [engine.table(60) for _ in range(2)]
    sampled = Sampling(temperature=0.8, top_k=5, top_p=1.0, seed=1, logprobs=3)
    steps = [
        seq_step(PROMPT, 0, 50, tables[0], name="a", sample=GREEDY),
        seq_step(PROMPT, 0, 50, tables[1], name="b", sample=sampled),
    ]
    first, second = engine.run(*steps)
    # In: the rows, what is drawn by, and whose logprobs are wanted.
    assert (device.copies_out, device.copies_in) == (1, 3)
    assert first.token == reference_greedy(path, PROMPT, 1)[0]
    assert second.token is not None
    check_logprobs(second.logprobs, reference_logits(path, PROMPT)[-1], second.token, 3)
    assert engine.run(seq_step(PROMPT, 0, 50, engine.table(50), name="c", sample=sampled))[0].token == second.token


def test_logprobs_of_a_prompt(engine: Engine, path: Path) -> None:
    wanted = PromptLogprobs(first=1, token_ids=packed(*PROMPT[1:20]), top=2)
    (result,) = engine.run(seq_step(PROMPT, 0, 20, engine.table(20), prompt_logprobs=wanted))
    logits = reference_logits(path, PROMPT)
    assert len(result.prompt_logprobs) == 19
    for position, found in enumerate(result.prompt_logprobs, 1):
        check_logprobs(found, logits[position - 1], PROMPT[position], 2)


@pytest.mark.parametrize("microbatches", [1, 2])
def test_peers(path: Path, device: AsyncHost, microbatches: int) -> None:
    engine = Engine(path, device=device, num_slots=128, microbatches=microbatches)
    steps = [Lent(engine, name, seed) for seed, name in enumerate("abc")]
    ids = prompt_ids(20, seed=8)
    local = seq_step(ids, 0, 20, engine.table(20), name="local", sample=GREEDY)
    results = engine.run(steps[0].step(), local, steps[1].step(), steps[2].step())
    assert [result.token for result in results] == [
        steps[0].expected(path), reference_greedy(path, ids, 1)[0], steps[1].expected(path), steps[2].expected(path)
    ]  # fmt: skip
    engine.peers.creditors["x"].fail_at = ("collect", 1)
    results = engine.run(steps[0].step(), msgspec.structs.replace(local, request_id="again"), steps[1].step())
    assert [result.status for result in results] == ["lost", "ok", "lost"]
    assert results[1].token == reference_greedy(path, ids, 1)[0]
