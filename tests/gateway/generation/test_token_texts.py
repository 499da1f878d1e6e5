from __future__ import annotations

import tokenizers
from tokenizers import decoders, models

from distkv.gateway.generation.token_texts import LEAST, TokenTexts, with_most
from distkv.text.tokenizer import Tokenizer
from distkv.types import TokenLogprobs


def byte_level() -> Tokenizer:
    vocab = {"Ġa": 0, "ç": 1, "Į": 2, "ĩ": 3, "b": 4}
    backend = tokenizers.Tokenizer(models.BPE(vocab, []))
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|end|>"])
    return Tokenizer(backend)


def sentence_piece() -> Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE({"▁a": 0, "<0xE2>": 1, "<0x82>": 2, "b": 3}, []))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["<s>"])
    return Tokenizer(backend)


def test_byte_level_tokens() -> None:
    texts = TokenTexts(byte_level())
    assert [texts.of(one)[0] for one in range(6)] == [
        " a", r"bytes:\xe7", r"bytes:\x8c", r"bytes:\x87", "b", "<|end|>",
    ]  # fmt: skip
    assert b"".join(texts.of(one)[1] for one in range(5)).decode() == " a猇b"
    assert [texts.is_shown(one) for one in range(6)] == [True] * 5 + [False]
    assert TokenTexts(byte_level(), skip_special_tokens=False).is_shown(5)


def test_tokens_of_sentence_piece() -> None:
    texts = TokenTexts(sentence_piece())
    assert [texts.of(one)[0] for one in range(5)] == [" a", r"bytes:\xe2", r"bytes:\x82", "b", "<s>"]
    assert [texts.is_shown(one) for one in range(5)] == [True] * 4 + [False]


def test_no_more_likely_tokens_than_wanted() -> None:
    one = TokenLogprobs(4, -1.0, 2, ((0, -0.5), (4, -1.0)))
    assert with_most([None, one], 2) == [None, one]
    assert with_most([one], 1) == [TokenLogprobs(4, -1.0, 2, ((0, -0.5),))]


def test_tokens_as_ids() -> None:
    assert TokenTexts(None).of(7) == ("token_id:7", b"token_id:7") and not TokenTexts(None).is_shown(7)
    assert TokenTexts(byte_level(), as_ids=True).of(4)[0] == "token_id:4"
    assert TokenTexts(byte_level(), as_ids=True).offsets(begin_text=False).starts([0, 0]) == [0, 2]


def test_what_json_cannot_say() -> None:
    texts = TokenTexts(byte_level())
    never = TokenLogprobs(4, float("-inf"), 9, ((0, -0.1), (4, float("-inf"))))
    assert texts.completion([4], [never], [3]).token_logprobs == [LEAST]
    assert texts.chat([never])[0].top_logprobs[1].logprob == LEAST
    assert texts.prompt([None, never]) == [None, texts.prompt([never])[0]]


def test_tokens_that_are_written_alike_share_a_place() -> None:
    backend = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    texts = TokenTexts(Tokenizer(backend), as_ids=False)
    found = texts.completion([0], [TokenLogprobs(0, -2.0, 3, ((5, -0.5), (6, -1.0)))], [0])
    assert found.top_logprobs == [{"": -0.5, "a": -2.0}]
