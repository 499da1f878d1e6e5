"""Where tokens begin in a text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distkv.gateway.generation.text_offsets import TextOffsets
from distkv.text.tokenizer import Tokenizer
from tests.gateway.generation.test_token_texts import byte_level, sentence_piece
from tests.text.kinds import TOKENIZERS

LITERAL = ["byte level", "byte fallback", "metaspace", "words"]


def starts(tokenizer: Tokenizer | None, ids: list[int], text: str = "", **how: bool) -> list[int]:
    """Of each token, and where the last one ends."""
    offsets = TextOffsets(tokenizer, **({"begin_text": True} | how))
    return [*offsets.starts(ids, text), offsets.place]


def test_where_tokens_begin() -> None:
    """Where a text begins, SentencePiece drops a space; special tokens are left out of the text."""
    ids = [4, 0, 0, 3]
    assert starts(sentence_piece(), ids) == [0, 0, 1, 3, 4]
    assert starts(sentence_piece(), ids, begin_text=False) == [0, 0, 2, 4, 5]
    assert sentence_piece().decode(ids) == "a ab"
    assert TextOffsets(byte_level(), 3, begin_text=True).starts([0, 0]) == [3, 5]
    assert starts(None, [1, 2]) == [0, 0, 0]
    assert starts(byte_level(), [5, 4], skips_special=False) == [0, 7, 8]


def test_a_special_token_is_as_wide_as_its_name_where_the_text_has_it() -> None:
    ids = [5, 4, 5, 4]
    assert starts(byte_level(), ids, "b<|end|>b") == [0, 0, 1, 8, 9]
    assert starts(byte_level(), ids, "bb") == [0, 0, 1, 1, 2]
    assert starts(sentence_piece(), [4, 0, 4, 3], "<s>a<s>b") == [0, 3, 4, 7, 8]


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([1, 2, 3, 4], [0, 1, 1, 1, 2]),  # a character begins in the token of its first byte
        ([1, 4], [0, 1, 2]),
        ([2, 3, 4], [0, 1, 2, 3]),
        ([1, 2, 4], [0, 1, 1, 2]),
        ([1, 1, 2, 3, 3, 4], [0, 1, 2, 2, 2, 3, 4]),
    ],
)
def test_bytes_that_are_no_utf8(ids: list[int], expected: list[int]) -> None:
    """A byte that goes on with nothing had no width; tokens behind it were that much too early."""
    assert starts(byte_level(), ids) == expected
    assert len(byte_level().decode(ids)) == expected[-1]


def test_a_run_of_bytes_that_is_no_utf8() -> None:
    assert starts(sentence_piece(), [3, 1, 2, 3]) == [0, 1, 2, 3, 4]
    assert sentence_piece().decode([3, 1, 2, 3]) == "b\ufffd\ufffdb"


@pytest.mark.parametrize("kind", LITERAL)
@given(data=st.data())
def test_a_token_begins_behind_the_text_before_it(kind: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[kind]
    ids = data.draw(st.lists(st.integers(0, tokenizer._backend.get_vocab_size() - 1), max_size=12))
    parts = [data.draw(st.integers(0, len(ids))) for _ in range(2)]
    offsets, stream = TextOffsets(tokenizer, begin_text=True), tokenizer.stream()
    for part in (ids[: min(parts)], ids[min(parts) : max(parts)], ids[max(parts) :]):
        offsets.starts(part)
    last = tokenizer.encode("s", add_special_tokens=False)[-1]
    assert offsets.starts([last]) == [len(stream.push(ids) + stream.finish())]
