from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend
from tokenizers.decoders import DecodeStream

from distkv.errors import CheckpointError
from distkv.text.detokenizer import LibraryStream
from distkv.text.tokenizer import Side, TextTooLong, Tokenizer
from tests.checkpoints import TEXT, variant
from tests.examples import examples

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
WORDS = ["▁", "▁the", "▁a", "er", "s", ".", "ü", "▁東", "\ufffd"]


def byte_level() -> Backend:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator([TEXT], trainer)
    backend.add_tokens(["<tool call>", "東京"])
    return backend


def byte_fallback() -> Backend:
    """As Llama 2's: words with ▁ for spaces, bytes for everything else."""
    vocab = {token: index for index, token in enumerate(["<unk>", "<s>", "</s>", *BYTES, *WORDS])}
    backend = Backend(models.BPE(vocab, [], unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["<s>", "</s>"])
    return backend


def metaspace() -> Backend:
    vocab = [(token, -1.0) for token in ["<unk>", *WORDS]]
    backend = Backend(models.Unigram(vocab, unk_id=0))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens(["<unk>"])
    return backend


def words() -> Backend:
    """Metaspace without U+FFFD."""
    backend = Backend(models.Unigram([(token, -1.0) for token in ["<unk>", *WORDS[:-1]]], unk_id=0))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens(["<unk>"])
    return backend


def word_pieces() -> Backend:
    vocab = {token: index for index, token in enumerate(["[UNK]", "[SEP]", "the", "##s", "a", "'", "s", ".", "ü"])}
    backend = Backend(models.WordPiece(vocab, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens(["[UNK]", "[SEP]"])
    return backend


KINDS = {
    "byte level": byte_level(),
    "byte fallback": byte_fallback(),
    "metaspace": metaspace(),
    "words": words(),
    "word pieces": word_pieces(),
}
TOKENIZERS = {name: Tokenizer(backend) for name, backend in KINDS.items()}


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


def test_a_vocabulary_is_known_by_its_tokens_and_their_ids() -> None:
    known = Tokenizer(byte_level()).vocabulary
    more, other = byte_level(), byte_fallback()
    more.add_tokens(["one more"])
    assert len({known, Tokenizer(more).vocabulary, Tokenizer(other).vocabulary}) == 3
    assert Tokenizer(Backend.from_str(byte_level().to_str())).vocabulary == known


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


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return variant(tmp_path, "llama")


@pytest.mark.parametrize("side", ["left", "right"])
def test_truncated_ids_are_those_of_transformers(path: Path, side: Side) -> None:
    """Special tokens around the text stay."""
    transformers = pytest.importorskip("transformers")
    backend = Backend.from_file(str(path / "tokenizer.json"))
    ends = [(token, backend.token_to_id(token)) for token in ("a", "b")]
    backend.post_processor = processors.TemplateProcessing(single="a $A b", special_tokens=ends)
    backend.save(str(path / "tokenizer.json"))
    theirs = transformers.AutoTokenizer.from_pretrained(path, truncation_side=side)
    ours = Tokenizer.from_dir(path)
    assert ours is not None
    for most in (2, 3, 7, 1000):
        for special in (True, False):
            expected = theirs(TEXT[:100], truncation=True, max_length=most, add_special_tokens=special).input_ids
            assert ours.encode_truncated(TEXT[:100], most, side, add_special_tokens=special) == expected
    assert [len(ours.encode_truncated("text", most, side)) for most in (0, 1)] == [0, 1]


def test_ids_are_those_of_transformers(path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(path)
    ours = Tokenizer.from_dir(path)
    assert ours is not None
    for text in ("", "hello", TEXT, "<|endoftext|> in the middle"):
        assert ours.encode(text) == theirs(text).input_ids
        assert ours.decode(ours.encode(text)) == theirs.decode(theirs(text).input_ids, skip_special_tokens=True)


def test_a_directory_without_tokenizer(tmp_path: Path) -> None:
    assert Tokenizer.from_dir(tmp_path) is None


def test_older_formats_need_a_converter(tmp_path: Path, path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "vocab.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"has vocab\.json but no tokenizer\.json"):
        Tokenizer.from_dir(tmp_path / "old")
    text = (path / "tokenizer.json").read_text()
    converted = Tokenizer.from_dir(tmp_path / "old", convert=lambda directory: text)
    ours = Tokenizer.from_dir(path)
    assert converted is not None
    assert ours is not None
    assert converted.encode(TEXT) == ours.encode(TEXT)


def test_broken_files(path: Path) -> None:
    (path / "tokenizer.json").write_text(json.dumps({"model": None}))
    with pytest.raises(CheckpointError, match="is no tokenizer"):
        Tokenizer.from_dir(path)


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text(max_size=60) | st.text("a é東\u1100\u1161\u11a8\u0301", max_size=60))
@settings(max_examples=examples(100), deadline=None)
def test_no_text_has_fewer_tokens_than_its_size_tells(kind: str, text: str) -> None:
    for backend in (KINDS[kind], composing(kind)):
        tokenizer = Tokenizer(backend)
        assert tokenizer.fewest_tokens(text) <= len(tokenizer.encode(text, add_special_tokens=False))


def composing(kind: str) -> Backend:
    """As Qwen's: with a normalizer that shortens text."""
    backend = Backend.from_str(KINDS[kind].to_str())
    first = [backend.normalizer] if backend.normalizer else []
    backend.normalizer = normalizers.Sequence([normalizers.NFC(), *first])
    return backend


def test_what_may_leave_text_out_tells_nothing() -> None:
    assert [TOKENIZERS[kind].fewest_tokens("x" * 10**6) > 10**4 for kind in KINDS] == [True, True, False, False, False]
    stripping = byte_level()
    stripping.add_tokens([AddedToken("<mask>", lstrip=True)])
    removing = byte_level()
    removing.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split("x", "removed"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    lowering = byte_level()
    lowering.normalizer = normalizers.Strip()
    assert [Tokenizer(one).fewest_tokens("x" * 10**6) for one in (stripping, removing, lowering)] == [0, 0, 0]


def test_a_text_that_is_too_long_is_refused_before_it_is_tokenized() -> None:
    tokenizer = TOKENIZERS["byte level"]
    ids = tokenizer.encode("a b c")
    assert tokenizer.encode("a b c", most=len(ids)) == ids
    with pytest.raises(TextTooLong) as caught:
        tokenizer.encode("a b c", most=len(ids) - 1)
    assert (caught.value.num_tokens, caught.value.is_exact) == (len(ids), True)
    started_s = time.process_time()
    with pytest.raises(TextTooLong) as caught:
        tokenizer.encode("hello wor" * 10**6, most=1000)
    assert not caught.value.is_exact and time.process_time() - started_s < 0.5


@pytest.mark.parametrize("work", ["encode", "decode"])
def test_others_run_while_a_long_text_is_tokenized(work: str) -> None:
    """The library's other ways hold the interpreter for the whole of it: 6.7 s for 8 MB."""
    tokenizer = TOKENIZERS["byte level"]
    text = "hello wor " * 100_000
    ids = tokenizer.encode(text)
    thread = threading.Thread(
        target=tokenizer.encode if work == "encode" else tokenizer.decode, args=[text if work == "encode" else ids]
    )
    thread.start()
    turns = 0
    while thread.is_alive():
        turns += 1
        time.sleep(0.001)
    assert turns >= 20
