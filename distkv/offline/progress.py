"""How far a batch is, on standard error."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from distkv.types import RequestOutput

TITLE = "Processed prompts"
UseTqdm = bool | Callable[..., Any]
OnOutput = Callable[[RequestOutput], None]


@contextlib.contextmanager
def progress(use_tqdm: UseTqdm, total: int) -> Iterator[OnOutput | None]:
    """What is to be called with every output: it moves a bar of `total` outputs, or one that a callable with tqdm's
    parameters makes; None for no bar."""
    if not use_tqdm:
        yield None
    elif use_tqdm is True:
        with _bar() as bar:
            task, tokens = bar.add_task(TITLE, total=total, rate=""), 0

            def on_output(output: RequestOutput) -> None:
                nonlocal tokens
                tokens += len(output.token_ids)
                elapsed_s = bar.tasks[0].elapsed or 0.0
                bar.update(task, advance=1, rate=f"{tokens / elapsed_s:,.0f} tokens/s" if elapsed_s else "")

            yield on_output
    else:
        with contextlib.closing(use_tqdm(total=total, desc=TITLE, dynamic_ncols=True)) as made:
            yield lambda output: made.update(1)


def _bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[rate]}"),
        console=Console(stderr=True),
    )
