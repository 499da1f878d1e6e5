"""Cluster events: typed facts that log lines are made of."""

from __future__ import annotations

import ast
import functools
import operator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import distkv
from distkv import events
from distkv.events import ClusterEvent
from distkv.log.lines import PRIVATE_FIELDS

KINDS = ClusterEvent.__subclasses__()
OF_EVERY_LINE = {"event", "cause", "level", "timestamp", "process", "instance_id"}
EXAMPLES: dict[str, Any] = {"state": "ready", "reason": "length", "restarted": True}


def example(kind: type[ClusterEvent]) -> ClusterEvent:
    fields = {field.name: EXAMPLES.get(field.name, 3) for field in msgspec.structs.fields(kind)}
    return kind(
        **{name: "x" if kind.__annotations__[name] == "str" else value for name, value in fields.items()}  # type: ignore[call-overload]
    )


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_subscriber_reads_what_was_published(kind: type[ClusterEvent]) -> None:
    event = example(kind)
    encoded = msgspec.json.encode(event)
    assert msgspec.json.decode(encoded, type=functools.reduce(operator.or_, KINDS)) == event
    assert msgspec.json.decode(encoded) == {"event": event.name, **event.fields()}


def test_the_log_shows_every_field_of_every_event() -> None:
    for kind in KINDS:
        fields = set(kind.__struct_fields__)
        assert not fields & (PRIVATE_FIELDS | OF_EVERY_LINE), kind


def test_names_and_fields_of_a_line_are_those_of_the_event() -> None:
    event = events.SpanLost(request_id="r", creditor="b", blocks=3, why="its lease ran out")
    assert event.name == "span_lost"
    assert event.fields() == {"request_id": "r", "creditor": "b", "blocks": 3, "why": "its lease ran out"}
    assert len({kind.__struct_config__.tag for kind in KINDS}) == len(KINDS)


def test_control_publishes_each_kind_of_event() -> None:
    sources = [ast.parse(path.read_text("utf-8")) for path in (Path(distkv.__file__).parent / "control").rglob("*.py")]
    made = {
        node.func.attr
        for tree in sources
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }
    assert {kind.__name__ for kind in KINDS} <= made
