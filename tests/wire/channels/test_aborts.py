"""No connection can end the process at its other end."""

from __future__ import annotations

import subprocess
import sys

import pytest


def run(recipe: str, tries: int) -> None:
    """In a process of its own, which is what an abort ends."""
    command = [sys.executable, "-m", "tests.wire.channels.abort_recipes", recipe, str(tries)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stderr}"


@pytest.mark.parametrize(("recipe", "tries"), [("flood", 8), ("ping", 8), ("blocked", 2)])
def test_no_recipe_aborts(recipe: str, tries: int) -> None:
    run(recipe, tries)


@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "tries"), [("flood", 200), ("ping", 300), ("blocked", 200)])
def test_no_recipe_aborts_in_hundreds_of_tries(recipe: str, tries: int) -> None:
    """For a thousand: `python -m tests.wire.channels.abort_recipes RECIPE 1000`, some minutes each."""
    run(recipe, tries)
