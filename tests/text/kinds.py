"""Tokenizers of every kind, with few tokens."""

from __future__ import annotations

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from distkv.text.tokenizer import Tokenizer
from tests.checkpoints import TEXT

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
