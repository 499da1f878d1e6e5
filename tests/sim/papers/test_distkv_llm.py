"""Figures of 000 against sums by hand."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from distkv.control.performance.model import PerformanceModel
from distkv.sim.outcome import Outcome
from distkv.sim.papers import make
from distkv.sim.papers.distkv_llm.context import longer_s, most_at_once, pooled_tokens_per_s, single_tokens_per_s
from distkv.sim.papers.distkv_llm.dgfm import PARTS, over_time
from distkv.sim.papers.distkv_llm.migration import computing_s, migration_s, printed_tokens
from distkv.sim.papers.distkv_llm.setups import SETUPS, dataset_of
from distkv.sim.papers.figure import Effort, Figure, Series
from distkv.sim.papers.rising import offered_s
from distkv.sim.run import SimResult
from distkv.sim.trace import TraceRequest
from distkv.wire.messages.counters import Counters


def made(name: str) -> Figure:
    return make(name, Effort.QUICK, lambda what, share: None)


def curve(figure: Figure, panel: int, series: int) -> Series:
    return figure.panels[panel].series[series]


def test_attention_over_eight_gpus_reads_an_eighth_of_the_keys() -> None:
    """LLaMA2-13B, 600K tokens of 20 KiB, 1.7 TB/s, a launch of 5.4 us, an all-reduce of 14 us."""
    alone, shared = curve(made("000-11"), 1, 0), curve(made("000-11"), 1, 1)
    assert alone.y[-1] == pytest.approx(600_000 * 20_480 / 8 / 1.7e6 + 5.4 + 14, rel=0.002)
    travelling = (2 * 5120 + 4 * 40 * 129) / (4 * 230e3)
    assert shared.y[-1] - alone.y[-1] == pytest.approx(12 + 5.4 + travelling - 1, abs=0.1)


def test_keys_that_travel_take_their_bytes_over_the_link() -> None:
    """LLaMA2-7B has 512 KiB for each token."""
    figure = made("000-12")
    for panel, rate in ((0, 230e3), (1, 22.23e3), (2, 125.0)):
        assert curve(figure, panel, 1).y[-1] == pytest.approx(100_000 * 524_288 * (1 / rate + 1 / 1.7e6), rel=0.01)
    remote = curve(figure, 0, 0).y[-1]
    assert remote == pytest.approx(100_000 * 524_288 / 1.7e6 + 32 * (12 + 2 * 5.4), rel=0.01)


def test_datasets_have_the_shares_and_ranges_of_the_table() -> None:
    assert not [one.what for one in made("000-table-2").ratios if one.differs]
    longest = curve(made("000-table-2"), 5, 2)
    assert (longest.x[0], longest.x[-1], longest.y[-1]) == (2.0, 1_900_000.0, 1.0)


def test_setups_are_the_rows_of_the_table() -> None:
    assert [one.gpus for one in SETUPS] == [2, 4, 8, 8, 16, 32]
    assert [one.stages for one in SETUPS] == [1, 1, 1, 1, 2, 4]
    assert dataset_of(0, 0) == "distkv-1" and dataset_of(5, 2) == "distkv-18"


def test_migration_is_a_download_and_the_prompt_once_more() -> None:
    """13.5 GB at 521 MB/s, then 108k tokens on two GPUs: 1.4 PFLOP with weights at 271 TFLOP/s each, 3.1 PFLOP of
    attention at 228."""
    spec = replace(SETUPS[0].spec(), kv_tokens=108_000)
    assert migration_s(spec) == pytest.approx(25.9 + 2.6 + 6.7, rel=0.03)
    one = PerformanceModel(spec.profile)
    assert computing_s(spec, 100, 11) - computing_s(spec, 100, 1) == pytest.approx(10 * one.step_s(1, 105), rel=1e-3)


def test_a_migration_takes_as_long_as_twelve_thousand_tokens_by_what_is_printed() -> None:
    """With M for the migration and p for the prompt: 2.5 (p + 5,000) = M = 0.4 (p + 30,000)."""
    prompt = (0.4 * 30_000 - 2.5 * 5000) / 2.1
    assert printed_tokens() == pytest.approx(2.5 * (prompt + 5000))


def test_steps_that_much_longer_give_the_least_ratio_that_is_printed() -> None:
    spec = SETUPS[0].spec()
    assert spec.single is not None
    batch = spec.single.kv_tokens // 16 // 63
    step_s = batch / single_tokens_per_s(spec, 1, 1000) + longer_s(spec, 1, 1000)
    assert pooled_tokens_per_s(spec, 1000) == pytest.approx(1.4 * batch / step_s)


def test_the_longest_time_of_the_largest_overlap_is_found() -> None:
    assert most_at_once([(0.0, 4.0), (1.0, 3.0), (2.0, 2.5), (2.7, 9.0), (8.0, 9.0)]) == (2.0, 2.5)
    assert most_at_once([(0.0, 4.0), (1.0, 2.0), (2.5, 3.9)]) == (2.5, 3.9)


def test_a_request_over_two_instances_decodes_as_fast_as_the_debtor_attends() -> None:
    """Half its keys and more lie there; those at the creditor are attended to meanwhile."""
    spec = SETUPS[0].spec()
    step_s = PerformanceModel(spec.profile).step_s(1, spec.kv_tokens)
    assert pooled_tokens_per_s(spec, 2 * spec.kv_tokens - 5000) == pytest.approx(1 / step_s, rel=0.05)
    local_s = PerformanceModel(spec.profile).step_s(110, 110_000)
    assert pooled_tokens_per_s(spec, 1000) == pytest.approx(2 * 110 / local_s)


def test_load_one_is_what_reading_keys_and_prompts_take() -> None:
    spec = SETUPS[0].spec()
    model = PerformanceModel(spec.profile)
    trace = [TraceRequest(0.0, 1000, 24), TraceRequest(0.0, 1000, 24)]
    assert offered_s(trace, spec) == pytest.approx(model.prefill_s(1000) + 24 * model.attention_s(1024))


def test_throughput_over_time_counts_tokens_when_they_came() -> None:
    outcomes = (
        Outcome(TraceRequest(0.0, 1, 3), [0.5, 1.5, 1.6]),
        Outcome(TraceRequest(1.0, 1, 2), [0.75, 99.0]),
    )
    found = over_time(SimResult(outcomes, (), Counters(), 100.0, ()), float(PARTS))
    assert found[:3] == [(1.0, 1.0), (2.0, 3.0), (3.0, 0.0)] and len(found) == PARTS
