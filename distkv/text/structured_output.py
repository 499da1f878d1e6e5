"""What an output must be, as a grammar that llguidance follows.

Grammars are all Lark. In each the model chooses how allowed text is cut into tokens (`no_forcing`): a mask is then made
without the tokenizer, which would need the interpreter.
"""

from __future__ import annotations

import json
import re
from functools import cache
from typing import TYPE_CHECKING, assert_never

import msgspec

from distkv.errors import InvalidParams
from distkv.structured_output import FIELD, StructuredKind, StructuredOutput

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

    from distkv.text.tokenizer import Tokenizer

_HEAD = '%llguidance {"no_forcing": true}\n'
WHITESPACE = r" ?|\n[ \t]{0,20}"
"""Where JSON may have whitespace: a model that may choose any amount of it can go on with it for ever."""
MAX_GBNF = 16384
"""It is read by Python, which takes up to 25 µs for a character."""
_MOST_WORDS = 500
_LEXEME = re.compile(r'(?:#|//).*|"(?:\\.|[^"\\])*+"?|/(?:\\.|[^/\\])*+/?|<[^<>\s]+>')
"""A comment, a string or a regex of Lark, where `<` is any character, or a special token by its name or ids."""
_IS_LARK = re.compile(r"^[ \t]*(%llguidance\b|[?!]?start[ \t]*(\[|:(?!:=)))", re.M)


class _OfSchema(msgspec.Struct):
    json_schema: msgspec.Raw


class _Made(msgspec.Struct):
    """What llguidance makes of a JSON schema, as far as it is read here."""

    grammars: tuple[_OfSchema]


def check(output: StructuredOutput) -> None:
    """Raise InvalidParams with llguidance's words unless there may be such an output; whether a model's tokens can
    write it is found out where the model is.

    Most grammars take some milliseconds and megabytes, a hostile one any amount of both, and what llguidance cannot
    allocate ends its process: what comes from outside goes to a `GrammarChecker`.
    """
    from llguidance import LLMatcher

    grammar = grammar_of(output)
    if output.kind == "grammar":
        grammar = _LEXEME.sub(_any_special_token, grammar)
    refuse(output, LLMatcher(_bytes(), grammar, log_level=0, limits=limits_of(output)).get_error())


def _any_special_token(lexeme: re.Match[str]) -> str:
    """Which special tokens there are is the model's to say; there are others, or none, among bytes."""
    return "<[0]>" if lexeme[0].startswith("<") else lexeme[0]


@cache
def _bytes() -> LLTokenizer:
    """Of bytes as tokens."""
    from llguidance import LLTokenizer

    return LLTokenizer("byte", slices=[])


def refuse(output: StructuredOutput, words: str) -> None:
    """Raise InvalidParams if llguidance has said something about the grammar of this output."""
    if words:
        raise InvalidParams(FIELD, f"a {output.kind} that can be followed ({_shortened(words)})", output.text)


class Vocabulary:
    """What one model's tokens stand for, as llguidance needs it. Made once, for a large one takes a second."""

    def __init__(self, tokenizer: Tokenizer, size: int) -> None:
        """size: of the model, which may have more tokens than the tokenizer, or fewer. Raises InvalidParams for a
        tokenizer whose tokens do not each stand for their own text."""
        from llguidance import LLTokenizer, TokenizerWrapper

        if not tokenizer.is_literal:
            raise InvalidParams(FIELD, "a model with byte-level BPE or SentencePiece tokens", "another tokenizer")
        tokens = [tokenizer.token_bytes(index) if tokenizer.token(index) else b"" for index in range(size)]
        special = [index for index in range(size) if tokenizer.is_special(index)]
        self.tokenizer = LLTokenizer(TokenizerWrapper(_Tokens(tokenizer, tokens, special)))


class _Tokens:
    """As llguidance reads them. It puts the end of a text behind them, as one more token."""

    eos_token_id = bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, tokens: list[bytes], special_token_ids: list[int]) -> None:
        self._tokenizer = tokenizer
        self.tokens, self.special_token_ids = tokens, special_token_ids

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)


def compiled(output: StructuredOutput, vocabulary: Vocabulary) -> LLMatcher:
    """A matcher that has seen no token. Raises InvalidParams. Lets other threads run."""
    from llguidance import LLMatcher

    made = LLMatcher(vocabulary.tokenizer, grammar_of(output), log_level=0, limits=limits_of(output))
    refuse(output, made.get_error())
    return made


def limits_of(output: StructuredOutput) -> LLParserLimits:
    """A grammar with a schema in it may need as much as that alone."""
    return limits("json_schema" if output.kind == "grammar" and "%json" in output.text else output.kind)


@cache
def limits(kind: StructuredKind) -> LLParserLimits:
    """Of what compiling an output of this kind, and each mask of it, may cost: some milliseconds for what is usual,
    seconds at worst, for a grammar that can be read in very many ways, and that nobody waits for; and 100 MiB for the
    states of a lexer.

    Where a vocabulary has 100,000 tokens, a schema of a hundred optional properties takes 40,000 items, in some
    milliseconds; in a grammar so many may take half a second.
    """
    from llguidance import LLParserLimits

    return LLParserLimits(
        initial_lexer_fuel=500_000,
        step_lexer_fuel=50_000 if kind == "grammar" else 200_000,
        step_max_items=30_000 if kind == "grammar" else 50_000,
        max_grammar_size=200_000,
        max_lexer_states=50_000,
        verbose_errors=False,
    )


def grammar_of(output: StructuredOutput) -> str:
    """The grammar, in Lark, which need not be one. Raises InvalidParams if there is none. Loads llguidance."""
    try:
        return _HEAD + _body(output)
    except RecursionError:
        raise InvalidParams(FIELD, f"a {output.kind} that is not nested so deep", output.text) from None


def _body(output: StructuredOutput) -> str:
    match output.kind:
        case "json_object":
            return _of_schema('{"type": "object"}')
        case "json_schema":
            return _of_schema(output.text)
        case "regex":
            return _of_regex(output.text)
        case "choice":
            return _of_choices(output)
        case "grammar":
            return _of_grammar(output)
        case _:
            assert_never(output.kind)


def _of_schema(text: str) -> str:
    from llguidance import LLMatcher

    try:
        made = LLMatcher.grammar_from_json_schema(text, defaults={"whitespace_pattern": WHITESPACE})
    except ValueError as error:
        raise InvalidParams(FIELD, f"a JSON schema that can be followed ({_shortened(str(error))})", text) from None
    (grammar,) = msgspec.json.decode(made, type=_Made).grammars
    return f"start: %json {bytes(grammar.json_schema).decode()}"


def _of_regex(pattern: str) -> str:
    from llguidance import LLMatcher

    (grammar,) = json.loads(LLMatcher.grammar_from_regex(pattern))["grammars"]
    return str(grammar["lark_grammar"])


def _of_choices(output: StructuredOutput) -> str:
    try:
        texts = msgspec.json.decode(output.text, type=list[str])
    except msgspec.DecodeError:
        texts = []
    if not all(texts) or not texts:
        raise InvalidParams(FIELD, "as choice a JSON list of texts, none of them empty", output.text)
    # One terminal: of as many as there may be, llguidance takes no more than 2000 in one place.
    return _of_regex("|".join(map(re.escape, texts)))


def _of_grammar(output: StructuredOutput) -> str:
    from llguidance.gbnf_to_lark import gbnf_to_lark

    # The library's own look at a text takes a minute for 60,000 line breaks.
    if _IS_LARK.search(output.text):
        return output.text
    if len(output.text) > MAX_GBNF:
        raise InvalidParams(FIELD, f"a grammar in Lark, or in GBNF of at most {MAX_GBNF} characters", output.text)
    try:
        lark: str = gbnf_to_lark(output.text)
    except RecursionError:
        raise
    except Exception as error:  # the library raises bare Exception
        words = f"it has no Lark start rule, and as GBNF: {error}"
        raise InvalidParams(FIELD, f"a grammar that can be followed ({_shortened(words)})", output.text) from None
    return lark


def _shortened(words: str) -> str:
    """Without places in a grammar that is not the user's, on one line."""
    own = re.split(r"\n +\d+ \| ", words, maxsplit=1)[0]
    line = " ".join(re.sub(r"^at \d+\(\d+\): ", "", own).split())
    return line if len(line) <= _MOST_WORDS else line[: _MOST_WORDS - 1] + "…"
