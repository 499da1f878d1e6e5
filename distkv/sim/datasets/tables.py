"""What the papers print of their datasets, and what has to be assumed besides.

000 Table 2 (`distkv-1` to `distkv-18`): ranges of normal and of long requests, and the share of long ones, of 1,000
requests "derived from scenarios in real-world applications". How lengths lie within a range is not said. Assumed:
normal requests are log-uniform, as lengths of conversations are skewed in each published trace; long ones are uniform.

001 Table 1 (`infinite-0` to `infinite-8`): range, mean and standard deviation of context lengths. Their number is not
said; 1,000 is assumed. Traces 0 to 2 (ShareGPT4) have deviations of six to eight times their means: that is only
possible if almost all requests are short and one or two in a hundred are longer than most of the range. They are drawn
so, log-uniform both; which share is long is assumed, the rest follows. Traces 3 to 8 (L-Eval, an online service) have
one hump.

004 §5.1 (`kvdirect-arxiv`, `kvdirect-sharegpt`): mean lengths of prompts and of responses. Requests are at most as long
as the model's context. Assumed: papers have one hump, with the deviation by the mean that 001 prints for trace 3, and
conversations are log-uniform, from the length on that gives them the mean; and the response is the same share of each.

Neither 000 nor 001 says which part of a length is prompt and which is output. Assumed: the shares of output of 004,
which are ShareGPT's (2,328 of 22,799 tokens) for conversations, that is 001's traces 0 to 2 and 000's normal requests,
and arXiv's (241 of 40,883) for the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest

import msgspec

from distkv.sim.datasets.distributions import Distribution, LogUniform, Mixture, Uniform, hump, turns_and_documents

CONVERSATION_TOKENS, DOCUMENT_TOKENS = 20_471 + 2328, 40_642 + 241
"""004 §5.1, on average: the prompt and the response."""
CONVERSATION_OUTPUT, DOCUMENT_OUTPUT = 2328 / CONVERSATION_TOKENS, 241 / DOCUMENT_TOKENS


class Dataset(msgspec.Struct, frozen=True, kw_only=True):
    """Lengths of requests, prompt and output together, from `low` to `high`. Whatever is longer than
    `conversation_tokens` is a document. mean, deviation: where they are printed. long_share: of requests that are long;
    None where there are none that stand apart."""

    low: int
    high: int
    mean: float | None = None
    deviation: float | None = None
    long_share: float | None = None
    conversation_tokens: int

    def distribution(self) -> Distribution:
        """Of lengths."""
        if self.mean is None or self.deviation is None:
            normal = LogUniform(self.low, self.conversation_tokens)
            if self.long_share is None:
                return normal
            return Mixture(normal, Uniform(self.conversation_tokens, self.high), self.long_share)
        if self.long_share is None:
            return hump(self.low, self.high, self.mean, self.deviation)
        return turns_and_documents(self.low, self.high, self.mean, self.deviation, self.long_share)

    def output_share(self, tokens: int) -> float:
        """Of a request of so many tokens, the share that is generated."""
        return CONVERSATION_OUTPUT if tokens <= self.conversation_tokens else DOCUMENT_OUTPUT


_NORMAL_TOKENS = (100_000, 140_000, 300_000, 240_000, 600_000, 950_000)
"""000 Table 2, by row; long requests are up to twice as long."""
_LONG_SHARES = (0.01, 0.10, 0.30)
_TRACES = (
    (60_000, 1233, 7785.68),
    (60_000, 712, 5531.4),
    (60_000, 469, 3506.36),
    (200_000, 56_362, 28_787.78),
    (280_000, 75_650, 39_479.42),
    (600_000, 160_239, 87_906.67),
    (480_000, 128_804, 70_647.93),
    (1_200_000, 293_945, 172_169.14),
    (2_000_000, 498_609, 261_817.24),
)
"""001 Table 1: longest, mean and standard deviation."""
_TRACE_LONG_SHARES = (0.020, 0.013, 0.018)
"""Assumed, of traces 0 to 2: within what their means and deviations leave possible."""
_CONTEXT_TOKENS = 131_072
"""Of 004's model."""
_SHORTEST_CONVERSATION = 428
"""Of log-uniform lengths up to that, with the mean of 004's conversations."""

DATASETS: Mapping[str, Dataset] = (
    {
        f"distkv-{6 * row + column + 1}": Dataset(low=1, high=2 * normal, long_share=share, conversation_tokens=normal)
        for row, share in enumerate(_LONG_SHARES)
        for column, normal in enumerate(_NORMAL_TOKENS)
    }
    | {
        f"infinite-{number}": Dataset(
            low=1,
            high=high,
            mean=mean,
            deviation=deviation,
            long_share=long_share,
            conversation_tokens=0 if long_share is None else high,
        )
        for number, ((high, mean, deviation), long_share) in enumerate(zip_longest(_TRACES, _TRACE_LONG_SHARES))
    }
    | {
        "kvdirect-arxiv": Dataset(
            low=1,
            high=_CONTEXT_TOKENS,
            mean=DOCUMENT_TOKENS,
            deviation=DOCUMENT_TOKENS * _TRACES[3][2] / _TRACES[3][1],
            conversation_tokens=0,
        ),
        "kvdirect-sharegpt": Dataset(
            low=_SHORTEST_CONVERSATION, high=_CONTEXT_TOKENS, conversation_tokens=_CONTEXT_TOKENS
        ),
    }
)
