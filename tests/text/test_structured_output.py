"""Grammars of what outputs must be, and what is said of those that are none."""

from __future__ import annotations

import itertools
import json
import string
from pathlib import Path
from random import Random

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from distkv import demo
from distkv.errors import InvalidParams
from distkv.structured_output import StructuredOutput
from distkv.text.structured_output import MAX_GBNF, Vocabulary, check, compiled
from distkv.text.tokenizer import Tokenizer
from tests.text.kinds import KINDS

pytest.importorskip("llguidance", reason="llguidance is not installed in this environment: pip install -e .")

DEMO = Path(demo.__file__).parent / "checkpoint"
GOOD = {
    "json_object": StructuredOutput.json_object(),
    "schema": StructuredOutput.json_schema({"type": "object", "properties": {"day": {"type": "string"}}}),
    "regex": StructuredOutput.regex(r"a/b\d+\n"),
    "choice": StructuredOutput.choice(["yes", 'no/"\\n \n', "ä🙂"]),
    "lark": StructuredOutput.grammar('start: "a" b\nb: /[0-9]+/'),
    "lark with options": StructuredOutput.grammar('%llguidance {}\nstart: "a"'),
    "lark with a rule that leaves no node": StructuredOutput.grammar('?start: "a"'),
    "lark with a bound": StructuredOutput.grammar("start[max_tokens=3]: /a+/"),
    "lark with an end": StructuredOutput.grammar('start[stop="]"]: /a+/'),
    "lark with a special token's id": StructuredOutput.grammar('start: <[128010]> a | <[7-9,300]>\na: "a"'),
    "lark with a special token's name": StructuredOutput.grammar('start: "<" <|python_tag|> | <tool_call>'),
    "lark with what is no special token": StructuredOutput.grammar('start: A # "<a>\nA: /(?P<a>b)\\/(?<c>d)/ // <e>\n'),
    "gbnf": StructuredOutput.grammar('root ::= "a" | [0-9]+ b\nb ::= "x"{2,3}'),
    "largest": StructuredOutput.grammar('start: "a"' + "\n" * 65000),
}
BAD = {
    "no JSON": (StructuredOutput.json_schema("{"), "EOF while parsing an object"),
    "no schema": (StructuredOutput.json_schema('{"type": 1}'), "type must be a string or array of strings"),
    "unsupported": (StructuredOutput.json_schema({"not": {"type": "null"}}), "not"),
    "no object": (StructuredOutput.json_schema("[]"), "Expecting object schema"),
    "deep schema": (StructuredOutput.json_schema('{"items":' * 5900 + "{}" + "}" * 5900), "recursion limit"),
    "no regex": (StructuredOutput.regex("(a"), "unclosed group"),
    "look-around": (StructuredOutput.regex("(?=a)b"), "look-around"),
    "no choice": (StructuredOutput.choice([]), "a JSON list of texts, none of them empty"),
    "empty choice": (StructuredOutput.choice(["a", ""]), "a JSON list of texts, none of them empty"),
    "numbers": (StructuredOutput("choice", "[1]"), "a JSON list of texts"),
    "deep choice": (StructuredOutput("choice", "[" * 60000), "a JSON list of texts"),
    "bad special token": (StructuredOutput.grammar("start: <|a|> <|b"), "lexer error"),
    "no rule": (StructuredOutput.grammar("start: other"), 'unknown name: "other"'),
    "no grammar": (StructuredOutput.grammar("hello"), "as GBNF: Expected ::="),
    "deep grammar": (StructuredOutput.grammar("start: " + "(" * 60000), "too deeply nested"),
    "deep GBNF": (StructuredOutput.grammar("root ::= " + "(" * 2000), "not nested so deep"),
    "long GBNF": (StructuredOutput.grammar('root ::= "a"' + " " * MAX_GBNF), "of at most 16384 characters"),
}


@pytest.mark.parametrize("name", GOOD)
def test_what_can_be_followed_passes(name: str) -> None:
    check(GOOD[name])


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_followed_is_refused_in_the_compilers_words(name: str) -> None:
    output, words = BAD[name]
    with pytest.raises(InvalidParams) as caught:
        check(output)
    assert caught.value.field == "structured_output" and words in str(caught.value)
    assert len(str(caught.value)) < 800 and "%llguidance" not in str(caught.value).partition("got")[0]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("xml", "a"),
        ("json_object", "{}"),
        ("regex", ""),
        ("regex", "a" * 65537),
        ("regex", "é" * 32769),
        ("regex", "\ud800"),
        ("regex", 3),
    ],
)
def test_a_value_out_of_range_is_refused(kind: str, text: str) -> None:
    with pytest.raises(InvalidParams, match="structured_output"):
        StructuredOutput(kind, text)  # type: ignore[arg-type]


def test_what_is_no_json_is_refused() -> None:
    for make in (StructuredOutput.json_schema, StructuredOutput.choice):
        with pytest.raises(InvalidParams, match="what can be written as JSON"):
            make({"a": object()})


def test_a_schema_may_be_a_mapping_or_its_text() -> None:
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    assert json.loads(StructuredOutput.json_schema(schema).text) == schema
    assert StructuredOutput.json_schema(json.dumps(schema)).text == json.dumps(schema)


MANY = [f"{index:04}" for index in range(4096)]
PREFIXES = ["a", "ab", "a|b", "(a", "a.c", "\\d", "/", " ", "\n", "\x00é"]


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    backend = KINDS["byte level"]
    return Vocabulary(Tokenizer(backend), backend.get_vocab_size())


@pytest.mark.parametrize("as_enum", [False, True])
def test_thousands_of_choices_are_told_apart_by_tokens_of_several_letters(*, as_enum: bool) -> None:
    """As a vocabulary of 100,000 tokens has them."""
    letters = string.ascii_letters + string.digits
    pieces = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *map("".join, itertools.product(letters, repeat=2))]
    backend = Backend(models.BPE({piece: number for number, piece in enumerate(pieces)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    random = Random(1)
    texts = ["".join(random.choices(letters, k=8)) for _ in range(1500 if as_enum else 4096)]
    output = StructuredOutput.json_schema({"enum": texts}) if as_enum else StructuredOutput.choice(texts)
    matcher = compiled(output, Vocabulary(Tokenizer(backend), len(pieces)))
    if as_enum:
        assert matcher.consume_token(pieces.index('"'))
    allowed = matcher.compute_bitmask()
    assert not matcher.get_error()
    pairs = {text[:2] for text in texts}
    assert all(bool(allowed[at // 8] >> at % 8 & 1) == (piece in pairs) for at, piece in enumerate(pieces[256:], 256))


@pytest.mark.parametrize("texts", [MANY, PREFIXES], ids=["many", "prefixes"])
def test_each_choice_can_be_written_and_nothing_else(vocabulary: Vocabulary, texts: list[str]) -> None:
    for text in [*texts[:10], texts[-1]]:
        matcher = compiled(StructuredOutput.choice(texts), vocabulary)
        tokens = vocabulary.tokenizer.tokenize_bytes(text.encode())
        for token in tokens:
            matcher.compute_bitmask()
            assert matcher.consume_token(token), matcher.get_error()
        assert matcher.is_accepting()
    for other in ("", "4", "axc", "aa"):
        matcher = compiled(StructuredOutput.choice(texts), vocabulary)
        tokens = vocabulary.tokenizer.tokenize_bytes(other.encode())
        assert matcher.try_consume_tokens(tokens) < len(tokens) or not matcher.is_accepting()


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        ("start: s\ns: s s | s s s | /./", "Too many items"),
        (
            "start: (" + "|".join(f"t{index}" for index in range(500)) + ")+\n"
            + "".join(f"t{index}: /.{{0,{index % 40 + 1}}}{chr(97 + index % 26)}[a-z]*/\n" for index in range(500)),
            "too many expressions",
        ),
    ],
    ids=["ambiguous", "overlapping"],
)  # fmt: skip
def test_a_grammar_with_costly_masks_is_not_followed_far(grammar: str, words: str) -> None:
    """What is given up for its items or fuel takes no more of a core."""
    tokenizer = Tokenizer.from_dir(DEMO)
    assert tokenizer is not None
    matcher = compiled(StructuredOutput.grammar(grammar), Vocabulary(tokenizer, 4096))
    tokens = iter(tokenizer.encode(" the school is a good place to be")[:10])
    while not matcher.is_error():
        matcher.compute_bitmask()
        matcher.consume_token(next(tokens))
    assert words in matcher.get_error()
