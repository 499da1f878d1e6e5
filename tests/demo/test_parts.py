from __future__ import annotations

import re

import pytest

from distkv.config import DEMO_MODEL, model_dir
from distkv.demo.run import reference
from distkv.demo.run.display import printable
from distkv.demo.run.placement import BAR_CELLS, EMPTY, FULL, Placement, draw, find
from distkv.demo.run.questions import OwnFact, plan_prompts
from distkv.demo.run.walkthrough import Options
from distkv.errors import InvalidParams
from distkv.wire.messages.counters import Counters
from distkv.wire.messages.to_client import InstanceStatus, RequestStatus, SlotCounts, SpanStatus, Status


def instance(name: str, *requests: RequestStatus) -> Status:
    status = InstanceStatus(
        instance_id=name,
        role="mixed",
        state="ready",
        pid=1,
        worker_pid=2,
        block_tokens=16,
        blocks=SlotCounts(total=10, free=10),
        borrowed_blocks=0,
        running=0,
        waiting=0,
        counters=Counters(),
    )
    return Status(instance=status, requests=requests)


def span(name: str, first: int, count: int) -> SpanStatus:
    return SpanStatus(instance_id=name, first_token=first, num_tokens=count)


def test_the_map_shows_every_span_in_order():
    spans = (span("i1", 0, 160), span("i0", 160, 80))
    request = RequestStatus(request_id="r", instance_id="i0", num_tokens=240, spans=spans)
    found = find([instance("i0", request), instance("i1"), instance("i2")], "r")
    assert found == Placement("i0", spans, {"i0": 160, "i1": 160, "i2": 160})
    assert (found.num_tokens, found.tokens_at("i0"), found.tokens_at("i1"), found.tokens_at("i2")) == (240, 80, 160, 0)
    i0, i1, i2, order, whole = (line.plain for line in draw(found))
    assert FULL * (BAR_CELLS // 2) + EMPTY * (BAR_CELLS // 2) in i0 and "80 of 160 tokens (debtor)" in i0
    assert FULL * BAR_CELLS in i1 and "(debtor)" not in i1
    assert EMPTY * BAR_CELLS in i2
    assert order.split()[-2:] == ["i1[0..160)", "i0[160..240)"]
    assert re.fullmatch("1{27}0{13}", whole.split()[-1])
    assert find([instance("i0", request)], "other") is None


def test_a_request_without_kv_can_be_drawn():
    assert next(line.plain for line in draw(Placement("i0", (), {"i0": 16}))).startswith(f"  i0  {EMPTY}")


@pytest.mark.parametrize("instances", range(2, 10))
@pytest.mark.parametrize("kv_tokens", [256, 1000, 4096])
def test_a_prompt_is_longer_than_a_pool_and_fits_the_cluster(instances, kv_tokens):
    options = Options(instances=instances, kv_tokens=kv_tokens)
    lendable = options.pool_tokens + (instances - 1) * (options.pool_tokens - 16)
    assert options.pool_tokens < options.prompt_tokens <= lendable - 16
    assert options.prompt_tokens >= 2.5 * options.pool_tokens or instances < 3
    with pytest.raises(InvalidParams, match="tokens: expected from 320 to"):
        _ = Options(instances=instances, kv_tokens=kv_tokens, tokens=10**6).prompt_tokens


def test_most_tokens_that_are_told_are_possible():
    with pytest.raises(InvalidParams) as error:
        _ = Options(tokens=10**6).prompt_tokens
    most = int(re.findall(r"\d+", error.value.expected)[1])
    assert Options(tokens=most).prompt_tokens == most
    with pytest.raises(InvalidParams):
        _ = Options(tokens=most + 1).prompt_tokens


@pytest.mark.parametrize("num_tokens", [400, 2600])
def test_what_is_asked_fits_and_is_in_the_document(num_tokens):
    prompts, count = plan_prompts(model_dir(DEMO_MODEL), 3, num_tokens)
    assert [prompt.expected == "not mentioned" for prompt in prompts] == [False, False, False, True]
    for prompt in prompts:
        assert num_tokens - 120 < count(prompt.text) <= num_tokens
        assert prompt.text.endswith(f"\nQuestion: {prompt.question}\nAnswer:")
        assert prompt.expected is not None
        assert (f" {prompt.expected}." in prompt.text) == (prompt.expected != "not mentioned")
    assert plan_prompts(model_dir(DEMO_MODEL), 3, num_tokens)[0] == prompts


def test_a_fact_of_ones_own_stands_in_the_middle():
    (prompt,), count = plan_prompts(model_dir(DEMO_MODEL), 3, 600, OwnFact("It is blue.", "What is it?"))
    assert count(prompt.text) <= 600
    assert 0.4 < prompt.text.index(". It is blue.") / len(prompt.text) < 0.6
    assert prompt.text.endswith("\nQuestion: What is it?\nAnswer:")


def test_a_fact_of_ones_own_must_leave_room():
    with pytest.raises(InvalidParams, match="ask: expected a fact and a question of at most 180 tokens"):
        plan_prompts(model_dir(DEMO_MODEL), 0, 500, OwnFact("x " * 400, "y?"))


def test_a_reference_that_fails_says_why(tmp_path):
    with pytest.raises(reference.ReferenceFailed, match="its process ended with code 1") as error:
        reference.run(tmp_path, ["text"], 4, tmp_path)
    assert error.value.log


def test_text_cannot_move_the_cursor():
    assert printable("a\x1b[2Jé\tb\r\n") == "a·[2Jé·b·\n"
