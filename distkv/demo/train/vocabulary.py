"""The demo model's tokenizer: byte-level BPE that splits every digit, learned from the generator and plain English."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from distkv.demo.corpus.facts import Corpus

END = "<|endoftext|>"
SPECIAL = (END, "<|system|>", "<|user|>", "<|assistant|>")
SIZE = 4096
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}"
    "{{ '<|assistant|>\\nAnswer: ' + message['content'] | trim + '<|endoftext|>\\n' }}"
    "{% else %}"
    "{{ '<|' + message['role'] + '|>\\n' + message['content'] | trim + '\\n' }}"
    "{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\nAnswer:' }}{% endif %}"
)
_GENERATED_SENTENCES = 8000


def learn(english: Sequence[str], size: int = SIZE) -> Tokenizer:
    """A tokenizer learned from these texts and from generated ones."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"\d"), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_learned_from(english), trainer)
    return tokenizer


def _learned_from(english: Sequence[str]) -> Iterator[str]:
    yield from english
    corpus = Corpus("tokenizer")
    for _ in range(_GENERATED_SENTENCES):
        yield corpus.sentence()
    for near in (False, True):
        for fact in (fact for _ in range(100) for fact in corpus.facts(20, near)):
            yield f"{corpus.statement(fact)}\nQuestion: {corpus.question(fact.key)}\nAnswer: {fact.value}"
