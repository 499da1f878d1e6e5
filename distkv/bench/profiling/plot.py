"""Predictions and measurements over offloaded rBlocks, as in 001, Fig. 7: debtor, creditor, and both together."""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distkv.wire.profile_file import Predicted

Line = dict[int, tuple[float, float]]
"""By rBlocks on the creditor: tokens/s predicted and measured."""


def draw(points: Sequence[Predicted], title: str, path: Path) -> None:
    """A panel for each load of the pair: dots are measured, lines predicted."""
    figures: Any = importlib.import_module("matplotlib.figure")
    panels = panels_of(points)
    columns = max(1, math.ceil(math.sqrt(len(panels))))
    rows = max(1, -(-len(panels) // columns))
    figure = figures.Figure(figsize=(4.5 * max(2, columns), 3.5 * rows + 0.5), layout="constrained")
    figure.suptitle(title)
    figure.supxlabel("line: predicted; dot: measured", fontsize="small")
    for index, (name, lines) in enumerate(panels.items()):
        axes = figure.add_subplot(rows, columns, index + 1)
        for number, (who, line) in enumerate(lines.items()):
            blocks = sorted(line)
            axes.plot(blocks, [line[one][0] for one in blocks], color=f"C{number}", label=who)
            axes.plot(blocks, [line[one][1] for one in blocks], "o", color=f"C{number}")
        axes.set_title(name, fontsize="medium")
        axes.set_xlabel("rBlocks on the creditor")
        axes.set_ylabel("tokens/s (more is better)")
        axes.set_ylim(bottom=0)
        axes.legend(fontsize="small")
    figure.savefig(path, dpi=120)


def panels_of(points: Sequence[Predicted]) -> dict[str, dict[str, Line]]:
    """By load of the pair, whose rate it is, and rBlocks on the creditor."""
    panels: dict[str, dict[str, Line]] = {}
    for point in points:
        decodes = f", creditor decodes {point.creditor_batch}" if point.creditor_batch else ""
        lines = panels.setdefault(f"batch {point.batch}, {point.context_tokens:,} tokens{decodes}", {})
        rates = {"debtor": point.debtor}
        if point.creditor is not None:
            rates |= {
                "creditor": point.creditor,
                "both": (point.debtor[0] + point.creditor[0], point.debtor[1] + point.creditor[1]),
            }
        for who, rate in rates.items():
            lines.setdefault(who, {})[point.remote_blocks] = rate
    return panels
