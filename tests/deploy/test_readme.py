"""README's commands and its Python, pasted in order into fresh shells, and beside them what other pages ask of the same
cluster."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Timer

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.M | re.S)
BY_ITSELF = re.compile(r"^(?:\w+=\S+ )*bin/")
"""bin/demo and bin/test make an environment first, and are run by tests of their own and by CI."""
OTHER_CLIENTS = re.compile(r"^import (?:litellm|langchain_openai)$", re.M)
"""tests/clients runs what needs them."""
ACTIVATE = ". .venv/bin/activate\n"
START_S, COMMAND_S, STOP_S = 90, 60, 40
PORTS = (7070, 8000)


def blocks() -> Iterator[tuple[str, str]]:
    """(language, text) of what is to be pasted."""
    for language, text in blocks_of("README.md"):
        lines = [line for line in text.splitlines(keepends=True) if language == "python" or not BY_ITSELF.match(line)]
        if lines:
            yield language, "".join(lines)


def blocks_of(page: str) -> list[tuple[str, str]]:
    return BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))


def python_of(page: str) -> list[str]:
    return [text for language, text in blocks_of(page) if language == "python"]


def fresh_environment(home: Path) -> dict[str, str]:
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(home), "LANG": "C.UTF-8", "COLUMNS": "160"}


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def start(script: str, env: dict[str, str], stack: ExitStack) -> subprocess.Popen[str]:
    """A shell that has reached `ready`, and is ended with the test."""
    shell = stack.enter_context(
        subprocess.Popen(
            ["bash", "-ec", script],
            cwd=ROOT,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
    )
    stack.callback(stop, shell)
    late = Timer(START_S, os.killpg, (shell.pid, signal.SIGTERM))
    late.start()
    seen = ""
    assert shell.stdout is not None
    for line in shell.stdout:
        seen += line
        if line.startswith("try: distkv generate"):
            late.cancel()
            return shell
    late.cancel()
    raise AssertionError(f"it ended or took more than {START_S} s:\n{seen}")


def stop(shell: subprocess.Popen[str]) -> int:
    """As Ctrl-C does. Returns its exit code."""
    if shell.poll() is None:
        os.killpg(shell.pid, signal.SIGINT)
    try:
        shell.communicate(timeout=STOP_S)
    except subprocess.TimeoutExpired:
        os.killpg(shell.pid, signal.SIGKILL)
        raise
    return shell.returncode


def paste(language: str, text: str, env: dict[str, str]) -> str:
    """What a shell of its own prints."""
    command = ["bash", "-ec", text] if language == "sh" else ["bash", "-ec", f"{ACTIVATE}exec python -"]
    done = subprocess.run(
        command,
        input=text if language == "python" else "",
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=COMMAND_S,
    )
    assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
    return done.stdout


def test_every_other_block_is_pasted_and_none_needs_what_was_not_said() -> None:
    pasted = list(blocks())
    assert [language for language, _ in pasted] == ["sh", "sh", "python", "python", "sh"]
    for language, text in pasted:
        assert language == "python" or "distkv " not in text or text.startswith(ACTIVATE), text


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_readme_runs_as_pasted(tmp_path: Path) -> None:
    if Path(sys.prefix) != ROOT / ".venv":
        pytest.skip("the environment of these tests is not the checkout's .venv, which README names")
    if shutil.which("curl") is None:
        pytest.skip("there is no curl")
    if taken := [port for port in PORTS if not is_free(port)]:
        pytest.skip(f"something else listens on the ports that README takes: {taken}")
    env = fresh_environment(tmp_path)
    printed = []
    with ExitStack() as stack:
        for language, text in blocks():
            if re.search(r"^distkv up\b", text, re.M):
                cluster = start(text, env, stack)
            else:
                printed.append(paste(language, text, env))
        over_openai, from_async, from_blocking = (
            paste("python", text, env)
            for text in python_of("docs/usage.md")
            if "127.0.0.1" in text and not OTHER_CLIENTS.search(text)
        )
        of_gateway = paste("python", python_of("docs/gateway.md")[0], env)
        assert stop(cluster) == 0
    over_http, from_python, from_batch, command_line = printed
    assert "48213" in over_http
    assert "Greta Holm" in from_python and "tcp://127.0.0.1:" in from_python
    assert "48213 " in from_batch
    assert "48213" in command_line and all(name in command_line for name in ("i0", "i1", "i2"))
    assert "Greta Holm" in over_openai and "Greta Holm" in from_blocking
    assert from_async.count("48213") == of_gateway.count("48213") == 2


def test_the_recipe_for_a_small_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(ROOT / "README.md", tmp_path)
    monkeypatch.chdir(tmp_path)
    (recipe,) = (text for text in python_of("docs/usage.md") if "make_checkpoint" in text)
    exec(compile(recipe, "usage.md", "exec"), {})
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in Path("tiny").iterdir()}
