"""What of PromQL a board is written in, parsed: selectors, functions, aggregations, arithmetic and comparisons.

Operators go from left to right whatever binds more: which metrics and labels there are does not depend on it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

TOKEN = re.compile(
    r'\s*(?:(?P<string>"(?:[^"\\]|\\.)*")|(?P<number>\d+(?:\.\d+)?)|(?P<name>[a-zA-Z_:][\w:]*)'
    r"|(?P<range>\[(?:\$\w+|\d+[smhd])\])|(?P<op>=~|!~|!=|==|<=|>=|[-+*/%^<>=(){},]))"
)
AGGREGATIONS = {"sum", "min", "max", "avg", "count", "topk"}
RATES = {"rate", "irate", "increase"}
FUNCTIONS = RATES | {"histogram_quantile", "clamp_max", "clamp_min", "label_values"}
OPERATORS = {"+", "-", "*", "/", "%", "^", "<", ">", "==", "!=", "<=", ">=", "and", "or", "unless"}


@dataclass(frozen=True)
class Number:
    value: float


@dataclass(frozen=True)
class Selector:
    """matchers: label → (operator, value). is_range: of a span of time."""

    name: str
    matchers: dict[str, tuple[str, str]] = field(default_factory=dict)
    is_range: bool = False


@dataclass(frozen=True)
class Call:
    """by: the labels of an aggregation; None of a function, and of one without any."""

    name: str
    arguments: tuple[Node, ...]
    by: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Binary:
    operator: str
    left: Node
    right: Node


Node = Number | Selector | Call | Binary


def walk(node: Node, outer: tuple[Call, ...] = ()) -> Iterator[tuple[Selector, tuple[Call, ...]]]:
    """All selectors, each with the calls around it, the innermost last."""
    match node:
        case Selector():
            yield node, outer
        case Call():
            for argument in node.arguments:
                yield from walk(argument, (*outer, node))
        case Binary():
            yield from walk(node.left, outer)
            yield from walk(node.right, outer)


def labels_of(node: Node, known: dict[str, set[str]]) -> set[str] | None:
    """The labels that its series have; None of a number. Raises AssertionError where two sides cannot be matched."""
    match node:
        case Number():
            return None
        case Selector():
            return known[node.name]
        case Call(by=by) if node.name in AGGREGATIONS:
            inner = labels_of(node.arguments[-1], known)
            assert inner is not None and set(by or ()) <= inner, f"{node.name} by {by}, of {inner}"
            return set(by or ())
        case Call():
            inner = labels_of(node.arguments[-1], known)
            return inner and inner - ({"le"} if node.name == "histogram_quantile" else set())
        case Binary():
            left, right = labels_of(node.left, known), labels_of(node.right, known)
            assert left is None or right is None or left == right, f"{left} {node.operator} {right}"
            return right if left is None else left


def parse(text: str) -> Node:
    """Raises ValueError for what is none of this."""
    parser = _Parser(text)
    node = parser.expression()
    parser.expect("end")
    return node


class _Parser:
    def __init__(self, text: str) -> None:
        self._text, self._tokens, at = text, [], 0
        while text[at:].strip():
            found = TOKEN.match(text, at)
            if found is None:
                raise ValueError(f"{text[at:]!r} in {text!r}")
            assert found.lastgroup is not None
            self._tokens.append((found.lastgroup, found[found.lastgroup]))
            at = found.end()
        self._tokens.append(("end", "end"))

    def expression(self) -> Node:
        node = self._operand()
        while self._tokens[0][1] in OPERATORS:
            node = Binary(self._take()[1], node, self._operand())
        return node

    def expect(self, *values: str) -> str:
        kind, value = self._take()
        if value not in values and kind not in values:
            raise ValueError(f"{value!r} in place of {' or '.join(values)} in {self._text!r}")
        return value

    def _operand(self) -> Node:
        value = self.expect("number", "name", "(")
        if value == "(":
            node = self.expression()
            self.expect(")")
            return node
        if value[0].isdigit():
            return Number(float(value))
        if value in AGGREGATIONS:
            return self._aggregation(value)
        if self._next("("):
            if value not in FUNCTIONS:
                raise ValueError(f"there is no function {value} in {self._text!r}")
            return Call(value, self._arguments())
        return self._selector(value)

    def _aggregation(self, name: str) -> Call:
        by = None
        if self._next("by"):
            self._take()
            self.expect("(")
            by = [self.expect("name")]
            while self.expect(",", ")") == ",":
                by.append(self.expect("name"))
        return Call(name, self._arguments(), None if by is None else tuple(by))

    def _arguments(self) -> tuple[Node, ...]:
        self.expect("(")
        found = [self.expression()]
        while self.expect(",", ")") == ",":
            found.append(self.expression())
        return tuple(found)

    def _selector(self, name: str) -> Selector:
        matchers = {}
        if self._next("{"):
            self._take()
            while True:
                label = self.expect("name")
                operator = self.expect("=", "=~", "!=", "!~")
                matchers[label] = (operator, self.expect("string")[1:-1])
                if self.expect(",", "}") == "}":
                    break
        is_range = self._tokens[0][0] == "range"
        if is_range:
            self._take()
        return Selector(name, matchers, is_range)

    def _next(self, value: str) -> bool:
        return self._tokens[0][1] == value

    def _take(self) -> tuple[str, str]:
        return self._tokens.pop(0)
