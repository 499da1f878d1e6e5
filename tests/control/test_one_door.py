"""A request's memory changes in one module, `control/request/placement.py`; a pool's slots in `control/blocks.py`; the
state of a sequence in `control/request/sequence.py`, by `control/schedule/sequences.py` alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import distkv

ROOT = Path(distkv.__file__).parent
DOOR = ROOT / "control" / "request" / "placement.py"
FIELDS = {
    "slot", "full", "checksum", "checksumming", "arrived", "moving_from", "moving_from_index",
    "unassigned_slots", "num_ready", "blocks_ready_sent_at", "version", "unsettled",
}  # fmt: skip
LISTS = {"unassigned_slots", "debts", "blocks"}
CHANGES = {"append", "extend", "insert", "pop", "remove", "clear", "sort"}


def changes(source: str) -> Iterator[str]:
    """What a module changes of the memory of a request, as `field, line`."""
    for node in ast.walk(ast.parse(source)):
        changed: ast.expr | None = None
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del) and node.attr in FIELDS:
            yield f"{node.attr}, line {node.lineno}"
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            changed = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
            changed = node.func.value
        if isinstance(changed, ast.Attribute) and changed.attr in LISTS:
            yield f"{changed.attr}, line {node.lineno}"


@pytest.mark.parametrize(
    "line",
    [
        "block.slot = 3",
        "block.full, block.checksum = False, None",
        "seq.placement.version += 1",
        "seq.placement.unassigned_slots.pop(0)",
        "del debt.blocks[2:]",
        "seq.placement.debts.remove(debt)",
    ],
)
def test_a_change_is_seen(line: str) -> None:
    assert list(changes(line))


def test_nobody_else_writes_what_placement_owns() -> None:
    modules = [*(ROOT / "control").rglob("*.py"), *(ROOT / "actors" / "instance").rglob("*.py")]
    found = {
        str(module.relative_to(ROOT)): written
        for module in modules
        if "cluster" not in module.parts and (written := list(changes(module.read_text())))
    }
    assert set(found) == {str(DOOR.relative_to(ROOT))}, found


STATE = {"retry_at", "retries", "starved_since", "began", "pending", "attempt", "high_water"}
OWNERS = {"control/request/sequence.py", "control/request/request.py"}


def test_nobody_else_writes_the_progress_of_a_sequence_or_has_it_change_its_state() -> None:
    written: dict[str, list[str]] = {}
    enters: set[str] = set()
    for module in (ROOT / "control").rglob("*.py"):
        name = str(module.relative_to(ROOT))
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr in STATE:
                if name not in OWNERS:
                    written.setdefault(name, []).append(f"{node.attr}, line {node.lineno}")
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "enter":
                enters.add(name)
    assert not written, written
    assert enters == {"control/schedule/sequences.py"}
