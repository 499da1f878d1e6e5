"""Documents with facts in them and questions about the facts; the same seed gives the same documents.

A fact is a sentence like "The access code of the north station is 48213."; a question names the key of a fact, "the
access code of the north station", and is answered by the value and the end, or by "not mentioned".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from distkv.demo.corpus import words

NOT_MENTIONED = "not mentioned"
NEAR_SHARE = 0.5  # of the documents have keys that nearly collide
FREE_SHARE = 0.25  # of the words in keys and values are any words, where the corpus was given some


@dataclass(frozen=True, slots=True)
class Fact:
    """A key, with its article, and its value."""

    key: str
    value: str


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked about a key, and the right answer."""

    key: str
    answer: str


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What the keys of one document are made of."""

    attributes: tuple[tuple[str, str], ...]  # kind, words
    adjectives: tuple[str, ...]
    nouns: tuple[str, ...]


KINDS = {
    "code": words.CODE_ATTRIBUTES,
    "name": words.NAME_ATTRIBUTES,
    "date": words.DATE_ATTRIBUTES,
    "word": words.WORD_ATTRIBUTES,
}
KIND_WEIGHTS = (5, 2, 2, 1)
_SMALL_WORDS = ("the", "of", "my", "our", "his", "her")


class Corpus:
    """Draws facts, questions and sentences. free_words: words that may stand in keys and values besides the lists'."""

    def __init__(self, seed: int | str, free_words: Sequence[str] = ()) -> None:
        self.draw = Random(seed)
        self.free_words = free_words

    def facts(self, count: int, near: bool) -> list[Fact]:
        """`count` facts with different keys, in no order. near: most keys differ from another in one word only."""
        vocabulary = self._vocabulary(count)
        found: dict[str, Fact] = {}
        while len(found) < count:
            for _ in range(8):
                kind, key = self._key(vocabulary if near else None)
                if key not in found:
                    found[key] = Fact(key, self.value(kind))
                    break
            else:
                near = False  # the small vocabulary is used up
        return list(found.values())

    def absent(self, facts: Sequence[Fact], near: bool) -> str:
        """A key that no fact has. near: made of the words of two facts, or of one and another word."""
        taken = {fact.key: None for fact in facts}
        while True:
            key = self._crossed(facts) if near and facts else self._key(None)[1]
            if key not in taken:
                return key

    def value(self, kind: str) -> str:
        """A code, a name, a date or a word or two."""
        draw = self.draw
        if draw.random() < 0.1:
            kind = draw.choice(tuple(KINDS))
        if kind == "code":
            digits = 5 if draw.random() < 0.7 else draw.choice((3, 4, 6, 7))
            return "".join(draw.choice("0123456789") for _ in range(digits))
        if kind == "name":
            return self.name()
        if kind == "date":
            return self.date()
        first = self._word(words.THINGS)
        return first if draw.random() < 0.5 else f"{self._word(words.ADJECTIVES)} {first}"

    def name(self) -> str:
        """A first name and a last name, now and then made up."""
        draw = self.draw
        last = draw.choice(words.LAST_NAMES)
        if draw.random() < 0.3:
            last = "".join(draw.choices(words.SYLLABLES, k=draw.choice((2, 3)))).capitalize()
        return f"{draw.choice(words.FIRST_NAMES)} {last}" if draw.random() < 0.8 else last

    def date(self) -> str:
        """Like 14 March 1987."""
        draw = self.draw
        return f"{draw.randint(1, 28)} {draw.choice(words.MONTHS)} {draw.randint(1900, 2049)}"

    def statement(self, fact: Fact) -> str:
        """The sentence that says a fact."""
        draw = self.draw
        verb = "is" if draw.random() < 0.8 else draw.choice(("was", "is now", "will be", "remains"))
        sentence = f"{fact.key} {verb} {fact.value}."
        if draw.random() < 0.15:
            lead = draw.choice(
                ("Note that", "Remember:", "As everyone knows,", "By the way,", "For the record,", "And")
            )
            return f"{lead} {sentence}"
        return sentence[0].upper() + sentence[1:]

    def question(self, key: str) -> str:
        """The sentence that asks for a key."""
        draw = self.draw
        roll = draw.random()
        if roll < 0.8:
            return f"What is {key}?"
        if roll < 0.9:
            return f"What was {key}?"
        return f"{draw.choice(('Tell me', 'Do you know', 'Please give me', 'Find'))} {key}{draw.choice('.?')}"

    def sentence(self) -> str:
        """A sentence of prose that states no fact."""
        draw = self.draw
        roll = draw.random()
        if roll < 0.12:
            return f"{self.name()} {draw.choice(words.VERBS)} {self._thing()} {draw.choice(words.TIMES)}."
        if roll < 0.2:
            return f"On {self.date()} the {draw.choice(words.PEOPLE)} {draw.choice(words.VERBS)} {self._thing()}."
        if roll < 0.28:
            number = draw.randint(2, 10 ** draw.randint(1, 5))
            return f"About {number} people {draw.choice(words.VERBS)} {self._thing()} {draw.choice(words.TIMES)}."
        start = f"The {draw.choice(words.PEOPLE)}" if draw.random() < 0.6 else _upper(self._thing())
        text = f"{start} {draw.choice(words.VERBS)} {self._thing()} {draw.choice(words.PLACES)} {self._thing()}"
        if roll < 0.5:
            text += f" {draw.choice(words.TIMES)}"
        if roll > 0.85:
            text += f", and {self._thing()} was {draw.choice(words.ADJECTIVES)}"
        return text + "."

    def _thing(self) -> str:
        draw = self.draw
        noun = draw.choice(words.NOUNS) if draw.random() < 0.75 else draw.choice(words.THINGS)
        return f"the {draw.choice(words.ADJECTIVES)} {noun}" if draw.random() < 0.6 else f"the {noun}"

    def _word(self, choices: Sequence[str]) -> str:
        if self.free_words and self.draw.random() < FREE_SHARE:
            return self.draw.choice(self.free_words)
        return self.draw.choice(choices)

    def _vocabulary(self, count: int) -> Vocabulary:
        draw = self.draw
        size = max(2, round((2 * count) ** (1 / 3)) + draw.randint(0, 1))
        kinds = draw.choices(tuple(KINDS), KIND_WEIGHTS, k=size)
        return Vocabulary(
            tuple((kind, self._word(KINDS[kind])) for kind in kinds),
            tuple(self._word(words.ADJECTIVES) for _ in range(size)),
            tuple(self._word(words.NOUNS) for _ in range(size)),
        )

    def _key(self, vocabulary: Vocabulary | None) -> tuple[str, str]:
        draw = self.draw
        if vocabulary:
            kind, attribute = draw.choice(vocabulary.attributes)
            adjective, noun = draw.choice(vocabulary.adjectives), draw.choice(vocabulary.nouns)
        else:
            (kind,) = draw.choices(tuple(KINDS), KIND_WEIGHTS)
            attribute = self._word(KINDS[kind])
            adjective, noun = self._word(words.ADJECTIVES), self._word(words.NOUNS)
        roll = draw.random() * (0.8 if vocabulary else 1.0)
        if roll < 0.7:
            return kind, f"the {attribute} of the {adjective} {noun}"
        if roll < 0.78:
            return kind, f"the {attribute} of the {noun}"
        if roll < 0.84:
            return kind, f"the {attribute} of {self.name()}"
        if roll < 0.9:
            return kind, f"the {adjective} {noun}'s {attribute}"
        if roll < 0.95:
            return kind, f"the {adjective} {attribute}"
        return kind, f"{draw.choice(('my', 'our', 'his', 'her'))} {attribute if roll < 0.98 else noun}"

    def _crossed(self, facts: Sequence[Fact]) -> str:
        draw = self.draw
        parts = draw.choice(facts).key.split()
        other = draw.choice(facts).key.split()
        places = [place for place, part in enumerate(parts) if part not in _SMALL_WORDS]
        place = draw.choice(places)
        if len(other) == len(parts) and other[place] not in _SMALL_WORDS and draw.random() < 0.7:
            parts[place] = other[place]
        else:
            parts[place] = self._word(words.NOUNS if place == len(parts) - 1 else words.ADJECTIVES)
        return " ".join(parts)


def _upper(text: str) -> str:
    return text[0].upper() + text[1:]
