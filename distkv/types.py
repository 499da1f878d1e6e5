"""Plain values that users and every package share."""

from __future__ import annotations

import copy
import difflib
import math
from collections.abc import Mapping, Set
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from distkv.errors import InvalidParams
from distkv.structured_output import StructuredOutput

FinishReason = Literal["stop", "length", "abort"]
InstanceState = Literal["starting", "ready", "draining", "unreachable", "dead", "left"]
ServingState = Literal["ready", "draining"]
LogLevel = Literal["debug", "info", "warning", "error"]
Transport = Literal["auto", "shm", "cuda_ipc", "tcp", "ucx", "nixl"]
PrefillKv = Literal["auto", "ship", "fetch"]
KvCacheDtype = Literal["auto", "fp8"]
ToolCallParser = Literal["auto", "none", "hermes", "llama3_json", "mistral"]
PolicyName = Literal["contract", "greedy", "even", "none"]
PLANNED_POLICIES: Set[PolicyName] = frozenset({"greedy", "even"})
"""By which a gManager plans where blocks should lie, from profiles."""
DispatchName = Literal["predicted", "least-loaded", "random"]
AttentionBackend = Literal["auto", "triton", "flashinfer", "fa3"]
CpuKernels = Literal["auto", "amx", "avx512bf16", "avx512", "avx2", "portable", "torch"]

MAX_STOP_STRINGS = 64
MAX_STOP_BYTES = 1024
MAX_STOPS_BYTES = 8192
MAX_STOP_TOKEN_IDS = 1024
MAX_LOGPROBS = 20
MAX_LOGIT_BIASES = 1024
MAX_ALLOWED_TOKEN_IDS = 1024
MAX_BAD_WORDS = 256
MAX_BAD_WORDS_BYTES = 8192
MAX_INT = 2**31 - 1
_EMPTY: Mapping[str, object] = {"stop": (), "stop_token_ids": (), "bad_words": (), "logit_bias": {}}
WHAT_FITS = MAX_INT
"""max_tokens where None was given: `LLM` shortens it to what there is room for."""


def _require(ok: bool, field: str, expected: str, got: object) -> None:
    if not ok:
        raise InvalidParams(field, expected, got)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) <= MAX_INT
    return isinstance(value, float) and math.isfinite(value)


def is_utf8(text: str) -> bool:
    """Whether UTF-8 can encode the text: lone surrogates cannot be sent."""
    return _utf8_bytes(text) is not None


def _utf8_bytes(text: str) -> int | None:
    """The length in UTF-8; None if it cannot encode the text."""
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        return None


def _are_texts(texts: object, most: int, most_bytes: int, most_bytes_in_all: int) -> bool:
    """Whether these are so many texts that UTF-8 can encode, none empty, each and all of so many bytes at most."""
    # The number of characters first: it costs nothing, whatever came.
    if not isinstance(texts, tuple) or len(texts) > most:
        return False
    if not all(isinstance(one, str) and 0 < len(one) <= most_bytes for one in texts):
        return False
    sizes = [_utf8_bytes(one) or most_bytes + 1 for one in texts]
    return max(sizes, default=0) <= most_bytes and sum(sizes) <= most_bytes_in_all


def _are_token_ids(ids: object, most: int) -> bool:
    return isinstance(ids, tuple) and len(ids) <= most and all(_is_int(one) and 0 <= one <= MAX_INT for one in ids)


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How likely the model found one token: natural logarithms of the softmax of its raw logits, before temperature,
    penalties, bias and filters."""

    token_id: int  #: the token
    logprob: float  #: its logprob
    rank: int  #: from 1, the most likely token
    top: tuple[tuple[int, float], ...] = ()  #: id and logprob of the most likely tokens, best first


class _StrictNames(msgspec.StructMeta):
    """Refuses what is no field as it refuses wrong values."""

    def __call__(cls, *args: Any, **values: Any) -> Any:
        for name, value in values.items():
            if name == "n":
                raise InvalidParams(name, "as an argument of generate or chat (these are for one output)", value)
            if name not in cls.__struct_fields__:
                close = difflib.get_close_matches(name, cls.__struct_fields__, n=1)
                raise InvalidParams(name, f"{close[0]} in its place" if close else "a field of SamplingParams", value)
        return super().__call__(*args, **values)


class SamplingParams(msgspec.Struct, frozen=True, metaclass=_StrictNames):
    """How to turn logits into tokens, and when to stop. Raises InvalidParams naming the field.

    Lists are taken for tuples, and one string for `stop`. As in vLLM, None is an empty list, -1 is no `top_k` and no
    `seed`, and None for `max_tokens` is as many as fit, which only `LLM` knows. The limits of lists are in their types
    too, so that one that is too long is refused before it is decoded. Bias and penalties apply to the raw logits, in
    the order bias, repetition, frequency, presence, and also when greedy; then tokens that may not come are left out,
    then come temperature, top-k, top-p and min-p. Where `bad_words` and `min_tokens` would leave no token, they do not
    apply.
    """

    max_tokens: int = 16  #: most new tokens, at least 1
    temperature: float = 1.0  #: at least 0; 0 is greedy
    top_p: float = 1.0  #: in (0, 1]: keep the most likely tokens that have this much probability together
    top_k: int = 0  #: keep this many most likely tokens; 0 and -1 are off
    #: in [-2^63, 2^63), modulo 2^63: fixes the noise of every position; None, and -1, draws one at admission
    seed: int | None = None
    #: up to 64 texts, each of at most 1024 bytes, 8192 in all; the output ends before one
    stop: Annotated[tuple[str, ...], Meta(max_length=MAX_STOP_STRINGS)] = ()
    #: up to 1024 ids that end the request besides the model's own
    stop_token_ids: Annotated[tuple[int, ...], Meta(max_length=MAX_STOP_TOKEN_IDS)] = ()
    ignore_eos: bool = False  #: go on after the model's end token
    min_p: float = 0.0  #: in [0, 1]: leave out tokens less likely than this share of the most likely one's probability
    #: above 0: logits of tokens in prompt or output are divided by it if positive, else multiplied
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0  #: in [-2, 2]: subtracted from the logits of tokens in the output
    frequency_penalty: float = 0.0  #: in [-2, 2]: subtracted as often as the token is in the output
    #: up to 1024 tokens: a number in [-100, 100], added to their logits
    logit_bias: Annotated[dict[int, float], Meta(max_length=MAX_LOGIT_BIASES)] = {}
    logprobs: int | None = None  #: 0 to 20: give the logprob of each output token and of this many most likely ones
    prompt_logprobs: int | None = None  #: 0 to 20: the same for the tokens of the prompt
    #: at most max_tokens: so many tokens come before one that ends the request, and before a stop string counts
    min_tokens: int = 0
    #: up to 256 texts, 8192 bytes in all: the token that would complete one of them in the output is not chosen
    bad_words: Annotated[tuple[str, ...], Meta(max_length=MAX_BAD_WORDS)] = ()
    #: 1 to 1024 ids: no others are chosen; None is all
    allowed_token_ids: Annotated[tuple[int, ...], Meta(max_length=MAX_ALLOWED_TOKEN_IDS)] | None = None
    skip_special_tokens: bool = True  #: leave special tokens out of the text
    include_stop_str_in_output: bool = False  #: the text ends after the stop string, or the stop token, that ends it
    #: what the text must be; the request ends with `stop` when nothing can follow, whatever `min_tokens`, `ignore_eos`
    structured_output: StructuredOutput | None = None

    def __post_init__(self) -> None:
        self._take_spellings()
        self._check_max_tokens()
        _require(
            _is_number(self.temperature) and self.temperature >= 0, "temperature", "a number ≥ 0", self.temperature
        )
        _require(_is_number(self.top_p) and 0 < self.top_p <= 1, "top_p", "a number in (0, 1]", self.top_p)
        _require(
            _is_int(self.top_k) and 0 <= self.top_k <= MAX_INT,
            "top_k",
            "an integer in [-1, 2**31), where 0 and -1 are off",
            self.top_k,
        )
        _require(
            self.seed is None or (_is_int(self.seed) and 0 <= self.seed < 2**63),
            "seed",
            "None or an integer in [-2**63, 2**63)",
            self.seed,
        )
        _require(
            _are_texts(self.stop, MAX_STOP_STRINGS, MAX_STOP_BYTES, MAX_STOPS_BYTES),
            "stop",
            f"a non-empty string or up to {MAX_STOP_STRINGS} of them, each of at most {MAX_STOP_BYTES} bytes, "
            f"{MAX_STOPS_BYTES} in all",
            self.stop,
        )
        _require(
            _are_token_ids(self.stop_token_ids, MAX_STOP_TOKEN_IDS),
            "stop_token_ids",
            f"up to {MAX_STOP_TOKEN_IDS} token ids in [0, 2**31)",
            self.stop_token_ids,
        )
        for field in ("ignore_eos", "skip_special_tokens", "include_stop_str_in_output"):
            _require(isinstance(getattr(self, field), bool), field, "true or false", getattr(self, field))
        _require(_is_number(self.min_p) and 0 <= self.min_p <= 1, "min_p", "a number in [0, 1]", self.min_p)
        _require(
            _is_number(self.repetition_penalty) and self.repetition_penalty > 0,
            "repetition_penalty",
            "a number > 0",
            self.repetition_penalty,
        )
        for field in ("presence_penalty", "frequency_penalty"):
            penalty = getattr(self, field)
            _require(_is_number(penalty) and -2 <= penalty <= 2, field, "a number in [-2, 2]", penalty)
        _require(
            isinstance(self.logit_bias, dict)
            and len(self.logit_bias) <= MAX_LOGIT_BIASES
            and all(_is_int(one) and 0 <= one <= MAX_INT for one in self.logit_bias)
            and all(_is_number(bias) and -100 <= bias <= 100 for bias in self.logit_bias.values()),
            "logit_bias",
            f"up to {MAX_LOGIT_BIASES} token ids in [0, 2**31), each with a number in [-100, 100]",
            self.logit_bias,
        )
        for field in ("logprobs", "prompt_logprobs"):
            count = getattr(self, field)
            _require(
                count is None or (_is_int(count) and 0 <= count <= MAX_LOGPROBS),
                field,
                f"None or an integer in [0, {MAX_LOGPROBS}]",
                count,
            )
        self._check_min_tokens()
        _require(
            _are_texts(self.bad_words, MAX_BAD_WORDS, MAX_BAD_WORDS_BYTES, MAX_BAD_WORDS_BYTES),
            "bad_words",
            f"up to {MAX_BAD_WORDS} texts, none of them empty, {MAX_BAD_WORDS_BYTES} bytes in all",
            self.bad_words,
        )
        _require(
            self.allowed_token_ids is None
            or (_are_token_ids(self.allowed_token_ids, MAX_ALLOWED_TOKEN_IDS) and self.allowed_token_ids != ()),
            "allowed_token_ids",
            f"None or 1 to {MAX_ALLOWED_TOKEN_IDS} token ids in [0, 2**31)",
            self.allowed_token_ids,
        )
        _require(
            self.structured_output is None or isinstance(self.structured_output, StructuredOutput),
            "structured_output",
            "None or a StructuredOutput",
            self.structured_output,
        )

    def _take_spellings(self) -> None:
        spelled = {field: empty for field, empty in _EMPTY.items() if getattr(self, field) is None}
        if self.max_tokens is None:
            spelled["max_tokens"] = WHAT_FITS
        if self.top_k == -1:
            spelled["top_k"] = 0
        if isinstance(seed := self.seed, int) and -(2**63) <= seed < 0:
            spelled["seed"] = None if seed == -1 else seed % 2**63
        if isinstance(self.stop, str):
            spelled["stop"] = (self.stop,)
        for field in ("stop", "stop_token_ids", "bad_words", "allowed_token_ids"):
            if isinstance(value := getattr(self, field), list):
                spelled[field] = tuple(value)
        for field, value in spelled.items():
            msgspec.structs.force_setattr(self, field, value)

    def _check_max_tokens(self) -> None:
        _require(
            _is_int(self.max_tokens) and 1 <= self.max_tokens <= MAX_INT,
            "max_tokens",
            "an integer in [1, 2**31)",
            self.max_tokens,
        )

    def _check_min_tokens(self) -> None:
        _require(
            _is_int(self.min_tokens) and 0 <= self.min_tokens <= self.max_tokens,
            "min_tokens",
            f"an integer in [0, max_tokens], where max_tokens is {self.max_tokens}",
            self.min_tokens,
        )

    def of_choice(self, index: int) -> SamplingParams:
        """Those of one of several outputs for one prompt: a seed grows by its number. Costs the same however long its
        lists are."""
        if self.seed is None or index == 0:
            return self
        return self._copy_with("seed", (self.seed + index) % 2**63)

    def of_length(self, max_tokens: int) -> SamplingParams:
        """The same with another `max_tokens`. Costs the same however long its lists are. Raises InvalidParams, also
        where `min_tokens` is more."""
        other = self._copy_with("max_tokens", max_tokens)
        other._check_max_tokens()
        other._check_min_tokens()
        return other

    def _copy_with(self, field: str, value: int) -> SamplingParams:
        """The other fields were checked; `msgspec.structs.replace` would check them again, a millisecond for the
        longest."""
        other = copy.copy(self)
        msgspec.structs.force_setattr(other, field, value)
        return other


class Chunk(msgspec.Struct, frozen=True):
    """New output of a request: only what came since the chunk before. The last one has a finish_reason.

    prompt_tokens: tokens of the prompt. logprobs: one for each of token_ids, if asked for. prompt_logprobs: for the
    next tokens of the prompt, if asked for; they come before the first output, and the first token has none.
    queue_s: in the chunk with the first output token, the seconds the request waited before it first ran. stop_reason:
    with the finish_reason "stop", the stop string or the one of `stop_token_ids` that ended it; None for an end of the
    model's own.
    """

    request_id: str
    token_ids: list[int] = []
    text: str = ""
    finish_reason: FinishReason | None = None
    prompt_tokens: int = 0
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    queue_s: float | None = None
    stop_reason: int | str | None = None


class RequestOutput(msgspec.Struct, frozen=True):
    """The whole output of a request. Times are seconds on the caller's clock, from sending the request.

    logprobs: one for each of token_ids, if asked for. prompt_logprobs: one for each token of the prompt, None for the
    first, if asked for. stop_reason: as of the last Chunk.
    """

    request_id: str
    token_ids: list[int]
    text: str
    finish_reason: FinishReason
    prompt_tokens: int = 0
    time_to_first_token_s: float = 0.0
    latency_s: float = 0.0
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    stop_reason: int | str | None = None
