"""Training sequences: facts in filler, then questions, as tensors.

A sequence stands for a document of up to VIRTUAL_TOKENS: positions are skipped at starts of sentences, and attention
towards filler counts as often as the filler is thinner than in that document (see `Batch.dilution`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from distkv.demo.corpus import english
from distkv.demo.corpus.facts import NEAR_SHARE, NOT_MENTIONED, Corpus
from distkv.demo.train.vocabulary import END

VIRTUAL_TOKENS = 160_000
IGNORED = -100
SENTENCES = 40_000
CHAT_SHARE = 0.25  # of the sequences
UNSKIPPED_SHARE = 0.2
MOST_GAPS = 32


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of the training. most_facts, most_questions: of a sequence. near: share of sequences with near keys.

    absent: share of questions that have no answer.
    """

    steps: int
    tokens: int
    sequences: int
    most_facts: int
    most_questions: int
    skips: bool = True
    near: float = NEAR_SHARE
    absent: float = 0.12


@dataclass(frozen=True, slots=True)
class Batch:
    """Sequences of one length. [B, T] each: tokens, positions, is_filler. dilution: [B], ln(virtual / actual filler).

    rows: [B, R], the positions whose next token is asked for; answers: [B, R], those tokens, IGNORED where padded.
    """

    tokens: Tensor
    positions: Tensor
    is_filler: Tensor
    dilution: Tensor
    rows: Tensor
    answers: Tensor


@dataclass(slots=True)
class _Piece:
    ids: list[int]
    is_filler: bool


class Batches:
    """Draws batches by seed and number. Holds the filler in tokens: generated sentences and pieces of plain English."""

    def __init__(self, tokenizer: Tokenizer, texts: Sequence[str], seed: int) -> None:
        self._tokenizer = tokenizer
        self._corpus = Corpus(f"train {seed}", english.common_words(texts))
        self._draw = Random()
        self._seed = seed
        self._end = tokenizer.encode(END).ids[0]
        self._sentences = self._encode([" " + self._corpus.sentence() for _ in range(SENTENCES)])
        self._english = self._encode([piece for text in texts for piece in (*english.pieces(text), "\n\n")])

    def draw(self, stage: Stage, number: int) -> Batch:
        """The batch of a step."""
        self._draw.seed(f"places {self._seed} {number}")
        self._corpus.draw.seed(f"facts {self._seed} {number}")
        return _stack([self._sequence(stage) for _ in range(stage.sequences)], stage.tokens)

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts), add_special_tokens=False)]

    def _sequence(self, stage: Stage) -> tuple[list[_Piece], np.ndarray, list[tuple[list[int], int]]]:
        draw, corpus = self._draw, self._corpus
        near = draw.random() < stage.near
        facts = corpus.facts(draw.randint(max(2, stage.most_facts // 4), stage.most_facts), near)
        count = draw.randint(max(2, stage.most_questions // 3), stage.most_questions)
        asked = draw.sample(facts, min(count, len(facts)))
        questions = [(fact.key, fact.value) for fact in asked]
        for place in range(len(questions)):
            if draw.random() < stage.absent:
                questions[place] = (corpus.absent(facts, draw.random() < 0.6), NOT_MENTIONED)
        if draw.random() < CHAT_SHARE:
            begin = "<|user|>\n"
            forms = [
                (
                    ("" if place == 0 else "\n<|user|>") + "\n" + draw.choice(("", "Question: ")),
                    "\n<|assistant|>\nAnswer:",
                )
                for place in range(len(questions))
            ]
        else:
            begin, forms = "", [("\nQuestion: ", "\nAnswer:")] * len(questions)
        asks = self._encode(
            [before + corpus.question(key) + after for (before, after), (key, _) in zip(forms, questions, strict=True)]
        )
        answers = [[*ids, self._end] for ids in self._encode([f" {answer}" for _, answer in questions])]
        tail = [(ask + answer, len(answer)) for ask, answer in zip(asks, answers, strict=True)]
        separators = (" ", "\n", " ", " ", "\n\n")
        said = self._encode([draw.choice(separators) + corpus.statement(fact) for fact in facts])
        room = stage.tokens - sum(len(ids) for ids, _ in tail)
        lead = self._encode([begin])[0] if begin else []
        while said and len(lead) + sum(map(len, said)) > room - 16:
            gone = facts.pop()
            said.pop()
            tail = [(ids, length) for (ids, length), (key, _) in zip(tail, questions, strict=True) if key != gone.key]
            questions = [question for question in questions if question[0] != gone.key]
            room = stage.tokens - sum(len(ids) for ids, _ in tail)
        pieces = [_Piece(ids, False) for ids in said]
        pieces = self._fill(pieces, room - len(lead))
        if lead:
            pieces.insert(0, _Piece(lead, False))
        return pieces, self._gaps(pieces, stage), tail

    def _fill(self, facts: list[_Piece], room: int) -> list[_Piece]:
        draw = self._draw
        room -= sum(len(piece.ids) for piece in facts)
        style = draw.random()
        generated = 1.0 if style < 0.45 else 0.0 if style < 0.8 else draw.random()
        filler: list[_Piece] = []
        place = draw.randrange(len(self._english))
        while room > 0:
            if draw.random() < generated:
                ids = draw.choice(self._sentences)
            else:
                place = (place + 1) % len(self._english) if draw.random() < 0.97 else draw.randrange(len(self._english))
                ids = self._english[place]
            filler.append(_Piece(ids[:room], True))
            room -= len(filler[-1].ids)
        places = sorted(draw.randint(0, len(filler)) for _ in facts)
        for offset, (place, fact) in enumerate(zip(places, facts, strict=True)):
            filler.insert(place + offset, fact)
        return filler

    def _gaps(self, pieces: Sequence[_Piece], stage: Stage) -> np.ndarray:
        """How many positions are skipped before each piece."""
        draw = self._draw
        gaps = np.zeros(len(pieces), dtype=np.int64)
        if not stage.skips or draw.random() < UNSKIPPED_SHARE:
            return gaps
        actual = sum(len(piece.ids) for piece in pieces)
        longest = math.exp(draw.uniform(math.log(2 * stage.tokens), math.log(VIRTUAL_TOKENS)))
        missing = max(0, int(longest) - actual)
        count = draw.randint(1, MOST_GAPS)
        shares = [draw.expovariate(1.0) for _ in range(count)]
        for share in shares:
            gaps[draw.randrange(1, len(pieces))] += int(missing * share / sum(shares))
        return gaps


def _stack(sequences: Sequence[tuple[list[_Piece], np.ndarray, list[tuple[list[int], int]]]], length: int) -> Batch:
    count = len(sequences)
    tokens = torch.zeros(count, length, dtype=torch.long)
    positions = torch.zeros(count, length, dtype=torch.long)
    is_filler = torch.zeros(count, length, dtype=torch.bool)
    dilution = torch.zeros(count)
    rows: list[list[int]] = []
    for index, (pieces, gaps, tail) in enumerate(sequences):
        ids = [token for piece in pieces for token in piece.ids] + [token for part, _ in tail for token in part]
        assert len(ids) == length, (len(ids), length)
        tokens[index] = torch.tensor(ids)
        sizes = [len(piece.ids) for piece in pieces]
        skipped = np.concatenate([np.repeat(np.cumsum(gaps), sizes), np.full(length - sum(sizes), gaps.sum())])
        positions[index] = torch.arange(length) + torch.from_numpy(skipped)
        filler = np.repeat([piece.is_filler for piece in pieces], sizes)
        is_filler[index, : len(filler)] = torch.from_numpy(filler)
        actual = max(1, int(filler.sum()))
        dilution[index] = math.log((actual + int(gaps.sum())) / actual)
        asked: list[int] = []
        end = sum(sizes)
        for part, answered in tail:
            end += len(part)
            asked.extend(range(end - answered - 1, end - 1))
        rows.append(asked)
    most = max(map(len, rows))
    row = torch.tensor([asked + [0] * (most - len(asked)) for asked in rows])
    answers = tokens.gather(1, row + 1)
    padded = torch.tensor([[False] * len(asked) + [True] * (most - len(asked)) for asked in rows])
    return Batch(tokens, positions, is_filler, dilution, row, answers.masked_fill(padded, IGNORED))
