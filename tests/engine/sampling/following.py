"""Requests whose outputs follow a grammar, at an engine with a random model."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from distkv.structured_output import StructuredOutput
from distkv.text.structured_output import Vocabulary, compiled
from distkv.text.tokenizer import Tokenizer
from distkv.wire.messages.from_worker import SeqResult
from distkv.wire.messages.to_worker import Sampling
from tests.checkpoints import prompt_ids
from tests.engine.harness import Engine, seq_step

PROMPT = prompt_ids(30)
VOCAB = 320
END = 0
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "count": {"type": "integer", "minimum": 3, "maximum": 400},
        "tags": {"type": "array", "items": {"enum": ["a", "bc", "é🙂"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "count", "tags"],
    "additionalProperties": False,
}
OUTPUTS = {
    "schema": StructuredOutput.json_schema(SCHEMA),
    "regex": StructuredOutput.regex(r"[A-Z][a-z]{2,8}, \d{1,3}(\.\d)?!"),
    "choice": StructuredOutput.choice(["rBlock", "rManager", "Füße\n"]),
    "lark": StructuredOutput.grammar('start: "(" start ")" | /[0-9]{1,2}/'),
    "gbnf": StructuredOutput.grammar('root ::= "<" item{1,3} ">"\nitem ::= [a-z]{1,6} ";"'),
}


def fits(name: str, text: str) -> bool:
    """Whether the text is what the output must be, by other means than the grammar."""
    if name == "schema":
        value = json.loads(text)
        tags = value["tags"]
        return (
            set(value) == {"name", "count", "tags"}
            and len(value["name"]) <= 12
            and 3 <= value["count"] <= 400
            and 1 <= len(tags) <= 3
            and set(tags) <= {"a", "bc", "é🙂"}
        )
    patterns = {
        "regex": r"[A-Z][a-z]{2,8}, \d{1,3}(\.\d)?!",
        "choice": "rBlock|rManager|Füße\n",
        "lark": r"(\(*)[0-9]{1,2}(\)*)",
        "gbnf": "<([a-z]{1,6};){1,3}>",
    }
    found = re.fullmatch(patterns[name], text)
    return found is not None and (name != "lark" or len(found[1]) == len(found[2]))


def sampling(grammar_id: int | None = 1, **fields: Any) -> Sampling:
    settings: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "seed": 3} | fields
    return Sampling(prompt_tokens=len(PROMPT), grammar_id=grammar_id, **settings)


class Following:
    """One request under a grammar; every Step is sent ahead of its token."""

    def __init__(self, engine: Engine, sampling: Sampling, name: str = "r", most: int = 150) -> None:
        self.engine, self.sampling, self.name = engine, sampling, name
        self.table = engine.table(len(PROMPT) + most)
        self.tokens: list[int] = []
        self.result: SeqResult | None = None

    def step(self, attempt: int = 0, ids: Sequence[int] | None = None) -> SeqResult:
        """The next one, or (ids) one over all of these."""
        end = len(PROMPT) + len(self.tokens)
        start = end - 1 if self.tokens and ids is None else 0
        known = PROMPT if ids is None else ids
        (self.result,) = self.engine.run(
            seq_step(known, start, end, self.table, name=self.name, attempt=attempt, sample=self.sampling)
        )
        assert self.result.token is not None
        self.tokens.append(self.result.token)
        return self.result

    def finish(self, most: int = 150) -> list[int]:
        while len(self.tokens) < most and not (self.result and (self.result.complete or self.result.problem)):
            self.step()
        return self.tokens


def add(engine: Engine, vocabulary: Vocabulary, output: StructuredOutput, grammar_id: int = 1) -> None:
    engine.runner.constraints.add(grammar_id, compiled(output, vocabulary))


def text_of(tokenizer: Tokenizer, tokens: Sequence[int]) -> str:
    return tokenizer.decode([token for token in tokens if token != END], skip_special_tokens=False)
