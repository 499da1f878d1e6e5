"""The papers, made again: figures of 000, 001 and 004 by the real control code and formulas of the same hardware.

`FIGURES` has them by name, and `OF_TRACES` those that play somebody's traces; `make` makes one. Constants come from
`profiles` and `datasets`, which cite where they are from; none was chosen by what a figure looks like.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from distkv.config import nearest
from distkv.errors import ConfigError
from distkv.sim.papers.beyond import context as beyond_context
from distkv.sim.papers.beyond import failures, goodput, imbalance
from distkv.sim.papers.distkv_llm import attention, context, datasets, dgfm, migration
from distkv.sim.papers.distkv_llm import serving as distkv_serving
from distkv.sim.papers.figure import Effort, Figure, Maker, PlayedTrace, Say, TraceMaker
from distkv.sim.papers.infinite_llm import attention as infinite_attention
from distkv.sim.papers.infinite_llm import context as infinite_context
from distkv.sim.papers.infinite_llm import movement, pair, serving
from distkv.sim.papers.infinite_llm import table as infinite_table
from distkv.sim.papers.kvdirect import configurations
from distkv.sim.papers.kvdirect import serving as kvdirect_serving

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
    "004-12": configurations.figure_12,
    "004-13": kvdirect_serving.figure_13,
    "004-14": kvdirect_serving.figure_14,
    "004-16": kvdirect_serving.figure_16,
    "beyond-context": beyond_context.figure_context,
    "beyond-imbalance": imbalance.figure_imbalance,
    "beyond-failures": failures.figure_failures,
}
"""By paper and figure."""


OF_TRACES: Mapping[str, TraceMaker] = {"beyond-goodput": goodput.figure_goodput}
"""Those that are made of traces that somebody has."""
NAMES = (*FIGURES, *OF_TRACES)


def make(name: str, effort: Effort, say: Say, traces: Sequence[PlayedTrace] = ()) -> Figure:
    """A figure; the same for the same effort and traces, which only those of OF_TRACES look at.

    Raises ConfigError naming `figure` for a name that is none, and `trace` where a figure has none to play.
    """
    if name in FIGURES:
        made = FIGURES[name](effort, say)
    elif name not in OF_TRACES:
        raise ConfigError("figure", f"there is no figure {name!r}", nearest(name, NAMES))
    elif not traces:
        raise ConfigError("trace", f"figure {name} plays traces, and there is none", "give one: --trace FILE")
    else:
        made = OF_TRACES[name](effort, say, traces)
    return replace(made, effort=effort.value)
