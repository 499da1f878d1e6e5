"""Requests of a trace, from CSV and as CSV."""

from __future__ import annotations

import pytest

from distkv.errors import ConfigError
from distkv.sim.trace import TraceRequest, beginning_with, parse_trace, scaled, trace_lines

HEAD = "arrival_s,prompt_tokens,output_tokens"


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([], "azure: expected the columns arrival_s, prompt_tokens, output_tokens, no arrival_s"),
        (["arrival_s,prompt_tokens", "0,1"], "azure: expected the columns .*, no output_tokens"),
        ([HEAD], "azure has no requests"),
        ([HEAD, "0,1,1", "1,x,1"], "azure:3: prompt_tokens: expected a number from 0 to 1e[+]09, got 'x'"),
        ([HEAD, "0,1"], "azure:2: output_tokens: expected a number .*, got nothing"),
        ([HEAD, "nan,1,1"], "azure:2: arrival_s: expected a number .*, got 'nan'"),
        ([HEAD, "-1,1,1"], "azure:2: arrival_s: expected a number .*, got '-1'"),
        ([HEAD, "0,0,1"], "azure:2: prompt_tokens: expected a whole number of at least 1, got 0"),
        ([HEAD, "0,1,1.5"], "azure:2: output_tokens: expected a whole number of at least 1, got 1.5"),
        ([HEAD, "0,1e300,1"], "azure:2: prompt_tokens: expected a number .*, got '1e300'"),
        ([HEAD, f"0,{'x' * 1000},1"], "azure:2: prompt_tokens: expected a number .*, got 1000 characters"),
        ([HEAD, f"0,{'x' * 200_000},1"], "azure:2: field larger than field limit"),
    ],
)
def test_lines_that_are_no_trace_are_refused_by_row_and_field(lines: list[str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        parse_trace(lines, "azure")


def test_a_line_behind_those_that_count_is_not_looked_at() -> None:
    assert parse_trace([HEAD, "0,1,1", "no request"], "azure", 1) == [TraceRequest(0.0, 1, 1)]


def test_what_is_written_as_csv_reads_the_same() -> None:
    requests = [TraceRequest(0.0, 1, 2), TraceRequest(0.125, 3, 4), TraceRequest(12345.678, 2_000_000, 1)]
    assert parse_trace(list(trace_lines(requests)), "again") == requests


def test_a_trace_keeps_its_rhythm_at_another_rate() -> None:
    trace = [TraceRequest(at_s, 100, 50) for at_s in (10.0, 11.0, 14.0)]
    faster = scaled(trace, tokens=0.5, per_s=4.0)
    assert [one.arrival_s for one in faster] == [0.0, 0.125, 0.5]
    assert {(one.prompt_tokens, one.output_tokens) for one in faster} == {(50, 25)}
    assert scaled(trace[:1], tokens=0.001, per_s=4.0) == [TraceRequest(0.0, 1, 1)]


def test_a_trace_that_begins_with_another_request_has_the_same_ones_in_the_same_rhythm() -> None:
    requests = [TraceRequest(at_s, tokens, 1) for at_s, tokens in ((3.0, 10), (4.0, 20), (8.0, 30), (9.0, 40))]
    turned = beginning_with(requests, 2)
    assert [(one.arrival_s, one.prompt_tokens) for one in turned] == [(8.0, 30), (9.0, 40), (11.0, 10), (12.0, 20)]
    assert beginning_with(requests, 0) == requests
    assert [one.prompt_tokens for one in beginning_with(requests[:1], 0)] == [10]
