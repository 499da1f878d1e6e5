from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from distkv.errors import CheckpointError
from distkv.text.tokenizer import Tokenizer
from tests.checkpoints import TEXT, variant

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


KINDS = {"byte level": byte_level(), "byte fallback": byte_fallback(), "metaspace": metaspace()}
TOKENIZERS = {name: Tokenizer(backend) for name, backend in KINDS.items()}


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=80, deadline=None)
def test_streamed_text_joins_to_the_whole_text(kind: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[kind]
    ids = data.draw(st.lists(st.integers(0, KINDS[kind].get_vocab_size() + 3), max_size=30))
    cuts = data.draw(st.lists(st.integers(1, 4), min_size=30, max_size=30))
    stream, pieces, start = tokenizer.stream(), [], 0
    for cut in cuts:
        pieces.append(stream.push(ids[start : start + cut]))
        start += cut
    assert "".join([*pieces, stream.finish()]) == tokenizer.decode(ids)


@pytest.mark.parametrize("kind", ["byte level", "byte fallback"])
@given(text=st.text(max_size=20))
@settings(max_examples=60, deadline=None)
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


def test_work_per_token_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("byte fallback", "metaspace"):
        tokenizer = TOKENIZERS[kind]
        ids = tokenizer.encode("the a the a s. " * 50)
        decoded: list[int] = []
        whole = tokenizer.decode

        def counting(ids: list[int]) -> str:
            decoded.append(len(ids))  # noqa: B023
            return whole(ids)  # noqa: B023

        monkeypatch.setattr(tokenizer, "decode", counting)
        stream = tokenizer.stream()
        stream.push(ids)
        assert sum(decoded) <= 3 * len(ids)
        monkeypatch.undo()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return variant(tmp_path, "llama")


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
