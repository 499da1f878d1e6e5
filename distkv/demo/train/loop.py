"""Training of the demo model, on two CPU cores in less than an hour; docs/demo-model.md has the recipe."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from pathlib import Path

import click
import structlog
import torch
import torch.nn.functional as F
from torch import Tensor

from distkv.demo.corpus import english
from distkv.demo.corpus.documents import write
from distkv.demo.recall import RecallScorer
from distkv.demo.train import vocabulary
from distkv.demo.train.batches import IGNORED, Batches, Stage
from distkv.demo.train.export import export, load
from distkv.demo.train.initialization import initial_network
from distkv.demo.train.network import Shape
from distkv.demo.train.optimiser import Optimiser

STAGES = (
    Stage(160, 256, 16, 6, 8, skips=False),
    Stage(800, 512, 8, 8, 8),
    Stage(340, 1024, 4, 24, 18),
    Stage(660, 1024, 4, 24, 18, near=0.7, absent=0.16),
    Stage(450, 2048, 2, 32, 24, near=0.7, absent=0.16),
)
POLISH = (
    Stage(400, 1024, 4, 24, 18, near=0.8, absent=0.16),
    Stage(100, 2048, 2, 32, 24, near=0.8, absent=0.16),
)
POLISH_SCALE = 0.5
REPORT_STEPS = 20
KEEP_STEPS = 100
CHECK_TOKENS = 4096
CHECK_DOCUMENTS = 4


def loss_of(logits: Tensor, answers: Tensor) -> tuple[Tensor, Tensor]:
    """The mean loss per asked token, and which asked tokens are predicted right, both from [B, R, ...]."""
    asked = answers != IGNORED
    loss = F.cross_entropy(logits.flatten(0, 1), answers.flatten(), ignore_index=IGNORED)
    return loss, (logits.detach().argmax(-1) == answers)[asked]


def train(path: Path, seed: int, stages: Sequence[Stage], begin: Path | None, scale: float) -> None:
    """Train by the stages and write the checkpoint to `path`, on the way too; goes on from what was kept beside it.

    begin: an exported checkpoint to start from. scale: of the learning rates.
    """
    log = structlog.get_logger()
    texts = list(english.texts("train"))
    tokenizer = vocabulary.learn(texts)
    batches = Batches(tokenizer, texts, seed)
    shape = Shape(vocab=tokenizer.get_vocab_size())
    network = initial_network(shape, seed) if begin is None else load(begin, shape)
    schedule = list(itertools.chain.from_iterable([stage] * stage.steps for stage in stages))
    optimiser = Optimiser(network, len(schedule), scale)
    kept, done = path.with_name(path.name + ".state"), 0
    if kept.exists():
        state = torch.load(kept)
        done = state["step"]
        network.load_state_dict(state["network"])
        optimiser.load_state_dict(state["optimiser"])
    log.info("training", parameters=sum(p.numel() for p in network.parameters()), steps=len(schedule), done=done)
    tokens, losses, rights = 0, [], []
    began_s = since_s = time.monotonic()
    for number, stage in enumerate(schedule[done:], done + 1):
        batch = batches.draw(stage, number)
        loss, right = loss_of(network(batch), batch.answers)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step(number - 1)
        tokens += batch.tokens.numel()
        losses.append(loss.item())
        rights.append(right.float().mean().item())
        last = number == len(schedule)
        if number % REPORT_STEPS == 0 or last:
            now_s = time.monotonic()
            log.info(
                "step",
                step=number,
                of=len(schedule),
                loss=round(sum(losses) / len(losses), 4),
                right=round(sum(rights) / len(rights), 4),
                tokens_per_s=round(tokens / (now_s - since_s)),
                passed_s=round(now_s - began_s),
                left_s=round((now_s - since_s) * (len(schedule) - number) / REPORT_STEPS),
            )
            tokens, losses, rights, since_s = 0, [], [], now_s
        if number % KEEP_STEPS == 0 or last:
            export(network, tokenizer, path)
            torch.save({"step": number, "network": network.state_dict(), "optimiser": optimiser.state_dict()}, kept)
    kept.unlink(missing_ok=True)
    scorer = RecallScorer(path)
    for near in (False, True):
        documents = [write(tokenizer, f"check {index}", CHECK_TOKENS, near=near) for index in range(CHECK_DOCUMENTS)]
        exact = [right for document in documents for right in scorer.exact(document)]
        log.info("check", near=near, tokens=CHECK_TOKENS, exact=sum(exact), of=len(exact))


@click.command()
@click.argument("path", type=click.Path(file_okay=False, path_type=Path))
@click.option("--seed", default=0, show_default=True, help="Of the weights and the data.")
@click.option("--threads", default=2, show_default=True, help="CPU threads.")
@click.option("--polish", "begin", type=click.Path(exists=True, path_type=Path), help="Go on from this checkpoint.")
def main(path: Path, seed: int, threads: int, begin: Path | None) -> None:
    """Train the demo model and write its checkpoint to PATH. A run that was interrupted goes on where it was."""
    torch.set_num_threads(threads)
    if begin is None:
        train(path, seed, STAGES, None, 1.0)
    else:
        train(path, seed + 1, POLISH, begin, POLISH_SCALE)
