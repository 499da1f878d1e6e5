"""What the demo shows: live on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from rich.console import Console, ConsoleRenderable, Group
from rich.live import Live
from rich.padding import Padding
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from distkv.demo.run.monitor import RequestMonitor
from distkv.demo.run.placement import draw

REFRESH_HZ = 10
ANSWER_LINES = 4


class Progress(Protocol):
    """How far the answer is, as the live view needs it."""

    prompt_tokens: int
    max_tokens: int
    text: str

    @property
    def num_tokens(self) -> int:
        """Of the answer, so far."""


class Display:
    """Prints steps and facts; `live_view` shows a request while it runs."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def say(self, text: str | Text = "", style: str = "") -> None:
        """A line."""
        self.console.print(text, style=style or None, soft_wrap=True, markup=False, highlight=False)

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[Callable[[str], None]]:
        """A part of the demo; call what it yields with a fact worth telling. A part that fails is named."""
        facts: list[str] = []
        started_s = time.monotonic()
        live = self.console.is_terminal
        if not live:
            self.say(f"{title} ...")
        try:
            with self.console.status(title) if live else contextlib.nullcontext():
                yield facts.append
        except Exception:
            self.say(f"failed: {title}", "red")
            raise
        took = f"{time.monotonic() - started_s:.1f} s"
        if live:
            self.say(Text("✓ ", "green") + Text(title) + Text(f" ({took})", "dim"))
        for fact in facts:
            self.say(f"  {fact}")
        if not live:
            self.say(f"  done after {took}")

    @contextlib.contextmanager
    def live_view(self, progress: Progress, monitor: RequestMonitor) -> Iterator[None]:
        """Within, a terminal shows progress, the map and the newest text; it is gone afterwards."""
        if not self.console.is_terminal:
            yield
            return
        with Live(
            get_renderable=lambda: self._rendered(progress, monitor),
            console=self.console,
            refresh_per_second=REFRESH_HZ,
            transient=True,
        ):
            yield

    def stream(self, text: str) -> None:
        """New text of the answer; a terminal has it in the live view."""
        if not self.console.is_terminal:
            self.console.file.write(printable(text))
            self.console.file.flush()

    def answered(self, text: str) -> None:
        """The answer is complete: lines are ended, and a terminal, whose live view is gone, gets all of it."""
        if self.console.is_terminal:
            self.console.print(Padding(Text(printable(text), "italic"), (0, 2)))
        else:
            self.stream("\n")

    def _rendered(self, progress: Progress, monitor: RequestMonitor) -> ConsoleRenderable:
        placement = monitor.placement
        stored = min(placement.num_tokens, progress.prompt_tokens) if placement else 0
        if progress.num_tokens:
            stored = progress.prompt_tokens
        bars = Table.grid(padding=(0, 1))
        for name, done, total in (
            ("prompt", stored, progress.prompt_tokens),
            ("answer", progress.num_tokens, progress.max_tokens),
        ):
            bars.add_row(name, ProgressBar(total=total, completed=done, width=40), f"{done:,} of {total:,} tokens")
        lines = draw(placement) if placement else [Text("  waiting for memory", "dim")]
        wrapped = Text(printable(progress.text)).wrap(self.console, max(20, self.console.width - 4))
        answer = Panel(Group(*wrapped[-ANSWER_LINES:]), title="answer", title_align="left", height=ANSWER_LINES + 2)
        return Group(bars, *lines, answer)


def printable(text: str) -> str:
    """The text without what would move a terminal's cursor; random weights write any byte."""
    return "".join(char if char.isprintable() or char == "\n" else "·" for char in text)
