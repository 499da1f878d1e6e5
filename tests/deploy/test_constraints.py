"""constraints.txt: it can be installed from the package index as it is, with a torch that has CUDA and with one that
has not, and nothing of what the tests run with is missing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PINS = dict(
    line.split("==") for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines() if "==" in line
)
REACHING = ("cert", "client-cert", "index-url", "proxy", "trusted-host")
"""Settings of pip without which the index may be out of reach. All others are left out."""
CUDA = re.compile(r"triton|cuda-.*|nvidia-.*")
NO_SOLUTION = re.compile(r"ResolutionImpossible|from versions: (?!none)")
REACH_S, RESOLVE_S = 60, 240


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_what_depends_on_the_build_of_torch_is_not_pinned() -> None:
    assert PINS
    assert not [name for name in PINS if CUDA.fullmatch(canonical(name))]


@pytest.fixture(scope="module")
def pip(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A pip of today that knows nothing of this machine but how to reach the index; that of the environment may be too
    old to resolve without downloading."""
    configured = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    found = dict(re.findall(r"^[\w:]+\.([\w-]+)='(.*)'$", configured, re.M))
    options = [f"--{name}={value}" for name, value in found.items() if name in REACHING]
    folder = tmp_path_factory.mktemp("pip")
    venv.create(folder, with_pip=True)
    command = [str(folder / "bin/python"), "-m", "pip", "--isolated", "--no-input", "--disable-pip-version-check"]
    env = environment()
    try:
        done = subprocess.run(
            [*command, "install", "--quiet", "--upgrade", "pip", *options],
            capture_output=True,
            text=True,
            check=False,
            timeout=REACH_S,
            env=env,
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"no package index answered within {REACH_S} s")
    if done.returncode:
        pytest.skip(f"no package index can be reached: {done.stderr.strip().splitlines()[-1]}")
    return [*command, "install", "--dry-run", "--quiet", *options]


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PIP_")} | {
        "PIP_CONFIG_FILE": os.devnull
    }


def resolved(pip: list[str], folder: Path, *options: str) -> dict[str, str]:
    """Name → version of all that would be installed for every extra."""
    wanted = [*PROJECT["dependencies"], *(one for extra in PROJECT["optional-dependencies"].values() for one in extra)]
    (folder / "wanted.txt").write_text("\n".join(wanted), encoding="utf-8")
    report = folder / "report.json"
    try:
        done = subprocess.run(
            [*pip, f"--report={report}", *options, "-c", str(ROOT / "constraints.txt"), "-r", folder / "wanted.txt"],
            capture_output=True,
            text=True,
            check=False,
            timeout=RESOLVE_S,
            env=environment(),
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"the package index was not done within {RESOLVE_S} s")
    if done.returncode and not NO_SOLUTION.search(done.stderr):
        pytest.skip(f"the package index failed meanwhile: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    items = json.loads(report.read_text(encoding="utf-8"))["install"]
    return {canonical(item["metadata"]["name"]): item["metadata"]["version"] for item in items}


def wheel_without_cuda(folder: Path) -> None:
    """Of the pinned torch: that there is no code in it does not matter to what goes with it."""
    version = f"{PINS['torch']}+cpu"
    info = f"torch-{version}.dist-info"
    with zipfile.ZipFile(folder / f"torch-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


@pytest.mark.slow
@pytest.mark.timeout(REACH_S + RESOLVE_S + 60)
def test_they_resolve_from_the_index_alone(pip: list[str], tmp_path: Path) -> None:
    found = resolved(pip, tmp_path)
    assert found["torch"] == PINS["torch"] and "triton" in found
    pinned = {canonical(name) for name in PINS}
    assert not [name for name in found.keys() - pinned if not CUDA.fullmatch(name)]


@pytest.mark.slow
@pytest.mark.timeout(REACH_S + RESOLVE_S + 60)
def test_they_resolve_with_a_wheel_of_torch_without_cuda(pip: list[str], tmp_path: Path) -> None:
    wheel_without_cuda(tmp_path)
    found = resolved(pip, tmp_path, f"--find-links={tmp_path}")
    assert found["torch"] == f"{PINS['torch']}+cpu" and "triton" in found
    assert not [name for name in found if CUDA.fullmatch(name) and name != "triton"]
