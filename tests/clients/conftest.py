from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from distkv import LocalCluster
from distkv.config import DEMO_MODEL, model_dir
from tests.clients.environment import ROOT, Installation
from tests.conftest import LASTING

PROGRAMS = Path(__file__).with_name("programs")
PROGRAM_S = 120

Run = Callable[..., str]
Ask = Callable[..., Any]


@pytest.fixture(scope="session")
def installation() -> Iterator[Installation]:
    begun = Installation()
    yield begun
    begun.close()


@pytest.fixture(scope="package")
def demo(installation: Installation) -> Iterator[LocalCluster]:
    """The model of the pages, by its name, on two instances; it starts while the clients are installed."""
    with LocalCluster(instances=2, kv_tokens=1024, dtype="float32", threads=1, validate_state=True) as cluster:
        # They start a process that checks grammars when the first one comes.
        assert cluster.gateway is not None
        LASTING.update(one.pid for one in (cluster.gateway, *cluster.instances))
        yield cluster


@pytest.fixture(scope="session")
def checkpoint() -> Path:
    return Path(model_dir(DEMO_MODEL))


@pytest.fixture(scope="package")
def programs(installation: Installation, demo: LocalCluster) -> Path:
    """The directory of the clients' programs."""
    return installation.done()


@pytest.fixture
def run(programs: Path, demo: LocalCluster, tmp_path: Path) -> Run:
    """Runs a command in the clients' environment, as a page has it but for where it is served; what it printed."""
    (tmp_path / "distkv").symlink_to(ROOT / "distkv")
    env = {
        "PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "LANG": "C.UTF-8",
        "COLUMNS": "160",
        # Nothing is to be had beyond the package index.
        "HF_HUB_OFFLINE": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }

    def one(*command: str | Path, text: str = "") -> str:
        done = subprocess.run(
            [here(str(part), demo) for part in command], input=here(text, demo), cwd=tmp_path, env=env,
            capture_output=True, text=True, check=False, timeout=PROGRAM_S,
        )  # fmt: skip
        assert done.returncode == 0, f"{done.stdout[-3000:]}{done.stderr[-6000:]}"
        return done.stdout

    return one


@pytest.fixture
def ask(run: Run) -> Ask:
    """Runs one of the programs beside this file; what it found out."""

    def one(program: str, *arguments: str | Path) -> Any:
        return json.loads(run("python", PROGRAMS / program, "http://127.0.0.1:8000", *arguments).splitlines()[-1])

    return one


def here(text: str, cluster: LocalCluster) -> str:
    return text.replace("http://127.0.0.1:8000", cluster.http_url)


def block(page: str, language: str, word: str) -> str:
    """The one block of a page in this language that has a word."""
    text = (ROOT / page).read_text(encoding="utf-8")
    (found,) = (one for one in re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S) if word in one)
    return str(found)
