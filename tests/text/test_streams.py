"""The text of an output that grows token by token."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.decoders import DecodeStream

from distkv.text.detokenizer import LibraryStream
from tests.examples import examples
from tests.text.kinds import KINDS, TOKENIZERS


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=examples(80), deadline=None)
def test_streamed_text_joins_to_the_whole_text(kind: str, skip: bool, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[kind]
    ids = data.draw(st.lists(st.integers(0, KINDS[kind].get_vocab_size() + 3), max_size=30))
    cuts = data.draw(st.lists(st.integers(1, 4), min_size=30, max_size=30))
    stream, pieces, start = tokenizer.stream(skip), [], 0
    for cut in cuts:
        pieces.append(stream.push(ids[start : start + cut]))
        start += cut
    assert "".join([*pieces, stream.finish()]) == tokenizer.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=examples(60), deadline=None)
def test_a_prompt_and_the_text_streamed_behind_it_join_to_the_whole_text(kind: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[kind]
    # Bytes at its end would be one run with those that come first.
    prompt = tokenizer.encode(data.draw(st.text("the a s.", max_size=12)) + "s.")
    ids = data.draw(st.lists(st.integers(0, KINDS[kind].get_vocab_size() + 3), max_size=12))
    stream = tokenizer.stream(after=prompt)
    text = stream.push(ids) + stream.finish()
    assert tokenizer.decode(prompt) + text == tokenizer.decode([*prompt, *ids])


def test_a_space_behind_a_prompt_is_kept_whatever_the_prompt_ends_with() -> None:
    """Special tokens, which are no text, and bytes, of which the output may go on."""
    tokenizer = TOKENIZERS["byte fallback"]
    space_s, special = tokenizer.encode("s"), [one for one in range(400) if tokenizer.is_special(one)][:1]
    assert special and tokenizer.decode(space_s) == "s"
    for end in ([], special, tokenizer.encode("🙂")[1:], tokenizer.encode("🙂" * 200)[1:]):
        stream = tokenizer.stream(after=[*tokenizer.encode("."), *end])
        assert stream.push(space_s) + stream.finish() == " s"
    assert tokenizer.stream(after=special).push(space_s) == "s"
    assert tokenizer.stream(after=tokenizer.encode("🙂")[1:]).push(space_s) == " s"


@pytest.mark.parametrize("kind", ["byte level", "byte fallback"])
@given(text=st.text(max_size=20))
@settings(max_examples=examples(60), deadline=None)
def test_streamed_text_never_holds_part_of_a_character(kind: str, text: str) -> None:
    tokenizer = TOKENIZERS[kind]
    ids = tokenizer.encode(text)
    stream, seen = tokenizer.stream(), ""
    for token in ids:
        seen += stream.push([token])
        assert tokenizer.decode(ids).startswith(seen)
    assert seen + stream.finish() == tokenizer.decode(ids)


def test_a_character_comes_with_its_last_byte() -> None:
    tokenizer = TOKENIZERS["byte level"]
    stream = tokenizer.stream()
    texts = [stream.push([token]) for token in tokenizer.encode("ж€🙂!")]
    assert "".join(texts) == "ж€🙂!"
    assert "" in texts
    assert all("\ufffd" not in text for text in texts)


def test_unfinished_bytes_come_out_at_the_end() -> None:
    tokenizer = TOKENIZERS["byte level"]
    stream = tokenizer.stream()
    assert stream.push(tokenizer.encode("🙂")[:1]) == ""
    assert stream.finish() == "\ufffd"


def streamed_by_the_library(kind: str, ids: list[int]) -> list[str | None]:
    stream = DecodeStream(skip_special_tokens=True)
    return [stream.step(KINDS[kind], token) for token in ids]


def test_the_library_holds_invalid_bytes_of_byte_level_for_ever() -> None:
    """And loses them at the end. Ours gives each out as it comes."""
    tokenizer = TOKENIZERS["byte level"]
    (lone,) = (token for token in range(tokenizer_size("byte level")) if tokenizer.token_bytes(token) == b"\x80")
    ids = tokenizer.encode("a") + [lone] * 50
    assert streamed_by_the_library("byte level", ids) == ["a", *[None] * 50]
    stream = tokenizer.stream()
    assert [stream.push([token]) for token in ids] == ["a", *["\ufffd"] * 50]
    assert stream.finish() == "" and tokenizer.decode(ids) == "a" + "\ufffd" * 50


def test_the_library_has_no_end_for_a_character_that_is_cut_off() -> None:
    tokenizer = TOKENIZERS["byte level"]
    ids = tokenizer.encode("a🙂")[:-1]
    assert "".join(text or "" for text in streamed_by_the_library("byte level", ids)) == "a"
    stream = tokenizer.stream()
    assert stream.push(ids) + stream.finish() == tokenizer.decode(ids) == "a\ufffd"


def test_the_library_takes_back_characters_of_byte_fallback() -> None:
    """A run of bytes is UTF-8 as a whole or not at all, which only its end shows."""
    tokenizer, backend = TOKENIZERS["byte fallback"], KINDS["byte fallback"]
    run = [backend.token_to_id(token) for token in ("<0xC3>", "<0xA9>", "<0x80>")]
    assert streamed_by_the_library("byte fallback", run) == [None, "é", None]
    assert tokenizer.decode(run) == "\ufffd" * 3
    with pytest.raises(Exception, match="Invalid prefix"):
        streamed_by_the_library("byte fallback", [*run, backend.token_to_id("er")])
    stream = tokenizer.stream()
    assert [stream.push([token]) for token in run] == ["", "", ""]
    assert stream.finish() == "\ufffd" * 3


def test_the_library_holds_a_token_that_is_the_replacement_character() -> None:
    tokenizer = TOKENIZERS["metaspace"]
    (token,) = (token for token in range(tokenizer_size("metaspace")) if tokenizer.token(token) == "\ufffd")
    assert streamed_by_the_library("metaspace", [token] * 40) == [None] * 40
    stream = tokenizer.stream()
    texts = [stream.push([token]) for _ in range(40)]
    assert "".join(texts) + stream.finish() == "\ufffd" * 40
    assert len(texts) - len("".join(texts)) < 8


@pytest.mark.parametrize("kind", KINDS)
def test_the_library_is_used_where_it_is_right(kind: str) -> None:
    uses_library = isinstance(TOKENIZERS[kind]._stream(), LibraryStream)
    assert uses_library == (kind in ("words", "word pieces"))


@pytest.mark.parametrize("kind", ["words", "word pieces"])
@given(data=st.data())
@settings(max_examples=examples(80), deadline=None)
def test_the_library_holds_nothing_back_where_it_is_used(kind: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[kind]
    ids = data.draw(st.lists(st.integers(0, tokenizer_size(kind) + 3), max_size=30))
    stream, seen = tokenizer.stream(), ""
    for count, token in enumerate(ids, 1):
        seen += stream.push([token])
        assert seen == tokenizer.decode(ids[:count])


def tokenizer_size(kind: str) -> int:
    return KINDS[kind].get_vocab_size()


UNKNOWN = 10_000


@pytest.mark.parametrize(
    ("kind", "token"),
    [
        ("byte level", "Ģ"),  # a byte that begins no character
        ("byte level", "a"),
        ("byte fallback", "<0x80>"),
        ("byte fallback", "\ufffd"),
        ("byte fallback", "▁a"),
        ("metaspace", "\ufffd"),
        ("metaspace", "▁a"),
        ("words", "▁"),
        ("words", UNKNOWN),
        ("word pieces", "##s"),
        ("word pieces", UNKNOWN),
    ],
)
def test_the_cost_of_a_token_does_not_grow_with_the_output(kind: str, token: str | int) -> None:
    """Whatever token a model repeats. Ten times the tokens take ten times as long, not a hundred times."""
    backend, tokenizer = KINDS[kind], TOKENIZERS[kind]
    token_id = token if isinstance(token, int) else backend.token_to_id(token)
    assert token_id is not None

    def seconds(count: int) -> float:
        stream = tokenizer.stream()
        start_s = time.thread_time()
        for _ in range(count):
            stream.push([token_id])
        stream.finish()
        return time.thread_time() - start_s

    few, many = min(seconds(400) for _ in range(3)), min(seconds(4000) for _ in range(2))
    assert many < 40 * few


def test_work_per_token_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("byte fallback", "metaspace"):
        tokenizer = TOKENIZERS[kind]
        ids = tokenizer.encode("the a the a s. " * 50)
        decoded: list[int] = []
        whole = tokenizer.decode

        def counting(ids: list[int], skip_special_tokens: bool) -> str:
            decoded.append(len(ids))  # noqa: B023
            return whole(ids, skip_special_tokens=skip_special_tokens)  # noqa: B023

        monkeypatch.setattr(tokenizer, "decode", counting)
        stream = tokenizer.stream()
        stream.push(ids)
        assert sum(decoded) <= 3 * len(ids)
        monkeypatch.undo()
