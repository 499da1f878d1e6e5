"""Processes that do not compute never load torch: they start fast and stay small."""

from __future__ import annotations

import subprocess
import sys

import pytest

LIGHT_MODULES = (
    "distkv",
    "distkv.log.lines",
    "distkv.wire.channel",
    "distkv.wire.worker_pipe",
    "distkv.wire.links",
    "distkv.actors.gmanager.process",
    "distkv.actors.instance.process",
    "distkv.client",
    "distkv.cli.daemons.gateway",
    "distkv.cli.main",
)
NAMES = ("AsyncClient", "Client", "LLM", "LocalCluster", "RequestFailed", "RequestRefused", "SamplingParams")


def loaded_by(code: str, *more: str) -> str:
    script = (
        f"import sys\nmore = {more}\n{code}\nprint(*(m for m in ('torch', 'transformers', *more) if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("module", LIGHT_MODULES)
def test_loads_no_torch(module: str) -> None:
    assert loaded_by(f"import {module}") == ""


def test_an_rmanager_loads_no_numpy_either() -> None:
    assert loaded_by("import distkv.cli.daemons.instance", "numpy") == ""


def test_public_names_load_no_torch() -> None:
    assert loaded_by("import distkv\n" + "\n".join(f"distkv.{name}" for name in NAMES)) == ""
