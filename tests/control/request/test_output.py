"""OutputText against a model that looks at the whole text after every token."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from distkv.control.request.answer.output import NoText, OutputText
from distkv.types import FinishReason, SamplingParams

EOS = frozenset({0, 9})


class Letters:
    """Token n is the letter a + n; token 7 is the first half of "é", token 8 the second."""

    def __init__(self) -> None:
        self.half = False

    def push(self, token_ids: Sequence[int]) -> str:
        text = ""
        for token in token_ids:
            if self.half:
                text += "é" if token == 8 else "�" + self._plain(token)
                self.half = token == 7
            else:
                self.half = token == 7
                text += self._plain(token)
        return text

    def finish(self) -> str:
        return "�" if self.half else ""

    def _plain(self, token: int) -> str:
        return "" if token == 7 else chr(ord("a") + token)


def run(tokens: list[int], params: SamplingParams) -> tuple[list[str], FinishReason | None, int]:
    """Pieces sent, how it ended, and how many tokens were taken."""
    output = OutputText(Letters(), params, EOS)
    pieces = []
    for count, token in enumerate(tokens, 1):
        piece, finish = output.push(token)
        pieces.append(piece)
        if finish is not None:
            return pieces, finish, count
    return pieces, None, len(tokens)


def expected(tokens: list[int], params: SamplingParams) -> tuple[str, FinishReason | None, int]:
    """The same from the definition: the text ends before the first stop string that appears in it, or after the first
    that is complete; those that end within the first `min_tokens` do not count."""
    ends = set(params.stop_token_ids) | (set() if params.ignore_eos else EOS)
    is_part, free = params.include_stop_str_in_output, ""
    for count in range(1, len(tokens) + 1):
        is_end = tokens[count - 1] in ends and count >= params.min_tokens
        decoder = Letters()
        text = decoder.push(tokens[: count - 1] if is_end and not is_part else tokens[:count])
        at_limit = count >= params.max_tokens
        if is_end or at_limit:
            text += decoder.finish()
        free = text if count <= params.min_tokens else free
        places = [(at, at + len(stop)) for stop in params.stop for at in range(len(text)) if text.startswith(stop, at)]
        cuts = [end if is_part else start for start, end in places if end > len(free)]
        if is_end:
            return text[: min(cuts, default=None)], "stop", count
        if cuts:
            return text[: min(cuts)], "stop", count
        if at_limit:
            return text, "length", count
    return text_of(tokens), None, len(tokens)


def text_of(tokens: list[int]) -> str:
    return Letters().push(tokens)


def params_up_to(max_tokens: int) -> st.SearchStrategy[SamplingParams]:
    return st.builds(
        SamplingParams,
        max_tokens=st.just(max_tokens),
        stop=st.lists(st.text("bcdé", min_size=1, max_size=4), max_size=3).map(tuple),
        stop_token_ids=st.lists(st.integers(0, 9), max_size=1).map(tuple),
        ignore_eos=st.booleans(),
        min_tokens=st.just(0) | st.integers(0, max_tokens),
        include_stop_str_in_output=st.booleans(),
    )


@given(st.lists(st.integers(0, 9), min_size=1, max_size=14), st.integers(1, 12).flatmap(params_up_to))
@example([1, 2, 1, 2, 3], SamplingParams(stop=("bcd",), max_tokens=12))
@example([1, 7], SamplingParams(stop=("�",), max_tokens=2))
def test_like_looking_at_the_whole_text(tokens: list[int], params: SamplingParams) -> None:
    pieces, finish, taken = run(tokens, params)
    text, expected_finish, expected_taken = expected(tokens, params)
    assert (finish, taken) == (expected_finish, expected_taken)
    sent = "".join(pieces)
    if finish is not None:
        assert sent == text
    else:
        assert text.startswith(sent)
        held = text[len(sent) :]
        assert held == "" or any(stop.startswith(held) for stop in params.stop)
        assert held == "" or not params.include_stop_str_in_output


def test_a_stop_string_across_tokens_is_never_sent() -> None:
    pieces, finish, _ = run([3, 1, 2, 3, 4], SamplingParams(stop=("bcd",)))
    assert (pieces, finish) == (["d", "", "", ""], "stop")


def test_what_only_looked_like_a_stop_string_is_sent_after_all() -> None:
    pieces, finish, _ = run([1, 2, 5], SamplingParams(stop=("bcd",)))
    assert (pieces, finish) == (["", "", "bcf"], None)


def test_the_earliest_of_two_stop_strings_wins() -> None:
    assert run([1, 2, 3], SamplingParams(stop=("d", "bcd")))[0] == ["", "", ""]


def test_a_stop_string_that_is_part_of_the_output() -> None:
    """Nothing is held back for it; what follows it in the same token's text is not sent."""
    params = SamplingParams(stop=("bcd", "\ufffdc"), include_stop_str_in_output=True)
    assert run([4, 1, 2, 3, 4], params)[:2] == (["e", "b", "c", "d"], "stop")
    assert run([7, 2, 3], params)[:2] == (["", "\ufffdc"], "stop")
    assert run([1, 2, 9], SamplingParams(stop_token_ids=[2], include_stop_str_in_output=True))[0] == ["b", "c"]


def test_what_ends_the_output_only_after_its_first_tokens() -> None:
    """A stop string counts if it is complete after them, though it may have begun before; a token that ends the request
    counts as the last of them."""
    params = SamplingParams(stop=("bc",), stop_token_ids=[5], min_tokens=3)
    assert run([1, 2, 1, 2, 4], params)[:2] == (["", "bc", "", ""], "stop")
    assert run([1, 2, 1, 4], params)[:2] == (["", "bc", "", "be"], None)
    assert run([5, 9, 5], params) == (["f", "j", ""], "stop", 3)


@pytest.mark.parametrize(("ignore_eos", "finish"), [(False, "stop"), (True, "length")])
def test_the_end_token(ignore_eos: bool, finish: str) -> None:
    pieces, reason, _ = run([1, 9, 2], SamplingParams(max_tokens=3, ignore_eos=ignore_eos))
    assert reason == finish
    assert "".join(pieces) == ("bjc" if ignore_eos else "b")


def test_a_model_without_text_ends_all_the_same() -> None:
    output = OutputText(NoText(), SamplingParams(max_tokens=2, stop=("x",)), EOS)
    assert output.push(5) == ("", None)
    assert output.push(5) == ("", "length")


@pytest.mark.parametrize(
    ("tokens", "params", "reason"),
    [
        ([1, 9], {}, None),
        ([1, 9], {"stop_token_ids": [9]}, None),
        ([1, 9], {"stop_token_ids": [9], "ignore_eos": True}, 9),
        ([1, 3], {"stop_token_ids": [3, 4]}, 3),
        ([1, 3, 4], {"stop": ["x", "de", "bde"]}, "bde"),
        ([1, 3, 4], {"stop": ["x", "de", "bde"], "include_stop_str_in_output": True}, "de"),
        ([1, 7, 9], {"stop": ["\ufffd"]}, "\ufffd"),
        ([1, 2], {"max_tokens": 2}, None),
        ([1, 7], {"max_tokens": 2, "stop": ["\ufffd"]}, "\ufffd"),
    ],
)
def test_what_stopped_it_is_told(tokens: list[int], params: dict[str, object], reason: int | str | None) -> None:
    """None for an end of the model's own, and for a length. Of two stop strings the one that cuts more."""
    output = OutputText(Letters(), SamplingParams(**params), EOS)
    finishes = [output.push(token)[1] for token in tokens]
    assert finishes[:-1] == [None] * (len(tokens) - 1)
    assert finishes[-1] == ("length" if reason is None and "max_tokens" in params else "stop")
    assert output.stop_reason == reason
