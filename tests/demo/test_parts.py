from __future__ import annotations

import re
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from distkv.demo import reference
from distkv.demo.placement import BAR_CELLS, EMPTY, FULL, Placement, draw, find
from distkv.demo.screen import printable
from distkv.demo.story import Options
from distkv.demo.text import Page, cut, gather
from distkv.errors import InvalidParams
from distkv.wire.messages.to_client import BlockCounts, Counters, InstanceStatus, RequestStatus, SpanStatus, Status
from tests.checkpoints import TEXT, variant


def instance(name: str, *requests: RequestStatus) -> Status:
    status = InstanceStatus(
        instance_id=name,
        role="mixed",
        state="ready",
        pid=1,
        worker_pid=2,
        block_tokens=16,
        blocks=BlockCounts(total=10, free=10),
        borrowed_blocks=0,
        running=0,
        waiting=0,
        counters=Counters(),
    )
    return Status(instance=status, requests=requests)


def span(name: str, first: int, count: int) -> SpanStatus:
    return SpanStatus(instance_id=name, first_token=first, num_tokens=count)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return variant(tmp_path_factory.mktemp("checkpoint"), "llama")


def test_the_map_shows_every_span_in_order():
    spans = (span("i1", 0, 160), span("i0", 160, 80))
    request = RequestStatus(request_id="r", instance_id="i0", num_tokens=240, spans=spans)
    found = find([instance("i0", request), instance("i1"), instance("i2")], "r")
    assert found == Placement("i0", spans, {"i0": 160, "i1": 160, "i2": 160})
    assert (found.num_tokens, found.tokens_at("i0"), found.instances_used) == (240, 80, 2)
    i0, i1, i2, order, whole = (line.plain for line in draw(found))
    assert FULL * (BAR_CELLS // 2) + EMPTY * (BAR_CELLS // 2) in i0 and "80 of 160 tokens (debtor)" in i0
    assert FULL * BAR_CELLS in i1 and "(debtor)" not in i1
    assert EMPTY * BAR_CELLS in i2
    assert order.split()[-2:] == ["i1[0..160)", "i0[160..240)"]
    assert re.fullmatch("1{27}0{13}", whole.split()[-1])
    assert find([instance("i0", request)], "other") is None


def test_a_request_without_kv_can_be_drawn():
    assert next(line.plain for line in draw(Placement("i0", (), {"i0": 16}))).startswith(f"  i0  {EMPTY}")


def test_a_prompt_has_the_tokens_that_are_wanted_and_ends_with_a_word(model):
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    pages = [Page("a", TEXT), Page("b", TEXT), Page("c", TEXT)]
    wanted = len(tokenizer.encode(TEXT).ids) + 20
    prompt = cut(pages, tokenizer, wanted)
    assert wanted <= prompt.num_tokens == len(tokenizer.encode(prompt.text).ids) < wanted + 20
    assert prompt.sources == ("a", "b")
    assert (TEXT + TEXT).startswith(prompt.text) and (TEXT + TEXT)[len(prompt.text)].isspace()
    with pytest.raises(ValueError, match="are wanted"):
        cut(pages, tokenizer, 10**6)


def test_there_is_always_enough_text():
    for wanted in (1, 50_000, 3_000_000):
        pages = gather(wanted)
        assert sum(len(page.text) for page in pages) >= wanted
    assert "Python's language reference" in {page.name for page in pages}


@pytest.mark.parametrize("instances", range(2, 10))
@pytest.mark.parametrize("kv_tokens", [256, 1000, 4096])
def test_a_prompt_is_longer_than_a_pool_and_fits_the_cluster(instances, kv_tokens):
    options = Options(instances=instances, kv_tokens=kv_tokens, max_tokens=32)
    lendable = options.pool_tokens + (instances - 1) * (options.pool_tokens - 16)
    assert options.pool_tokens < options.prompt_tokens <= lendable - 32
    assert options.prompt_tokens >= 2.5 * options.pool_tokens or instances < 3
    with pytest.raises(InvalidParams, match="max_tokens: expected at most"):
        _ = Options(instances=instances, kv_tokens=kv_tokens, max_tokens=10**6).prompt_tokens


def test_most_tokens_that_are_told_are_possible():
    with pytest.raises(InvalidParams) as error:
        _ = Options(max_tokens=10**6).prompt_tokens
    most = int(re.findall(r"\d+", error.value.expected)[0])
    assert Options(max_tokens=most).prompt_tokens > 1024
    with pytest.raises(InvalidParams):
        _ = Options(max_tokens=most + 1).prompt_tokens


def test_a_reference_that_fails_says_why(tmp_path):
    with pytest.raises(reference.ReferenceFailed, match="its process ended with code 1") as error:
        reference.ask(tmp_path, "text", 4, tmp_path)
    assert error.value.log


def test_text_cannot_move_the_cursor():
    assert printable("a\x1b[2Jé\tb\r\n") == "a·[2Jé·b·\n"
