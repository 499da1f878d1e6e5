"""What is made of outputs, whole and in any pieces."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distkv.text.tool_calls.constrained import NamedCall, RequiredCalls
from distkv.text.tool_calls.formats import FORMATS
from distkv.text.tool_calls.pieces import CallArguments, CallBegun, Content, Piece, ToolCallParser
from tests.examples import examples

NAMES = ("get_weather", "now")
PARSERS: dict[str, Callable[[], ToolCallParser]] = {
    **{name: (lambda one=one: one.parser(NAMES)) for name, one in FORMATS.items()},  # type: ignore[misc]
    "required": lambda: RequiredCalls(NAMES),
    "named": lambda: NamedCall("now"),
}


def read(kind: str, pieces: Iterable[str]) -> list[Any]:
    """Texts and (name, arguments), in order."""
    parser = PARSERS[kind]()
    found: list[Any] = []
    for piece in [one for text in pieces for one in parser.push(text)] + parser.finish():
        match piece:
            case Content(text):
                assert text
                if found and isinstance(found[-1], str):
                    found[-1] += text
                else:
                    found.append(text)
            case CallBegun(name):
                found.append((name, ""))
            case CallArguments(text):
                name, arguments = found[-1]
                found[-1] = (name, arguments + text)
    return found


WEATHER = ("get_weather", '{"city": "Par\\"is}"}')
NOW = ("now", "{}")
CASES: dict[str, list[tuple[str, list[Any]]]] = {
    "hermes": [
        ("", []),
        ("Hello, <b>you</b>!\n", ["Hello, <b>you</b>!\n"]),
        ('<tool_call>\n{"name": "get_weather", "arguments": {"city": "Par\\"is}"}}\n</tool_call>', [WEATHER]),
        ('Well.\n\n<tool_call>{"arguments": {}, "name": "now"}</tool_call>\n', ["Well.", NOW]),
        (
            '<tool_call>{"name": "now", "arguments": {}}</tool_call>\n<tool_call>\n{"name": "x", "arguments": {"a": 1}}'
            "\n</tool_call>\nDone. ",
            [NOW, ("x", '{"a": 1}'), "\nDone. "],
        ),
        ('<tool_call>{"name": "now"}</tool_call>', [NOW]),
        ('<tool_call>{"name": "now", "arguments": null}</tool_call>', [NOW]),
        ('<tool_call>{"name": "now", "arguments": "{\\"a\\": 1}"}</tool_call>', [("now", '{"a": 1}')]),
        ('<tool_call>{"type": "function", "id": "c1", "name": "n\\u006fw", "arguments": {}}</tool_call>', [NOW]),
        # Cut off: what has begun stays a call, what has not is text.
        ('<tool_call>{"name": "now", "arguments": {"a": "b', [("now", '{"a": "b')]),
        ('<tool_call>{"name": "now", "arguments": {}}\n</tool_', [NOW]),
        (' <tool_call>\n{"name": "now"', [' <tool_call>\n{"name": "now"']),
        ("so <tool_", ["so <tool_"]),
        # Malformed: nothing is lost.
        ("a <tool_call>now()</tool_call> b", ["a <tool_call>now()</tool_call> b"]),
        ('<tool_call>{"name": 5}</tool_call>', ['<tool_call>{"name": 5}</tool_call>']),
        ('<tool_call>{"name": "x", "arguments": [1]}', ['<tool_call>{"name": "x", "arguments": [1]}']),
        ('<tool_call>{"name": "x", "arguments": "no"}', ['<tool_call>{"name": "x", "arguments": "no"}']),
        ('<tool_call>{"name": "x", "name": "y"}', ['<tool_call>{"name": "x", "name": "y"}']),
        ('<tool_call>{"other": 1}', ['<tool_call>{"other": 1}']),
        ('<tool_call>{"type": "tool", "name": "now"}', ['<tool_call>{"type": "tool", "name": "now"}']),
        ('<tool_call>{"name": "now", "arguments": {"a": 1</tool_call>', [("now", '{"a": 1')]),
        ('<tool_call>{"name": "now", "arguments": {}}}</tool_call>', [NOW, "}</tool_call>"]),
        ('<tool_call>{"name": "now", "arguments": {}, "a": 1}', [NOW, ', "a": 1}']),
        ('<tool_call><tool_call>{"name": "now"}</tool_call>', ["<tool_call>", NOW]),
        ('<tool_call>{"name": "now"}<tool_call>{"name": "now"}</tool_call>', [NOW, NOW]),
        ('<tool_call>{"name": "' + "x" * 257 + '"}', ['<tool_call>{"name": "' + "x" * 257 + '"}']),
        ('<tool_call>{"name": "' + "x" * 9000, ['<tool_call>{"name": "' + "x" * 9000]),
    ],
    "llama3_json": [
        ('{"name": "now", "parameters": {}}', [NOW]),
        ('<|python_tag|>{"name": "get_weather", "parameters": {"city": "Par\\"is}"}}', [WEATHER]),
        ('{"type": "function", "name": "now", "parameters": {}}; {"name": "now"}', [NOW, NOW]),
        ('Sure!\n{"name": "now", "arguments": {}}\n', ["Sure!", NOW]),
        ('{"type": "function", "function": {"name": "now", "parameters": {}}}; {"name": "now"}', [NOW, NOW]),
        ('{"function": {"name": "get_weather", "arguments": {"city": "Par\\"is}"}}, "id": "c1"}', [WEATHER]),
        ('{"function": {}}', ['{"function": {}}']),
        ('{"function": {"function": {"name": "x"}}}', ['{"function": {"function": {"name": "x"}}}']),
        ('{"function": {"name": "x"}}', ['{"function": {"name": "x"}}']),
        ('<|python_tag|>{"name": "unheard", "parameters": {}}', [("unheard", "{}")]),
        ('{"name": "Alice", "age": 7}', ['{"name": "Alice", "age": 7}']),
        ('{{"name": "now"}}', ["{", NOW, "}"]),
        ('<|python_tag|>print("now")', ['<|python_tag|>print("now")']),
        ('{"name": "now", "parameters": {}}; then', [NOW, "; then"]),
        ("def f() { return {}; }", ["def f() { return {}; }"]),
    ],
    "mistral": [
        ('[TOOL_CALLS] [{"name": "now", "arguments": {}}, {"name": "get_weather", "arguments": {"city": '
         '"Par\\"is}"}, "id": "abcdef123"}]', [NOW, WEATHER]),
        ('[TOOL_CALLS]now{}[TOOL_CALLS]get_weather[ARGS]{"city": "Par\\"is}"}', [NOW, WEATHER]),
        ("[TOOL_CALLS]now[CALL_ID]abcdef123[ARGS]{}", [NOW]),
        ('Yes. [TOOL_CALLS]{"name": "now", "arguments": {}}', ["Yes.", NOW]),
        ("[TOOL_CALLS] I think {so}", ["[TOOL_CALLS] I think {so}"]),
        ("[TOOL_CALLS][]", ["[TOOL_CALLS][]"]),
        ("[TOOL_CALLS] []", ["[TOOL_CALLS] []"]),
        ('[TOOL_CALLS] [{"name": "now", "arguments": {}}, oh', [NOW, ", oh"]),
        ('[TOOL_CALLS] [{"name": "now", "arguments": {}}', [NOW]),
        ("[TOOL_CALLS]" + "x" * 300 + "{}", ["[TOOL_CALLS]" + "x" * 300 + "{}"]),
        ("[TOOL_CALLS]now[TOOL_CALLS]now{}", ["[TOOL_CALLS]now", NOW]),
        ("[TOOL_CALLS]now[CALL_ID]a[TOOL_CALLS]now{}", ["[TOOL_CALLS]now[CALL_ID]a", NOW]),
        ("[TOOL_CALLS]now[ARGS][TOOL_CALLS]now{}", ["[TOOL_CALLS]now[ARGS]", NOW]),
        ("[TOOL_CALLS]now[1]{}", ["[TOOL_CALLS]now[1]{}"]),
        ("[1, 2] [TOOL", ["[1, 2] [TOOL"]),
    ],
    "required": [
        ('[{"name": "now", "parameters": {}}, {"name": "get_weather", "parameters": {"city": "Par\\"is}"}}] ',
         [NOW, WEATHER]),
        (' [{"name": "now", "parameters": {"a": [1, ', [("now", '{"a": [1, ')]),
        (' [{"name": "no', [' [{"name": "no']),
        ("Hello", ["Hello"]),
        ('[{"name": "now", "parameters": {}}]  and', [NOW, "and"]),
        ('[{"name": "now", "parameters": {}}, 5]', [NOW, ", 5]"]),
    ],
    "named": [("", []), (" ", []), (' {"a": 1}', [("now", '{"a": 1}')])],
}  # fmt: skip
ALL = [(kind, text, expected) for kind, cases in CASES.items() for text, expected in cases]


@pytest.mark.parametrize(("kind", "text", "expected"), ALL)
def test_what_an_output_is(kind: str, text: str, expected: list[Any]) -> None:
    assert read(kind, [text]) == expected
    assert read(kind, text) == expected
    for place in range(len(text)):
        assert read(kind, [text[:place], text[place:]]) == expected


PARTS = [
    *("<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", '{"name": "now"', "now"),
    *(', "arguments": ', '"parameters": {', "{", "}", "[", "]", '"', "\\", ":", ",", ";", " ", "\n", "null", "x", "<"),
    *('{"name": "get_weather", "arguments": {"city": "x"}}', '"id": 5', '"type": "function", ', " " * 70),
]
VALUES = st.text() | st.integers() | st.lists(st.floats(allow_nan=False), max_size=2)
TEXTS = st.lists(st.sampled_from(PARTS) | st.text(max_size=3), max_size=14).map("".join)


@settings(max_examples=examples(300), deadline=None)
@given(st.sampled_from(list(PARSERS)), TEXTS, st.data())
def test_pieces_make_no_difference(kind: str, text: str, data: st.DataObject) -> None:
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    cuts = [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]
    whole = read(kind, [text])
    assert read(kind, cuts) == whole
    assert read(kind, text) == whole


@settings(max_examples=examples(200), deadline=None)
@given(st.sampled_from(["hermes", "llama3_json", "mistral"]), TEXTS)
def test_an_output_without_calls_is_its_content(kind: str, text: str) -> None:
    found = read(kind, [text])
    if not any(isinstance(one, tuple) for one in found):
        assert "".join(found) == text


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.dictionaries(st.text(), VALUES, max_size=3), min_size=1, max_size=3))
def test_calls_are_what_was_written(arguments: list[dict[str, Any]]) -> None:
    """By each format, whatever their arguments are."""
    calls = [("now", json.dumps(one, ensure_ascii=False)) for one in arguments]
    objects = [f'{{"name": "now", "arguments": {text}}}' for _, text in calls]
    assert read("hermes", ["\n".join(f"<tool_call>\n{one}\n</tool_call>" for one in objects)]) == calls
    assert read("llama3_json", ["<|python_tag|>" + "; ".join(objects)]) == calls
    assert read("mistral", ["".join(f"[TOOL_CALLS]{name}{text}" for name, text in calls)]) == calls
    assert read("mistral", [f"[TOOL_CALLS] [{', '.join(objects)}]"]) == calls
    assert read("required", [f"[{', '.join(objects)}]"]) == calls


def test_text_that_is_no_call_is_not_kept_waiting() -> None:
    """Only what may be the beginning of a mark, and space, is held."""
    parser = PARSERS["hermes"]()
    assert parser.push("a < b ") == [Content("a < b")]
    assert parser.push("<tool") == []
    assert parser.push("s> ") == [Content(" <tools>")]
    assert parser.push(" " * 100) == [Content(" " * 37)]
    parser = PARSERS["llama3_json"]()
    assert parser.push('{"x": ') == [Content('{"x"'), Content(": ".rstrip())]


def test_arguments_are_given_as_they_come() -> None:
    parser = PARSERS["hermes"]()
    found: list[list[Piece]] = [
        parser.push(text) for text in ("<tool_call>", '{"name": "f", ', '"arguments": {"a', '": 1}')
    ]
    assert found == [[], [], [CallBegun("f"), CallArguments('{"a')], [CallArguments('": 1}')]]
