"""`distkv bench recall`: how often the demo model answers exactly, by length of the document and depth of the fact.

Documents are held out by seed, and plain English around the facts by being of texts that nothing was trained on. Half
of the documents have keys that nearly collide. Facts lie evenly over the depth. Some of the questions go to distkv too,
on one instance and spread over four.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from distkv.bench.harness.command import Measured, Say, benchmark
from distkv.bench.harness.contenders import require_transformers
from distkv.bench.harness.kept import keep_rows
from distkv.bench.harness.plots.exact import UNIT, Score, score_row, show_scores, write_heat_map
from distkv.bench.harness.report import Goal, Result
from distkv.bench.recall_cells.answer_cache import AnswerCache, Answers
from distkv.bench.recall_cells.cells import (
    FULL,
    QUICK,
    Cell,
    band_of,
    digest_of,
    digest_of_model,
    document_of,
    held_out_texts,
    is_near,
)
from distkv.bench.recall_cells.instances import SPREAD_OVER, distkv_answers
from distkv.config import DEMO_MODEL, model_dir
from distkv.demo.corpus.documents import Document, prompt_of

if TYPE_CHECKING:
    from distkv.demo.recall import RecallScorer

LEAST_ABSENT_PERCENT = 95.0
ABSENT = "exact answers where nothing is mentioned"
SAME = f"the answers of transformers from distkv on one instance and over {SPREAD_OVER}"
HELP = """Exact answers of the demo model to questions about long documents, by length and depth, with transformers in
float32. The share of right answers stands with its 95 % interval. distkv answers some of the questions too, on one
instance and spread over four; its tokens should be the same.

The longest documents take minutes each. With --keep what is measured is kept, and a run goes on where one was stopped.

\b
Examples:
  distkv bench recall --keep recall.jsonl --json recall.json --plot recall.png
  distkv bench recall --quick
  distkv bench recall --tokens 4096 --tokens 16384 --no-cluster
"""


class RecallMeasurement:
    """All that is measured of one checkpoint, as it comes: `rows`, by cell and sort of question."""

    def __init__(self, model: Path, threads: int, cache: AnswerCache, say: Say) -> None:
        from distkv.demo.recall import RecallScorer

        self._model, self._threads, self._cache, self._say = model, threads, cache, say
        self._scorer: RecallScorer = RecallScorer(model, threads)
        self._texts = held_out_texts()
        self.model_digest = digest_of_model(model)
        self.absent = Score()
        self.rows: dict[tuple[str, str], Result] = keep_rows({})

    def transformers(self, cell: Cell, count: int) -> dict[str, Score]:
        """Scores of the first `count` documents, by sort of question and by depth."""
        found: dict[str, Score] = {}
        for number in range(count):
            self._say(f"{cell.name}: document {number + 1} of {count}")
            document = self._document(cell, number)
            for placed, tokens in zip(document.questions, self._greedy(document), strict=True):
                right = tokens == self._scorer.answer(placed)
                if placed.depth is None:
                    sorts: tuple[str, ...] = ("not mentioned",)
                    self.absent = self.absent.with_answer(right)
                else:
                    sorts = ("facts", "near keys" if is_near(number) else "other keys", band_of(placed.depth))
                for sort in sorts:
                    found[sort] = found.get(sort, Score()).with_answer(right)
            for sort, score in found.items():
                self._note(cell, sort, score)
        return found

    def distkv(self, cell: Cell, instances: int) -> Score:
        """How often distkv's greedy tokens are those of transformers, for questions all over a document with near
        keys."""
        document = self._document(cell, 1)
        step = len(document.questions) // cell.distkv_questions
        chosen = range(0, step * cell.distkv_questions, step)
        greedy = self._greedy(document)
        prompts = [prompt_of(document.text, document.questions[index].text) for index in chosen]
        score = Score()
        answers = distkv_answers(
            self._model, prompts, document.num_tokens, instances, self._threads, self._cache, self._say
        )
        for index, ours in zip(chosen, answers, strict=True):
            # Where transformers is wrong, no more is known than its tokens up to there.
            score = score.with_answer(ours[: len(greedy[index])] == greedy[index])
        self._note(cell, f"as transformers, {instances} instance" + ("s" if instances > 1 else ""), score, "% same")
        return score

    def _note(self, cell: Cell, sort: str, score: Score, unit: str = UNIT) -> None:
        self.rows[cell.name, sort] = score_row(cell.name, sort, score, unit)

    def _document(self, cell: Cell, number: int) -> Document:
        return document_of(cell, number, self._scorer.tokenizer, self._texts)

    def _greedy(self, document: Document) -> Answers:
        questions = [placed.text + placed.question.answer for placed in document.questions]
        key = digest_of("transformers", self.model_digest, document.text, *questions)
        return self._cache.find(key) or self._cache.add(key, self._scorer.greedy(document))


def measure(
    say: Say,
    *,
    quick: bool,
    threads: int,
    model: Path,
    tokens: tuple[int, ...],
    documents: int | None,
    keep: Path | None,
    cluster: bool,
) -> Measured:
    """Ask; there is a row per cell, sort of question and depth, and a goal per cell, measured or left out."""
    require_transformers()
    cells = QUICK if quick else FULL
    if unknown := set(tokens) - {cell.tokens for cell in cells}:
        there = ", ".join(str(size) for size in sorted({cell.tokens for cell in cells}))
        raise click.UsageError(f"there is no document of {min(unknown)} tokens; there are {there}")
    measurement = RecallMeasurement(model, threads, AnswerCache(keep), say)
    goals = []
    for cell in cells:
        score = None
        if not tokens or cell.tokens in tokens:
            score = measurement.transformers(cell, documents or cell.documents)["facts"]
        goals.append(_goal(f"exact answers in {cell.name}", score, cell.least_percent))
    same = Score()
    for cell in cells if cluster else ():
        if cell.distkv_questions and (not tokens or cell.tokens in tokens):
            for instances in (1, SPREAD_OVER):
                found = measurement.distkv(cell, instances)
                same = Score(same.right + found.right, same.questions + found.questions)
    goals.append(_goal(ABSENT, measurement.absent, LEAST_ABSENT_PERCENT))
    goals.append(_goal(SAME, same, 100.0))
    facts = {
        "threads": threads,
        "model": f"{model.name} {measurement.model_digest}",
        "facts": "; ".join(f"{cell.name}: {cell.facts} in each of {documents or cell.documents}" for cell in cells),
    }
    return Measured({}, tuple(goals), facts, tuple(measurement.rows.values()))


def _goal(goal: str, score: Score | None, least_percent: float) -> Goal:
    target = f"at least {least_percent:g} %" if least_percent < 100 else "all"
    if score is None or not score.questions:
        return Goal(goal, target, "", None, "left out")
    return Goal(goal, target, str(score), score.percent >= least_percent)


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
        click.Option(["--tokens"], type=int, multiple=True, help="Only documents of so many; may be given again."),
        click.Option(["--documents"], type=click.IntRange(min=2), help="Per cell."),
        click.Option(
            ["--keep"],
            type=click.Path(dir_okay=False, path_type=Path),
            help="Keep what is measured in this file, and do not measure again what it has.",
        ),
        click.Option(["--cluster/--no-cluster"], default=True, show_default=True, help="Whether to ask distkv too."),
    ],
    unit_of=lambda case: UNIT,
    packages=("torch", "transformers", "tokenizers"),
    plot=write_heat_map,
    table=show_scores,
)
