"""Long documents of a wanted number of tokens, with facts at even depths, and the questions about them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from tokenizers import Tokenizer

from distkv.demo.corpus import english
from distkv.demo.corpus.facts import NOT_MENTIONED, Corpus, Question

Filler = Literal["generated", "english"]


@dataclass(frozen=True, slots=True)
class Placed:
    """A question, and where its fact lies: from 0, the beginning, to 1; None where nothing is mentioned."""

    question: Question
    text: str
    depth: float | None


@dataclass(frozen=True, slots=True)
class Document:
    """A text and what can be asked about it. num_tokens: of the text."""

    text: str
    num_tokens: int
    questions: tuple[Placed, ...]


def prompt_of(document: str, question: str) -> str:
    """The plain form of a question."""
    return f"{document}\nQuestion: {question}\nAnswer:"


def write(
    tokenizer: Tokenizer,
    seed: int | str,
    num_tokens: int,
    *,
    num_facts: int = 32,
    num_absent: int = 8,
    near: bool = False,
    filler: Filler = "generated",
    texts: Sequence[str] = (),
) -> Document:
    """A document of about `num_tokens` tokens, never more; the same arguments give the same document.

    num_absent: questions that it has no answer to, half of them about keys that nearly are there. near: most keys
    differ from another one in one word only. texts: the filler, when that is plain English. Raises ValueError when the
    facts leave no room for filler.
    """
    corpus, draw = Corpus(f"document {seed}"), Random(f"places {seed}")
    facts = corpus.facts(num_facts, near)
    statements = [" " + corpus.statement(fact) for fact in facts]
    room = num_tokens - _count(tokenizer, statements)
    if room <= 0:
        raise ValueError(f"{num_facts} facts fill {num_tokens} tokens; fewer facts or more tokens are needed")
    pieces = _take(tokenizer, _sentences(corpus) if filler == "generated" else _english(draw, texts), room)
    depths = [(index + draw.random()) / num_facts for index in range(num_facts)]
    ordered = sorted(zip(depths, range(num_facts), strict=True), reverse=True)
    for depth, index in ordered:
        pieces.insert(round(depth * len(pieces)), statements[index])
    text = "".join(pieces).strip()
    asked = [
        Placed(Question(fact.key, fact.value), f"What is {fact.key}?", depth)
        for fact, depth in zip(facts, depths, strict=True)
    ]
    for index in range(num_absent):
        key = corpus.absent(facts, near=index % 2 == 0)
        asked.append(Placed(Question(key, NOT_MENTIONED), f"What is {key}?", None))
    return Document(text, len(tokenizer.encode(text, add_special_tokens=False).ids), tuple(asked))


def _take(tokenizer: Tokenizer, source: Iterator[str], room: int) -> list[str]:
    pieces: list[str] = []
    while room > 0:
        more = [next(source) for _ in range(max(1, min(1000, room // 24)))]
        for piece, encoding in zip(more, tokenizer.encode_batch(more, add_special_tokens=False), strict=True):
            room -= len(encoding.ids)
            if room < 0:
                return pieces
            pieces.append(piece)
    return pieces


def _count(tokenizer: Tokenizer, texts: Sequence[str]) -> int:
    return sum(len(encoding.ids) for encoding in tokenizer.encode_batch(list(texts), add_special_tokens=False))


def _sentences(corpus: Corpus) -> Iterator[str]:
    while True:
        yield ("\n\n" if corpus.draw.random() < 0.08 else " ") + corpus.sentence()


def _english(draw: Random, texts: Sequence[str]) -> Iterator[str]:
    if not texts:
        raise ValueError("plain English as filler needs texts")
    while True:
        yield from english.pieces(draw.choice(texts))
        yield "\n\n"
