"""Which signals count: those that come together are one."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

import distkv.cli
from distkv.cli import signals
from distkv.cli.signals import BURST_S, Bursts, signals_interrupt

DEADLINE_S = 30.0
ROOT = str(Path(__file__).parents[2])


def test_a_burst_is_counted_from_its_first_signal() -> None:
    bursts = Bursts()
    came_s = (5.0, 5.0, 5.0 + BURST_S / 2, 5.0 + BURST_S, 5.0 + 1.5 * BURST_S, 9.0)
    assert [bursts.begins(at_s) for at_s in came_s] == [True, False, False, True, False, True]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """now_s: as the handlers see it."""
    clock = SimpleNamespace(now_s=100.0)
    monkeypatch.setattr(signals, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    yield clock


@pytest.mark.parametrize(("once", "interrupts_later"), [(False, True), (True, False)])
def test_what_timeout_sends_interrupts_once(clock: SimpleNamespace, once: bool, interrupts_later: bool) -> None:
    with signals_interrupt(once=once):
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)  # to the group of the process
        signal.raise_signal(signal.SIGINT)
        clock.now_s += BURST_S
        with pytest.raises(KeyboardInterrupt) if interrupts_later else contextlib.nullcontext():
            signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("once", [False, True])
def test_one_that_python_drops_comes_again(once: bool) -> None:
    """Ctrl-C in a finalizer would be written to stderr and forgotten."""

    class Finalized:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    with signals_interrupt(once=once), pytest.raises(KeyboardInterrupt):
        Finalized()
        threading.Event().wait(DEADLINE_S)


@pytest.mark.parametrize("once", [False, True])
def test_one_that_msgspec_would_drop_comes_later(once: bool) -> None:
    """Where it asks for the hash of a type, it takes what is raised for "none": a demo ran on to its end."""

    class Kind(type):
        def __hash__(cls) -> int:
            signal.raise_signal(signal.SIGINT)
            return super().__hash__()

    class Wanted(metaclass=Kind):
        pass

    with signals_interrupt(once=once), pytest.raises(KeyboardInterrupt):
        msgspec.convert(Wanted(), Wanted)
        threading.Event().wait(DEADLINE_S)
    with pytest.raises(KeyboardInterrupt), signals_interrupt(once=once):  # also if nothing follows
        msgspec.convert(Wanted(), Wanted)


def test_what_else_python_drops_is_reported_as_before(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Finalized:
        def __del__(self) -> None:
            raise ValueError("in a finalizer")

    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)
    with signals_interrupt():
        Finalized()
    assert sys.unraisablehook is sys.__unraisablehook__
    assert "in a finalizer" in capsys.readouterr().err


LOADING = """
import signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)  # as at a terminal, whoever runs the tests

class Interrupts:
    def find_spec(self, name, *_):
        if name == "click":
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
sys.argv = [sys.argv[1], "--version"]
import distkv.cli.main
"""


@pytest.mark.parametrize("program", sorted(distkv.cli.PROGRAMS))
def test_one_while_a_program_loads_ends_it_without_a_traceback(program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADING, f"/usr/bin/{program}"], capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (-signal.SIGINT, b"")


NOT_IGNORED = """
import os, signal
signal.signal({:d}, signal.SIG_DFL)
"""
"""Whatever runs the tests may ignore it, as nohup does, and such a program heeds that."""


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root, and unshare")
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_process_of_a_container_ends_while_it_loads(signum: signal.Signals) -> None:
    """The system drops what such a process does not handle: `docker stop` was not heard before a daemon ran."""
    within = ("unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c")
    loading = LOADING.replace("signal.raise_signal(signal.SIGINT)", f"os.kill(os.getpid(), {signum:d})")
    done = subprocess.run(
        [*within, f"{NOT_IGNORED.format(signum)}{loading}", "/usr/bin/distkv"],
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (128 + signum, b"", b"")


LOADING_A_COMMAND = """
import signal, sys
import msgspec

signal.signal(signal.SIGINT, signal.default_int_handler)

class Kind(type):
    def __hash__(cls):
        signal.raise_signal(signal.SIGINT)
        return super().__hash__()

class Wanted(metaclass=Kind):
    pass

class Interrupts:
    def find_spec(self, name, *_):
        if name == "distkv.cli.commands.status":
            msgspec.convert(Wanted(), Wanted)

sys.meta_path.insert(0, Interrupts())
sys.argv = ["/usr/bin/distkv", "status", "--help"]
from distkv.cli.main import main
main()
"""


def test_one_while_a_command_loads_is_not_dropped() -> None:
    """Of msgspec, which is asked for hundreds of types then: a cluster started, and ran on."""
    done = subprocess.run([sys.executable, "-c", LOADING_A_COMMAND], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, b"", b"")


WHILE = """
import signal, sys
from pathlib import Path

signal.signal(signal.SIGINT, signal.default_int_handler)
place, *sys.argv = sys.argv[1:]

def interrupt(*_, **__):
    signal.raise_signal(signal.SIGINT)

import click.termui
from distkv.bench.profiling import plot as profile_plot, run
from distkv.bench.simulation import plot as play_plot
from distkv.cli.main import main
from distkv.wire.profile_file import ProfileFile, save_profile
from tests.sim.timed.parts import PROFILE

click.termui.visible_prompt_func = profile_plot.draw = play_plot.draw = interrupt
run.run = lambda *_, **__: ProfileFile(profile=PROFILE)
save_profile(ProfileFile(profile=PROFILE), Path(place, "profile.json"))
Path(place, "trace.csv").write_text("arrival_s,prompt_tokens,output_tokens\\n0,100,10\\n")
main()
"""


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (("demo", "--ask"), "interrupted; nothing was started\n"),
        (
            ("profile", "--model", "demo", "-o", "out.json", "--plot", "p.png"),
            "no time was left to compare predictions with measurements\n",
        ),
        (
            (
                "sim",
                "--trace",
                "trace.csv",
                "--profile",
                "profile.json",
                "--instances",
                "1",
                "--kv-tokens",
                "1600",
                "--plot",
                "s.png",
            ),
            "contract ",
        ),
    ],
)
def test_one_where_a_command_has_something_to_say_ends_it_after_that(
    command: tuple[str, ...], told: str, tmp_path: Path
) -> None:
    """Not as the system does: at a question, and while what was measured is drawn."""
    pytest.importorskip("matplotlib", reason="--plot needs the extra 'bench'")
    done = subprocess.run(
        [sys.executable, "-c", WHILE, str(tmp_path), "/usr/bin/distkv", *command],
        capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path, env=os.environ | {"PYTHONPATH": ROOT},
    )  # fmt: skip
    assert done.returncode == 130, done.stderr
    assert told in done.stdout + done.stderr and "Traceback" not in done.stderr
