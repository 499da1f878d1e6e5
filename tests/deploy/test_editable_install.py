"""Python started beside a checkout called distkv finds the package, not the folder."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUILD = """
import sys
from setuptools import build_meta
build_meta.build_editable(sys.argv[1], {"editable_mode": sys.argv[2]})
"""


def installed(checkout: Path, mode: str, folder: Path) -> Path:
    """The Python of an environment that has nothing but the checkout, as pip installs it."""
    wheels = folder / "wheels"
    wheels.mkdir()
    build = [sys.executable, "-c", BUILD, str(wheels), mode]
    done = subprocess.run(build, cwd=checkout, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    venv.create(folder / "env")
    (packages,) = (folder / "env").glob("lib/python*/site-packages")
    (wheel,) = wheels.iterdir()
    with zipfile.ZipFile(wheel) as content:
        content.extractall(packages)
    return folder / "env/bin/python"


def test_the_checkout_does_not_hide_the_package(tmp_path: Path) -> None:
    (mode,) = re.findall(r"--config-settings editable_mode=(\w+) -e ", (ROOT / "bin/_env").read_text(encoding="utf-8"))
    checkout = tmp_path / "distkv"
    (checkout / "distkv").mkdir(parents=True)
    for name in ("pyproject.toml", "README.md", "LICENSE", "distkv/__init__.py"):
        shutil.copy(ROOT / name, checkout / name)
    python = installed(checkout, mode, tmp_path)
    found = subprocess.run(
        [python, "-c", "import distkv; print(distkv.__file__, distkv.__version__)"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert found.stdout.split()[:1] == [str(checkout / "distkv/__init__.py")], found.stderr
