"""Outputs that follow a grammar, from a random model, which would produce noise without it."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from distkv.engine.sampling.constraints import MOST_S, TOKEN_S, Constraint, Grammar, Masks
from distkv.engine.sampling.mask_threads import MOST_LOST, MaskThreads
from distkv.errors import InvalidParams, MalformedMessage
from distkv.structured_output import StructuredOutput
from distkv.text.structured_output import Vocabulary, compiled
from distkv.text.tokenizer import Tokenizer
from distkv.wire.messages.counters import Counters
from distkv.wire.messages.from_worker import SeqResult
from distkv.wire.messages.to_worker import Sampling
from tests.checkpoints import edit_config, prompt_ids, variant
from tests.engine.harness import Engine, seq_step

pytest.importorskip("llguidance", reason="llguidance is not installed in this environment: pip install -e .")

PROMPT = prompt_ids(30)
VOCAB = 320
END = 0
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "count": {"type": "integer", "minimum": 3, "maximum": 400},
        "tags": {"type": "array", "items": {"enum": ["a", "bc", "é🙂"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "count", "tags"],
    "additionalProperties": False,
}
OUTPUTS = {
    "schema": StructuredOutput.json_schema(SCHEMA),
    "regex": StructuredOutput.regex(r"[A-Z][a-z]{2,8}, \d{1,3}(\.\d)?!"),
    "choice": StructuredOutput.choice(["rBlock", "rManager", "Füße\n"]),
    "lark": StructuredOutput.grammar('start: "(" start ")" | /[0-9]{1,2}/'),
    "gbnf": StructuredOutput.grammar('root ::= "<" item{1,3} ">"\nitem ::= [a-z]{1,6} ";"'),
}


def fits(name: str, text: str) -> bool:
    """Whether the text is what the output must be, by other means than the grammar."""
    if name == "schema":
        value = json.loads(text)
        tags = value["tags"]
        return (
            set(value) == {"name", "count", "tags"}
            and len(value["name"]) <= 12
            and 3 <= value["count"] <= 400
            and 1 <= len(tags) <= 3
            and set(tags) <= {"a", "bc", "é🙂"}
        )
    patterns = {
        "regex": r"[A-Z][a-z]{2,8}, \d{1,3}(\.\d)?!",
        "choice": "rBlock|rManager|Füße\n",
        "lark": r"(\(*)[0-9]{1,2}(\)*)",
        "gbnf": "<([a-z]{1,6};){1,3}>",
    }
    found = re.fullmatch(patterns[name], text)
    return found is not None and (name != "lark" or len(found[1]) == len(found[2]))


def sampling(grammar_id: int | None = 1, **fields: Any) -> Sampling:
    settings: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "seed": 3} | fields
    return Sampling(prompt_tokens=len(PROMPT), grammar_id=grammar_id, **settings)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return variant(tmp_path_factory.mktemp("checkpoint"), "llama", vocab=VOCAB)


@pytest.fixture
def engine(path: Path) -> Engine:
    return Engine(path, num_slots=256)


@pytest.fixture(scope="module")
def tokenizer(path: Path) -> Tokenizer:
    found = Tokenizer.from_dir(path)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    return Vocabulary(tokenizer, VOCAB)


class Following:
    """One request under a grammar; every Step is sent ahead of its token."""

    def __init__(self, engine: Engine, sampling: Sampling, name: str = "r", most: int = 150) -> None:
        self.engine, self.sampling, self.name = engine, sampling, name
        self.table = engine.table(len(PROMPT) + most)
        self.tokens: list[int] = []
        self.result: SeqResult | None = None

    def step(self, attempt: int = 0, ids: Sequence[int] | None = None) -> SeqResult:
        """The next one, or (ids) one over all of these."""
        end = len(PROMPT) + len(self.tokens)
        start = end - 1 if self.tokens and ids is None else 0
        known = PROMPT if ids is None else ids
        (self.result,) = self.engine.run(
            seq_step(known, start, end, self.table, name=self.name, attempt=attempt, sample=self.sampling)
        )
        assert self.result.token is not None
        self.tokens.append(self.result.token)
        return self.result

    def finish(self, most: int = 150) -> list[int]:
        while len(self.tokens) < most and not (self.result and (self.result.complete or self.result.problem)):
            self.step()
        return self.tokens


def add(engine: Engine, vocabulary: Vocabulary, output: StructuredOutput, grammar_id: int = 1) -> None:
    engine.runner.constraints.add(grammar_id, compiled(output, vocabulary))


def text_of(tokenizer: Tokenizer, tokens: Sequence[int]) -> str:
    return tokenizer.decode([token for token in tokens if token != END], skip_special_tokens=False)


@pytest.mark.parametrize("seed", [3, 4, None])
@pytest.mark.parametrize("name", OUTPUTS)
def test_what_comes_fits(
    engine: Engine, vocabulary: Vocabulary, tokenizer: Tokenizer, name: str, seed: int | None
) -> None:
    add(engine, vocabulary, OUTPUTS[name])
    how = sampling(seed=seed) if seed is not None else sampling(temperature=0.0, seed=0)
    run = Following(engine, how)
    tokens = run.finish()
    assert run.result is not None and run.result.complete and not run.result.problem
    assert fits(name, text_of(tokenizer, tokens)), text_of(tokenizer, tokens)
    assert END not in tokens[:-1]
    again = run.step()  # that was sent ahead
    assert again.complete and again.status == "ok"
    assert engine.runner.counters.mask_s > 0


def test_others_in_the_batch_are_as_they_were(engine: Engine, vocabulary: Vocabulary) -> None:
    plain = Following(engine, sampling(None), "plain")
    alone = plain.finish(20)
    assert engine.runner.counters.mask_s == 0
    add(engine, vocabulary, OUTPUTS["regex"])
    one, other = Following(engine, sampling(), "one"), Following(engine, sampling(None), "other")
    for count in range(6):
        parts = []
        for run in (one, other):
            end = len(PROMPT) + count
            parts.append(seq_step(PROMPT, end - 1 if count else 0, end, run.table, name=run.name, sample=run.sampling))
        for run, result in zip((one, other), engine.run(*parts), strict=True):
            assert result.token is not None
            run.tokens.append(result.token)
    assert other.tokens == alone[:6]
    assert one.tokens == Following(engine, sampling(), "alone").finish()[:6]


@pytest.mark.parametrize("back", [1, 2, 5])
def test_what_is_computed_again_is_the_same(
    engine: Engine, vocabulary: Vocabulary, tokenizer: Tokenizer, back: int
) -> None:
    """A preemption: all tokens known so far come in one Step of a new attempt, also when the output was complete."""
    add(engine, vocabulary, OUTPUTS["schema"])
    run = Following(engine, sampling())
    tokens = list(run.finish())
    for at in (len(tokens), len(tokens) - 3):
        run.tokens = tokens[: at - back]
        run.step(attempt=at, ids=[*PROMPT, *run.tokens])
        run.result = None
        while len(run.tokens) < len(tokens):
            run.step(attempt=at)
        assert run.tokens == tokens


def test_a_new_request_of_the_same_name_begins_anew(
    engine: Engine, vocabulary: Vocabulary, tokenizer: Tokenizer
) -> None:
    add(engine, vocabulary, OUTPUTS["regex"])
    add(engine, vocabulary, OUTPUTS["choice"], 2)
    tokens = list(Following(engine, sampling()).finish())
    assert Following(engine, sampling()).finish() == tokens
    assert fits("choice", text_of(tokenizer, Following(engine, sampling(2)).finish()))
    engine.runner.forget(["r"], [1, 2])
    with pytest.raises(MalformedMessage, match="there is no grammar 1"):
        Following(engine, sampling()).step()


def test_tokens_that_were_not_sampled_are_no_beginning(engine: Engine, vocabulary: Vocabulary) -> None:
    add(engine, vocabulary, OUTPUTS["regex"])
    run = Following(engine, sampling())
    run.tokens = [40, 41]
    with pytest.raises(MalformedMessage, match="followed 0 tokens is to go on behind 2"):
        run.step(ids=[*PROMPT, 40, 41])


def test_an_end_comes_where_it_may_and_must(engine: Engine, vocabulary: Vocabulary, tokenizer: Tokenizer) -> None:
    """By a bias at once, by `min_tokens` not, unless nothing else is left."""
    add(engine, vocabulary, StructuredOutput.regex("[a-z]{2,}"))
    ended = Following(engine, sampling(temperature=0.0, logit_bias={END: 100.0}))
    assert len(tokenizer.decode(ended.finish())) >= 2 and ended.tokens[-1] == END and ended.result.complete
    later = Following(engine, sampling(temperature=0.0, logit_bias={END: 100.0}, forbidden_token_ids=(END,)), "later")
    assert END not in later.finish(20)
    add(engine, vocabulary, StructuredOutput.regex("ab(c)?"), 2)
    left = tuple(index for index in range(1, VOCAB) if b"c" in tokenizer.token_bytes(index))
    forced = Following(engine, sampling(2, temperature=0.0, forbidden_token_ids=(END, *left)), "forced")
    assert text_of(tokenizer, forced.finish()) in ("ab", "abc") and forced.result.complete


def test_bias_penalties_and_bad_words_choose_among_what_may_come(
    engine: Engine, vocabulary: Vocabulary, tokenizer: Tokenizer
) -> None:
    add(engine, vocabulary, OUTPUTS["schema"])
    how = sampling(
        temperature=0.0, repetition_penalty=1.5, presence_penalty=1.0, logit_bias={40: 100.0}, bad_words=((60, 61),)
    )
    run = Following(engine, how, most=600)
    while not (run.result and run.result.complete) and len(run.tokens) < 600:
        end = len(PROMPT) + len(run.tokens)
        (run.result,) = engine.run(
            seq_step(PROMPT, end - 1 if run.tokens else 0, end, run.table, sample=how, history=True)
        )
        assert run.result.token is not None
        run.tokens.append(run.result.token)
    assert fits("schema", text_of(tokenizer, run.tokens))


def test_logprobs_are_of_what_may_come(engine: Engine, vocabulary: Vocabulary) -> None:
    add(engine, vocabulary, StructuredOutput.regex("a|b|c"))
    run = Following(engine, sampling(logprobs=20))
    found = run.step().logprobs
    assert found is not None and len(found.top) == 3
    assert sum(torch.tensor([value for _, value in found.top]).exp()) == pytest.approx(1.0)


def test_what_leaves_no_token_ends_the_request_alone(engine: Engine, vocabulary: Vocabulary) -> None:
    add(engine, vocabulary, StructuredOutput.regex("[a-f]{3}"))
    run = Following(engine, sampling(allowed_token_ids=(45,)))
    assert (
        run.step().problem
        == "structured_output: the grammar of the output and allowed_token_ids leave no token of this model"
    )
    assert run.step().problem  # that was sent ahead


def test_what_costs_too_much_ends_the_request_alone(engine: Engine, vocabulary: Vocabulary) -> None:
    """A lexer of very many states."""
    add(engine, vocabulary, StructuredOutput.regex(r"(.*[ab].{200}){2}[\s\S]*"))
    run = Following(engine, structs.replace(sampling(), temperature=5.0))
    run.finish(100)
    assert run.result is not None and (not run.result.problem or "cannot be followed further" in run.result.problem)


AMBIGUOUS = StructuredOutput.grammar("start: s\ns: " + " | ".join("s " * count for count in range(2, 90)) + " | /./")
"""Few items, each of which is found in very many ways."""


def test_a_mask_that_takes_long_ends_the_request_alone(engine: Engine, vocabulary: Vocabulary) -> None:
    add(engine, vocabulary, OUTPUTS["regex"])
    add(engine, vocabulary, AMBIGUOUS, 2)
    runs = [Following(engine, sampling(), "one"), Following(engine, sampling(2), "slow"), Following(engine, sampling())]
    ended: SeqResult | None = None
    for count in range(8):
        parts = [
            seq_step(PROMPT, end - 1 if count else 0, end, run.table, name=run.name, sample=run.sampling)
            for run in runs
            if (end := len(PROMPT) + count)
        ]
        results = engine.run(*parts)
        for run, result in zip(runs, results, strict=True):
            assert result.token is not None
            run.tokens.append(result.token)
        ended = results[1]
        assert not results[0].problem and not results[2].problem
    assert ended is not None and not ended.complete
    assert "take more than 0.02 s of a core each to be found, or one 0.08 s" in ended.problem
    assert not ended.may_come_again
    sibling = Following(engine, sampling(2), "of the same grammar").step()
    assert sibling.problem == ended.problem
    engine.runner.forget(["slow"], [2])
    alone = Following(engine, sampling(), "alone").finish()[:8]
    assert runs[0].tokens == runs[2].tokens == alone


def test_an_output_for_which_others_leave_no_thread_may_come_again(engine: Engine, vocabulary: Vocabulary) -> None:
    """With 32 slow outputs of one client, those of all others were refused for good."""
    add(engine, vocabulary, OUTPUTS["regex"])
    threads = engine.runner.constraints._threads
    threads._lost = MOST_LOST
    ended = Following(engine, sampling()).step()
    assert "tokens of other outputs take too long" in ended.problem and ended.may_come_again and not ended.is_fault
    threads._lost = 0
    again = Following(engine, sampling(), "again").step()
    assert not again.problem and not again.may_come_again


def test_tokens_that_each_take_some_time_end_the_request_in_the_end(engine: Engine, vocabulary: Vocabulary) -> None:
    add(engine, vocabulary, OUTPUTS["regex"])
    constraint = Following(engine, sampling())
    constraint.step()
    followed = engine.runner.constraints._of_request["r"]
    for _ in range(20):
        followed.spend(TOKEN_S)
    assert followed.left_s > TOKEN_S
    for _ in range(3):
        followed.spend(2 * TOKEN_S)
    assert followed.left_s < 2 * TOKEN_S
    for _ in range(20):
        followed.spend(0.0)
    assert followed.left_s == MOST_S


class Waiting:
    """Stands for a matcher whose mask is made when `may_end` is set."""

    def __init__(self) -> None:
        self.may_end = threading.Event()

    def deep_copy(self) -> Waiting:
        return self

    def unsafe_compute_mask_ptr(self, address: int, size: int) -> None:
        self.may_end.wait()
        raise ValueError("nobody asks for them")


class Computing(Waiting):
    """Uses a core meanwhile."""

    def unsafe_compute_mask_ptr(self, address: int, size: int) -> None:
        while not self.may_end.is_set():
            hashlib.sha256(bytes(1 << 18))  # which lets other threads run


def test_a_grammar_is_followed_again_when_its_slow_mask_has_come_to_an_end() -> None:
    """While many requests have it, it is not compiled again: all that came were refused."""
    matcher: Any = Computing()
    grammar = Grammar(matcher)
    slow, during, after = (Constraint(1, grammar, ()) for _ in range(3))
    masks = Masks(VOCAB, [("r", slow, sampling())], MaskThreads(), Counters())
    masks.drop()
    during.rewind(0)
    assert slow.problem and during.problem == slow.problem
    matcher.may_end.set()
    assert masks._done.get(timeout=30).is_over
    after.rewind(0)
    assert not after.problem


def test_a_step_of_which_nothing_is_left_waits_for_its_masks(engine: Engine) -> None:
    """The next one may move the matchers from which a thread makes them."""
    matcher: Any = Waiting()
    masks = Masks(VOCAB, [("r", Constraint(1, Grammar(matcher), ()), sampling())], MaskThreads(), Counters())
    ended = threading.Event()

    def begin() -> None:
        assert engine.runner._sample.begin((), (), masks, Counters()) is None
        ended.set()

    thread = threading.Thread(target=begin)
    thread.start()
    assert not ended.wait(0.05)
    matcher.may_end.set()
    thread.join()
    assert ended.is_set()


def test_an_error_of_a_mask_that_is_wanted_is_raised(engine: Engine) -> None:
    matcher: Any = Waiting()
    matcher.may_end.set()
    masks = Masks(VOCAB, [("r", Constraint(1, Grammar(matcher), ()), sampling())], MaskThreads(), Counters())
    with pytest.raises(ValueError, match="nobody asks"):
        masks.apply(torch.zeros(1, VOCAB), {"r": 0}, engine.model.device)


def test_a_model_without_an_end_and_with_more_tokens_than_its_tokenizer(tmp_path: Path) -> None:
    path = variant(tmp_path, "llama", vocab=VOCAB)
    for name in ("config.json", "generation_config.json"):
        edit_config(path, lambda raw: raw.update(eos_token_id=None), name)
    (path / "generation_config.json").unlink()
    model = Engine(path, num_slots=256)
    tokenizer = Tokenizer.from_dir(path)
    assert tokenizer is not None and model.model.config.eos_token_ids in ((), (2,))
    vocabulary = Vocabulary(tokenizer, VOCAB)
    for number, name in enumerate(OUTPUTS):
        add(model, vocabulary, OUTPUTS[name], number)
        run = Following(model, sampling(number), name)
        tokens = run.finish()
        assert fits(name, tokenizer.decode(tokens, skip_special_tokens=False)) and run.result.complete


def sentencepiece() -> Tokenizer:
    """Bytes and a few words, as Llama 2 writes them."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    for piece in ["▁", "a", "b", "c", "▁a", "▁the", "ab", "{", "}", '"', ":", "1", "2", '▁"', "▁1", '":']:
        vocab[piece] = len(vocab)
    backend = Backend(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return Tokenizer(backend)


@pytest.mark.parametrize("seed", range(4))
def test_sentencepiece_writes_the_same_text_as_its_grammar(engine: Engine, seed: int) -> None:
    """Behind a prompt; where a text begins, its decoder drops a space."""
    tokenizer = sentencepiece()
    vocabulary = Vocabulary(tokenizer, VOCAB)
    expected = " ?(the|a b|é🙂)( [abc12]){2}"
    add(engine, vocabulary, StructuredOutput.regex(expected))
    run = Following(engine, sampling(seed=seed))
    tokens = run.finish()
    before = tokenizer.encode("a")
    stream = tokenizer.stream(after=before)
    text = stream.push(tokens) + stream.finish()
    assert re.fullmatch(expected, text) and "a" + text == tokenizer.decode([*before, *tokens]), text
    add(engine, vocabulary, StructuredOutput.json_schema(SCHEMA), 2)
    assert fits("schema", tokenizer.decode(Following(engine, sampling(2, seed=seed), "json").finish()))


def test_tokens_that_do_not_stand_for_their_text_are_refused() -> None:
    backend = Backend(models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>"))
    with pytest.raises(InvalidParams, match="byte-level BPE or SentencePiece"):
        Vocabulary(Tokenizer(backend), VOCAB)
