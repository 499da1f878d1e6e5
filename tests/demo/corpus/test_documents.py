from __future__ import annotations

import subprocess
import sys
from itertools import islice

import pytest
from tokenizers import Tokenizer

from distkv.config import DEMO_MODEL, model_dir
from distkv.demo.corpus import english
from distkv.demo.corpus.documents import write
from distkv.demo.corpus.facts import NOT_MENTIONED, Corpus

PRINT = """
from tokenizers import Tokenizer
from distkv.demo.corpus.documents import write
from distkv.config import DEMO_MODEL, model_dir
print(write(Tokenizer.from_file(str(model_dir(DEMO_MODEL) / "tokenizer.json")), 5, 900, near=True, num_facts=9))
"""


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.from_file(str(model_dir(DEMO_MODEL) / "tokenizer.json"))


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_a_seed_gives_the_same_document_in_every_process(tokenizer, hash_seed):
    here = write(tokenizer, 5, 900, near=True, num_facts=9)
    there = subprocess.run(
        [sys.executable, "-c", PRINT], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": hash_seed}
    )
    assert there.stdout.strip() == str(here)
    assert here != write(tokenizer, 6, 900, near=True, num_facts=9)


@pytest.mark.parametrize("near", [False, True])
@pytest.mark.parametrize("num_tokens", [700, 5000])
def test_a_document_has_the_facts_that_are_asked_for_at_their_depths(tokenizer, near, num_tokens):
    document = write(tokenizer, 1, num_tokens, near=near, num_facts=12, num_absent=6)
    assert 0.9 * num_tokens < document.num_tokens <= num_tokens
    assert document.num_tokens == len(tokenizer.encode(document.text).ids)
    keys = [placed.question.key for placed in document.questions]
    assert len(keys) == len(dict.fromkeys(keys)) == 18
    text = document.text.lower()
    for placed in document.questions:
        if placed.depth is None:
            assert placed.question.answer == NOT_MENTIONED
            assert f"{placed.question.key.lower()} is" not in text
        else:
            place = text.index(placed.question.answer.lower() + ".") / len(text)
            assert abs(place - placed.depth) < 0.25
            assert placed.question.key.lower() in text


def test_facts_that_fill_the_document_are_refused(tokenizer):
    with pytest.raises(ValueError, match="32 facts fill 200 tokens; fewer facts or more tokens are needed"):
        write(tokenizer, 0, 200)


def test_near_keys_differ_in_a_word_and_are_never_equal():
    facts = Corpus(3).facts(24, near=True)
    assert len({fact.key: None for fact in facts}) == 24
    near = 0
    for fact in facts:
        parts = fact.key.split()
        near += any(
            len(parts) == len(other.key.split())
            and sum(a != b for a, b in zip(parts, other.key.split(), strict=True)) == 1
            for other in facts
        )
    assert near > 12


def test_values_are_of_several_kinds_and_short(tokenizer):
    corpus = Corpus(0)
    for kind, looks in (("code", str.isdigit), ("name", str.istitle), ("date", lambda text: text[-4:].isdigit())):
        values = [corpus.value(kind) for _ in range(200)]
        assert sum(map(looks, values)) > 150
        assert max(len(tokenizer.encode(f" {value}").ids) for value in values) < 12


@pytest.mark.slow
def test_plain_english_comes_in_two_halves_that_share_nothing():
    train, held_out = list(english.texts("train")), list(english.texts("held out"))
    assert train == list(english.texts("train"))
    assert min(sum(map(len, train)), sum(map(len, held_out))) > 300_000
    assert "".join(english.pieces(train[0])) == train[0].rstrip()


@pytest.mark.parametrize("source", ["generated", "held out"])
def test_a_token_of_plain_english_has_three_characters_or_more(tokenizer, source):
    if source == "generated":
        corpus = Corpus(0)
        texts = [corpus.sentence() for _ in range(500)]
    else:
        texts = list(islice(english.texts("held out"), 500))
    tokens = sum(len(encoding.ids) for encoding in tokenizer.encode_batch(texts))
    assert sum(map(len, texts)) / tokens >= 3
