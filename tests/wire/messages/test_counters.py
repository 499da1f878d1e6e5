"""Counters: declared once, summed over the parts that count, listed in the documents."""

from __future__ import annotations

from pathlib import Path

import pytest

from distkv.wire.messages.counters import COUNTERS, Counter, Counters, total

PAGE = Path(__file__).parents[3] / "docs" / "gateway.md"


def test_every_field_is_declared_as_a_counter() -> None:
    assert tuple(one.name for one in COUNTERS) == Counters.__struct_fields__
    assert len({one.metric for one in COUNTERS}) == len(COUNTERS)
    assert [one.name for one in COUNTERS if one.in_status] == [
        "attend_queries",
        "query_bytes",
        "kv_bytes",
        "recomputed_tokens",
    ]


@pytest.mark.parametrize("counter", COUNTERS, ids=lambda one: one.name)
def test_every_counter_is_on_the_page_of_metrics(counter: Counter) -> None:
    assert f"`distkv:{counter.metric}_total`" in PAGE.read_text(encoding="utf-8")
    assert counter.metric.endswith("_seconds") == counter.name.endswith("_s")


def test_the_total_is_a_new_object_with_the_sum_of_each() -> None:
    worker, own = Counters(steps=3, malformed_messages=1, model_s=0.5), Counters(malformed_messages=2, plan_s=0.25)
    both = total(worker, own)
    assert both == Counters(steps=3, malformed_messages=3, model_s=0.5, plan_s=0.25)
    both.steps += 1
    assert worker.steps == 3
