from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from distkv.errors import CheckpointError
from distkv.text.tokenizer import Side, TextTooLong, Tokenizer
from tests.checkpoints import TEXT, variant
from tests.examples import examples
from tests.text.kinds import KINDS, TOKENIZERS, byte_fallback, byte_level


def test_a_vocabulary_is_known_by_its_tokens_and_their_ids() -> None:
    known = Tokenizer(byte_level()).vocabulary
    more, other = byte_level(), byte_fallback()
    more.add_tokens(["one more"])
    assert len({known, Tokenizer(more).vocabulary, Tokenizer(other).vocabulary}) == 3
    assert Tokenizer(Backend.from_str(byte_level().to_str())).vocabulary == known


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
    (path / "tokenizer.json").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 9\n")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: is a pointer of Git LFS .*git lfs pull"):
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
