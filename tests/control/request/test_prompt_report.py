from __future__ import annotations

from array import array

import pytest

from distkv.control.request.answer.prompt_report import PromptReport
from distkv.token_ids import unpack
from distkv.types import TokenLogprobs
from distkv.wire.messages.to_worker import PromptLogprobs
from tests.token_ids import packed

IDS = array("i", [10, 11, 12, 13, 14, 15])
"""Five tokens of prompt and one of output."""


def answer(wanted: PromptLogprobs | None) -> tuple[TokenLogprobs, ...]:
    return () if wanted is None else tuple(TokenLogprobs(token, -1.0, 1) for token in unpack(wanted.token_ids))


def reported(report: PromptReport, start: int, end: int) -> list[int | None]:
    wanted = report.request(IDS, start, end)
    return [None if one is None else one.token_id for one in report.take(wanted, answer(wanted))]


def test_a_chunk_tells_what_its_rows_predict() -> None:
    report = PromptReport(prompt_tokens=5, top=3)
    assert report.request(IDS, 0, 2) == PromptLogprobs(first=1, token_ids=packed(11, 12), top=3)
    assert reported(report, 0, 2) == [None, 11, 12]
    assert reported(report, 2, 5) == [13, 14], "the last row predicts output"
    assert reported(report, 5, 6) == []


def test_what_is_computed_again_is_told_no_more() -> None:
    report = PromptReport(prompt_tokens=5, top=0)
    assert reported(report, 0, 2) == [None, 11, 12]
    assert report.request(IDS, 0, 2) is None
    assert report.request(IDS, 0, 4) == PromptLogprobs(first=3, token_ids=packed(13, 14), top=0)
    assert reported(report, 0, 6) == [13, 14]
    assert reported(report, 0, 6) == []


def test_of_two_steps_in_flight_the_second_may_know_less_than_the_first_told() -> None:
    report = PromptReport(prompt_tokens=5, top=0)
    first, again = report.request(IDS, 0, 3), report.request(IDS, 0, 5)
    assert len(report.take(first, answer(first))) == 4
    assert report.take(again, answer(again)) == answer(again)[3:]


def test_a_step_ends_where_it_would_report_more_than_it_may() -> None:
    report = PromptReport(prompt_tokens=5, top=1)
    wanted = report.request(IDS, 0, report.limit(0, 5))
    assert wanted is not None and wanted.num_tokens == 2
    report.take(wanted, answer(wanted))
    assert report.limit(2, 4) == 4
    assert report.limit(2, 1) == 2, "nothing may be reported"
    assert report.limit(0, 1) == 2, "what was reported is free to be computed again"


def test_a_prompt_of_one_token_has_only_the_one_that_nothing_predicts() -> None:
    report = PromptReport(prompt_tokens=1, top=0)
    assert reported(report, 0, 1) == [None]
    assert reported(report, 1, 2) == []


def test_a_gap_is_a_bug() -> None:
    report = PromptReport(prompt_tokens=5, top=0)
    wanted = report.request(IDS, 2, 4)
    with pytest.raises(AssertionError, match=r"positions \[1, 3\) would never be reported"):
        report.take(wanted, answer(wanted))
