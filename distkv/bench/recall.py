"""`distkv bench recall`: how often the demo model answers exactly, by length of the document and depth of the fact.

Documents are held out by seed, and plain English around the facts by being of texts that nothing was trained on. Half
of the documents have keys that nearly collide. Facts lie evenly over the depth.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click
import msgspec

import distkv
from distkv.bench.harness.command import Measured, Say, benchmark
from distkv.bench.harness.contenders import require_transformers
from distkv.bench.harness.exact import Score, score_row, show_scores, write_heat_map
from distkv.bench.harness.machine import machine_facts, versions_of
from distkv.bench.harness.report import Goal, Report
from distkv.config import DEMO_MODEL, model_dir
from distkv.demo import english
from distkv.demo.documents import Filler, write

PACKAGES = ("torch", "transformers", "tokenizers")
BANDS = 10
NUM_FACTS = 32
HELP = """Exact answers of the demo model to questions about long documents, by length and depth, with transformers in
float32. The share of right answers stands with its 95 % interval.

\b
Examples:
  distkv bench recall --json recall.json --plot recall.png
  distkv bench recall --quick
  distkv bench recall --longest 16384
"""


class Cell(msgspec.Struct, frozen=True):
    """Documents of one length and kind. least_percent: the goal for their facts."""

    tokens: int
    filler: Filler
    documents: int
    least_percent: float

    @property
    def name(self) -> str:
        what = "generated prose" if self.filler == "generated" else "plain English"
        return f"{self.tokens:,} tokens, {what}"


FULL = (
    Cell(4096, "generated", 14, 99.5),
    Cell(16384, "generated", 14, 99.5),
    Cell(65536, "generated", 14, 99.0),
    Cell(131072, "generated", 14, 97.0),
    Cell(4096, "english", 14, 95.0),
    Cell(16384, "english", 14, 95.0),
)
QUICK = (Cell(2048, "generated", 2, 99.5), Cell(2048, "english", 2, 95.0))
LEAST_ABSENT_PERCENT = 95.0


def measure(
    say: Say, *, quick: bool, threads: int, model: Path, longest: int | None, documents: int | None
) -> Measured:
    """Ask; the report has a row per cell, sort of question and depth."""
    require_transformers()
    from distkv.demo.recall import Examiner

    examiner = Examiner(model, threads)
    texts = held_out_texts()
    scores: dict[str, dict[str, Score]] = {}
    absent, goals = Score(), []
    cells = [cell for cell in (QUICK if quick else FULL) if longest is None or cell.tokens <= longest]
    for cell in cells:
        found = scores.setdefault(cell.name, {})
        count = documents or cell.documents
        for number in range(count):
            say(f"{cell.name}: document {number + 1} of {count}")
            near = number % 2 == 1
            seed = f"held out {cell.filler} {cell.tokens} {number}"
            document = write(
                examiner.tokenizer, seed, cell.tokens, num_facts=NUM_FACTS, near=near, filler=cell.filler, texts=texts
            )
            for placed, right in zip(document.questions, examiner.exact(document), strict=True):
                if placed.depth is None:
                    sorts: Iterable[str] = ("not mentioned",)
                    absent = absent.with_answer(right)
                else:
                    sorts = ("facts", "near keys" if near else "other keys", band_of(placed.depth))
                for sort in sorts:
                    found[sort] = found.get(sort, Score()).with_answer(right)
        goals.append(_goal(f"exact answers in {cell.name}", found["facts"], cell.least_percent))
    goals.append(_goal("exact answers where nothing is mentioned", absent, LEAST_ABSENT_PERCENT))
    machine = machine_facts() | {
        "threads": threads,
        "model": model.name,
        "facts per document": NUM_FACTS,
        "command": "distkv bench recall" + (" --quick" if quick else ""),
    }
    rows = tuple(score_row(cell, sort, score) for cell, sorts in scores.items() for sort, score in sorts.items())
    return Report("recall", machine, versions_of(PACKAGES), rows, tuple(goals)), {}


def held_out_texts() -> list[str]:
    """Plain English that nothing was trained on: half of Python's texts, and this project's pages in a checkout."""
    root = Path(distkv.__file__).resolve().parent.parent
    pages = [root / "README.md", *sorted(root.glob("docs/*.md"))] if (root / "pyproject.toml").is_file() else []
    ours = [page.read_text(encoding="utf-8") for page in pages if page.is_file()]
    trained = dict.fromkeys(english.texts("train"))  # some modules say the same
    return [*(text for text in english.texts("held out") if text not in trained), *ours * 8]


def band_of(depth: float) -> str:
    """The tenth of the document that a depth lies in."""
    band = min(BANDS - 1, int(depth * BANDS))
    return f"depth {band * 100 // BANDS}-{(band + 1) * 100 // BANDS} %"


def _goal(goal: str, score: Score, least_percent: float) -> Goal:
    return Goal(goal, f"at least {least_percent:g} %", str(score), score.percent >= least_percent)


main = benchmark(
    "recall",
    measure,
    HELP,
    [
        click.Option(["--threads"], type=click.IntRange(min=1), default=1, show_default=True, help="CPU threads."),
        click.Option(
            ["--model"],
            type=click.Path(exists=True, file_okay=False, path_type=Path),
            default=model_dir(DEMO_MODEL),
            help="Another checkpoint of this task.",
        ),
        click.Option(["--longest"], type=click.IntRange(min=1), help="Leave out longer documents than this."),
        click.Option(["--documents"], type=click.IntRange(min=2), help="Per cell."),
    ],
    plot=write_heat_map,
    table=show_scores,
)
