"""Token sequences that an output must not have."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from distkv.errors import InvalidParams
from distkv.text import bad_words
from distkv.text.bad_words import bad_word_ids
from distkv.text.tokenizer import Tokenizer


def byte_level(*words: str) -> Tokenizer:
    """Bytes, and these words as tokens, Ġ being a space."""
    vocab = {token: index for index, token in enumerate([*sorted(pre_tokenizers.ByteLevel.alphabet()), *words])}
    backend = Backend(models.BPE(vocab, [], ignore_merges=True))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(backend)


def written(tokenizer: Tokenizer, words: list[str]) -> list[list[str]]:
    return [list(map(tokenizer.token, ids)) for ids in bad_word_ids(tokenizer, words)]


def test_a_word_is_meant_at_the_beginning_and_in_the_middle_of_text() -> None:
    tokenizer = byte_level("cat", "Ġcat", "Ġdog")
    assert written(tokenizer, ["cat"]) == [["cat"], ["Ġcat"]]
    assert written(tokenizer, [" cat", "cat"]) == [["cat"], ["Ġcat"]] * 2, "a space before it changes nothing"
    assert written(tokenizer, ["dog"]) == [["d", "o", "g"]], "behind a space it has another number of tokens"
    assert written(tokenizer, []) == []


def test_what_cannot_be_a_bad_word_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = byte_level("cat", "Ġcat")
    with pytest.raises(InvalidParams, match="bad_words: expected words that become at least one token, got ' '"):
        bad_word_ids(tokenizer, ["cat", " "])
    monkeypatch.setattr(bad_words, "MAX_TOKENS", 5)
    bad_word_ids(tokenizer, ["cat", "xyz"])
    with pytest.raises(InvalidParams, match="bad_words: expected words of at most 5 tokens in all, got '6 tokens'"):
        bad_word_ids(tokenizer, ["cat", "wxyz"])
