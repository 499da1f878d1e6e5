from __future__ import annotations

import hashlib

import pytest
import torch
import transformers

from distkv.cli.local.introduction import DEMO_PROMPT
from distkv.config import DEMO_MODEL, model_dir
from distkv.demo.corpus.documents import prompt_of, write
from distkv.demo.corpus.facts import NOT_MENTIONED
from distkv.demo.recall import RecallScorer
from distkv.text.tokenizer import Tokenizer
from tests.engine.harness import Engine

CHECKPOINT = model_dir(DEMO_MODEL)
WEIGHTS_SHA256 = "78cda67002a0f9856389101246334944be542a19a75b06b239bb5cc8c8ae5992"
MOST_BYTES = 12 * 2**20
NOTE = """The committee met on Tuesday to talk about the budget. Somebody had left a window open, and it was cold.
The access code of the north station is 48213. After lunch there was a long argument about the new printer.
The keeper of the old mill is Greta Holm. Nobody could find the minutes of the last meeting, which were thought lost.
"""


@pytest.fixture(scope="module")
def scorer():
    return RecallScorer(CHECKPOINT)


def answer_of(scorer, prompt, most=12):
    ids = scorer.tokenizer.encode(prompt).ids
    found = scorer._model.generate(torch.tensor([ids]), max_new_tokens=most)[0, len(ids) :].tolist()
    assert found[-1] == scorer._end, "it did not stop"
    return scorer.tokenizer.decode(found).strip()


def test_it_is_small_and_pinned():
    assert sum(path.stat().st_size for path in CHECKPOINT.iterdir()) <= MOST_BYTES
    assert hashlib.sha256((CHECKPOINT / "model.safetensors").read_bytes()).hexdigest() == WEIGHTS_SHA256


def test_it_answers_from_a_text_of_ones_own(scorer):
    for question, answer in (
        ("What is the access code of the north station?", "48213"),
        ("What is the keeper of the old mill?", "Greta Holm"),
        ("What is the access code of the south station?", NOT_MENTIONED),
    ):
        assert answer_of(scorer, prompt_of(NOTE, question)) == answer


def test_it_answers_what_up_says_to_try(scorer):
    assert answer_of(scorer, DEMO_PROMPT) == "48213"


def test_it_answers_in_a_chat(scorer):
    tokenizer = transformers.AutoTokenizer.from_pretrained(CHECKPOINT)
    message = {"role": "user", "content": f"{NOTE}\nWhat is the access code of the north station?"}
    prompt = tokenizer.apply_chat_template([message], tokenize=False, add_generation_prompt=True)
    assert answer_of(scorer, prompt) == "48213"


def test_it_recalls_facts_of_a_held_out_document(scorer):
    document = write(scorer.tokenizer, "held out test", 3000, near=True)
    right = scorer.exact(document)
    assert sum(right) >= len(right) - 3


def test_the_engine_gives_the_tokens_of_transformers(scorer):
    document = write(scorer.tokenizer, "engine", 700, num_facts=8, num_absent=0)
    placed = document.questions[0]
    ids = Tokenizer.from_dir(CHECKPOINT).encode(prompt_of(document.text, placed.text))
    assert (
        ids == transformers.AutoTokenizer.from_pretrained(CHECKPOINT)(prompt_of(document.text, placed.text)).input_ids
    )
    engine = Engine(CHECKPOINT, num_slots=64, block_tokens=16)
    logits = engine.chunked_logits(ids, [len(ids) - 200, 200], engine.table(len(ids), scattered=True))
    theirs = scorer._model(torch.tensor([ids])).logits[0]
    assert torch.allclose(logits, theirs, atol=2e-3)
    assert logits[-1].argmax() == theirs[-1].argmax()
