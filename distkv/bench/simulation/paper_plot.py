"""Figures of the papers as pictures."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Any

from distkv.sim.papers.figure import Figure, Panel
from distkv.sim.papers.tables import printed, theirs

COLUMNS = 3
MOST_PRINTED = 12
"""Ratios below a picture; the page has all."""


def draw(figure: Figure, path: Path) -> None:
    """Its panels, with the first ratios below."""
    figures: Any = importlib.import_module("matplotlib.figure")
    columns = min(COLUMNS, len(figure.panels))
    rows = math.ceil(len(figure.panels) / columns)
    whose = "goal" if figure.has_goals else "paper"
    below = [f"{one.what}: {printed(one.ours)} ({whose}: {theirs(one)})" for one in figure.ratios[:MOST_PRINTED]]
    height = 3.2 * rows + 0.8 + 0.18 * len(below)
    picture = figures.Figure(figsize=(4.8 * max(2, columns), height), layout="constrained")
    quick = ", quick" if figure.effort == "quick" else ""
    picture.suptitle(f"{figure.name}: {figure.title}{quick}")
    for index, panel in enumerate(figure.panels):
        _panel(picture.add_subplot(rows, columns, index + 1), panel, figure)
    picture.supxlabel("\n".join(below), fontsize="small", ha="left", x=0.01)
    picture.savefig(path, dpi=100)


def _panel(axes: Any, panel: Panel, figure: Figure) -> None:
    for one in panel.series:
        axes.plot(one.x, one.y, marker="o", markersize=3, label=one.label)
    axes.set_title(panel.title, fontsize="medium")
    axes.set_xlabel(panel.x_label or figure.x_label, fontsize="small")
    axes.set_ylabel(panel.y_label or figure.y_label, fontsize="small")
    if panel.x_log:
        axes.set_xscale("log")
    if panel.y_log:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.legend(fontsize="x-small")
