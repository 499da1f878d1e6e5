"""The papers, made again: figures of 000 and 001 by the real control code and formulas of the same hardware.

`FIGURES` has all of them by name; `make` makes one. Constants come from `profiles` and `datasets`, which cite where
they are from; none was chosen by what a figure looks like.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from distkv.config import nearest
from distkv.errors import ConfigError
from distkv.sim.papers.beyond import context as beyond_context
from distkv.sim.papers.beyond import failures, imbalance
from distkv.sim.papers.distkv_llm import attention, context, datasets, dgfm, migration
from distkv.sim.papers.distkv_llm import serving as distkv_serving
from distkv.sim.papers.figure import Effort, Figure, Maker, Say
from distkv.sim.papers.infinite_llm import attention as infinite_attention
from distkv.sim.papers.infinite_llm import context as infinite_context
from distkv.sim.papers.infinite_llm import movement, pair, serving
from distkv.sim.papers.infinite_llm import table as infinite_table

FIGURES: Mapping[str, Maker] = {
    "000-table-2": datasets.table_2,
    "000-7": context.figure_7,
    "000-8": distkv_serving.figure_8,
    "000-9": migration.figure_9,
    "000-10": dgfm.figure_10,
    "000-11": attention.figure_11,
    "000-12": attention.figure_12,
    "001-table-1": infinite_table.table_1,
    "001-7": pair.figure_7,
    "001-9": infinite_context.figure_9,
    "001-10a": serving.figure_10a,
    "001-10b": serving.figure_10b,
    "001-11": infinite_attention.figure_11,
    "001-12": movement.figure_12,
    "beyond-context": beyond_context.figure_context,
    "beyond-imbalance": imbalance.figure_imbalance,
    "beyond-failures": failures.figure_failures,
}
"""By paper and figure."""


def make(name: str, effort: Effort, say: Say) -> Figure:
    """A figure; the same for the same effort. Raises ConfigError naming `figure` for a name that is none."""
    if name not in FIGURES:
        raise ConfigError("figure", f"there is no figure {name!r}", nearest(name, FIGURES))
    return replace(FIGURES[name](effort, say), effort=effort.value)
