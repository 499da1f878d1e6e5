"""The prompts of the demo: a long document with facts strewn in, and questions about some of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from distkv.demo.corpus.documents import prompt_of, write
from distkv.errors import InvalidParams

FACTS = 12
DEPTHS = (0.1, 0.5, 0.9)  # of the facts that are asked for
LEAST_DOCUMENT_TOKENS = 272  # so that its facts have room
QUESTION_TOKENS = 48  # room for a question and what is around it


@dataclass(frozen=True, slots=True)
class QuestionPrompt:
    """A prompt and the answer that is right; None where nobody but its author knows. about: where in the document the
    fact stands that is asked for."""

    text: str
    question: str
    about: str
    expected: str | None


@dataclass(frozen=True, slots=True)
class OwnFact:
    """A person's own fact, a sentence that goes into the middle of the document, and the question about it."""

    fact: str
    question: str


def plan_prompts(
    model: Path, seed: int, num_tokens: int, own: OwnFact | None = None
) -> tuple[list[QuestionPrompt], Callable[[str], int]]:
    """Prompts of at most `num_tokens` tokens over one document, and what counts the tokens of a text.

    Without a fact of one's own: three facts, at the beginning, the middle and the end, and one that is not there.
    Raises InvalidParams when one's own leaves no room for the document.
    """
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))

    def count(text: str) -> int:
        return len(tokenizer.encode(text).ids)

    room = QUESTION_TOKENS + (count(f" {own.fact} {own.question}") if own else 0)
    if num_tokens - room < LEAST_DOCUMENT_TOKENS:
        most = num_tokens - LEAST_DOCUMENT_TOKENS - QUESTION_TOKENS
        raise InvalidParams("ask", f"a fact and a question of at most {most} tokens", f"{room - QUESTION_TOKENS}")
    document = write(tokenizer, seed, num_tokens - room, num_facts=FACTS, num_absent=1)
    if own is not None:
        middle = document.text.find(". ", len(document.text) // 2) + 1
        text = f"{document.text[:middle]} {own.fact.strip()}{document.text[middle:]}"
        return [
            QuestionPrompt(prompt_of(text, own.question.strip()), own.question.strip(), "in the middle", None)
        ], count
    placed = [one for one in document.questions if one.depth is not None]
    chosen = [min(placed, key=lambda one: abs((one.depth or 0) - depth)) for depth in DEPTHS]
    missing = next(one for one in document.questions if one.depth is None)
    return [
        QuestionPrompt(
            prompt_of(document.text, one.text),
            one.text,
            "nowhere in the document" if one.depth is None else f"{one.depth:.0%} into the document",
            one.question.answer,
        )
        for one in (*chosen, missing)
    ], count
