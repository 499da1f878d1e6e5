"""Outputs that follow a grammar, from a random model, which would produce noise without it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from msgspec import structs
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from distkv.errors import InvalidParams, MalformedMessage
from distkv.structured_output import StructuredOutput
from distkv.text.structured_output import Vocabulary
from distkv.text.tokenizer import Tokenizer
from tests.checkpoints import edit_config, variant
from tests.engine.harness import Engine, seq_step
from tests.engine.sampling.following import END, OUTPUTS, PROMPT, SCHEMA, VOCAB, Following, add, fits, sampling, text_of

pytest.importorskip("llguidance", reason="llguidance is not installed in this environment: pip install -e .")


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
