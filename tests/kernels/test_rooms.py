"""Which room of the kernels may import which: what is common to all devices stands above those of each."""

from __future__ import annotations

from pathlib import Path

import pytest

import distkv
from tests.project.test_layering import imports_of

KERNELS = Path(distkv.__file__).parent / "kernels"
DEVICES = {"cpu", "triton"}


@pytest.mark.parametrize("path", sorted(KERNELS.rglob("*.py")), ids=lambda path: str(path.relative_to(KERNELS)))
def test_kernels_of_one_device_know_nothing_of_another(path: Path) -> None:
    own = path.relative_to(KERNELS).parts[0]
    for line, imported in imports_of(path):
        rooms = imported.removeprefix("distkv.kernels.").split(".")
        if imported.startswith("distkv.kernels.") and rooms[0] in DEVICES:
            assert rooms[0] == own, f"line {line} of {path.name} imports {imported}"


def test_only_triton_imports_triton() -> None:
    """It is an extra: without it everything else has to load."""
    importers = {
        path.relative_to(KERNELS).parts[0]
        for path in KERNELS.rglob("*.py")
        for _, imported in imports_of(path)
        if imported.partition(".")[0] == "triton"
    }
    assert importers == {"triton"}
