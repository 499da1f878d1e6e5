"""Nothing tells anybody to install `distkv` from a package index: under that name is somebody else's project."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
KINDS = {"", ".md", ".py", ".sh", ".toml", ".txt", ".conf", ".service"}
PLACES = ("bin", "configs", "distkv", "docs")
FILES = [
    *(path for path in ROOT.iterdir() if path.suffix in {".md", ".toml", ".txt", ".py"}),
    *(path for place in PLACES for path in (ROOT / place).rglob("*") if path.is_file() and path.suffix in KINDS),
]
FROM_INDEX = re.compile(r"""pip3? install\b[^\n`]*?[\s'"]distkv(?![\w/-]|'s)|\bdistkv\[[a-z]""")
EXTRAS = re.compile(r"""pip3? install\b[^\n`]*?[\s'"](?:\.|\$root)\[([a-z,]+)\]""")


@pytest.mark.parametrize(
    ("line", "is_told"),
    [
        ("pip install 'distkv[gpu]'", True),
        ("pip install distkv", True),
        ("pip install -c constraints.txt distkv==0.1", True),
        ("needs distkv[bench]", True),
        ("in distkv's checkout: pip install '.[gpu]'", False),
        ("/opt/distkv/bin/pip install -c constraints.txt .", False),
        ("pip install llm-distkv", False),
        ("pip install /srv/distkv", False),
    ],
)
def test_such_a_line_is_found(line: str, is_told: bool) -> None:
    assert bool(FROM_INDEX.search(line)) == is_told


def test_no_page_and_no_hint_installs_a_stranger() -> None:
    assert PROJECT["name"] != "distkv" and {ROOT / "README.md", ROOT / "distkv/engine/device/cuda.py"} <= set(FILES)
    told = [
        f"{path.relative_to(ROOT)}: {found[0]}"
        for path in FILES
        for found in FROM_INDEX.finditer(path.read_text(encoding="utf-8"))
    ]
    assert not told


def test_extras_that_are_named_exist() -> None:
    named = {
        extra
        for path in FILES
        for found in EXTRAS.finditer(path.read_text(encoding="utf-8"))
        for extra in found[1].split(",")
    }
    assert {"gpu", "bench", "ucx"} <= named <= set(PROJECT["optional-dependencies"])
