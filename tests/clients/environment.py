"""An environment for other people's clients, apart from the one that distkv is tested in. What it holds is in
requirements.txt beside this file; it is made once for each version of that, and reused."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import time
import venv
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conftest import LASTING

ROOT = Path(__file__).parents[2]
REQUIREMENTS = Path(__file__).with_name("requirements.txt")
FOLDER = ROOT / ".venv-clients"
INSTALL_S = 420
NO_INDEX = re.compile(r"from versions: none|Connection broken|ConnectionError|NameResolutionError|Read timed out")


class Installation:
    """Makes the environment in a process beside the tests, unless it is there; `done` waits for that."""

    def __init__(self) -> None:
        self._stamp = FOLDER / ".stamp"
        self._wanted = f"{sys.version}\n{FOLDER}\n{REQUIREMENTS.read_text(encoding='utf-8')}"
        self._pip: subprocess.Popen[str] | None = None
        self._holds = ExitStack()
        self._deadline_s = time.monotonic() + INSTALL_S
        if not self._is_current():
            self._begin()

    def done(self) -> Path:
        """Its directory of programs. Skips the test when no package index can be reached, and fails it when that has
        not what is wanted."""
        if self._pip is not None:
            try:
                _out, said = self._pip.communicate(timeout=max(0.0, self._deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                pytest.skip(f"other people's clients were not installed within {INSTALL_S} s")
            failed, self._pip = self._pip.returncode, None
            if failed:
                reason = f"other people's clients cannot be installed: {said.strip()[-1000:]}"
                pytest.skip(reason) if NO_INDEX.search(said) else pytest.fail(reason, pytrace=False)
            self._stamp.write_text(self._wanted, encoding="utf-8")
            self._holds.close()
        return FOLDER / "bin"

    def close(self) -> None:
        """Ends what is not done."""
        if self._pip is not None:
            self._pip.kill()
            self._pip.communicate()
        self._holds.close()

    def _is_current(self) -> bool:
        return self._stamp.is_file() and self._stamp.read_text(encoding="utf-8") == self._wanted

    def _begin(self) -> None:
        FOLDER.mkdir(exist_ok=True)
        lock = self._holds.enter_context((ROOT / ".venv-clients.lock").open("w"))
        fcntl.flock(lock, fcntl.LOCK_EX)
        if self._is_current():
            self._holds.close()
            return
        shutil.rmtree(FOLDER)
        venv.create(FOLDER, with_pip=True)
        options = ["--quiet", "--no-input", "--disable-pip-version-check", "--no-deps", "--no-compile"]
        self._pip = subprocess.Popen(
            [FOLDER / "bin/python", "-m", "pip", "install", *options, "-r", REQUIREMENTS],
            env=os.environ | {"PYTHONWARNINGS": "ignore"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        # It starts others, to build what has no wheel.
        LASTING.add(self._pip.pid)
