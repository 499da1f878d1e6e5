"""What a user may hand in as a prompt, checked before anything is sent."""

from __future__ import annotations

import operator
import uuid
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self, SupportsIndex, overload

from distkv.errors import InvalidParams
from distkv.token_ids import ID_BYTES, pack, unpack
from distkv.types import WHAT_FITS, SamplingParams, is_utf8
from distkv.wire.codec import MAX_MESSAGE_BYTES
from distkv.wire.messages.to_rmanager import Submit

MAX_REQUEST_ID = 200
MAX_TIMEOUT_S = 1e9
MAX_OUTPUTS = 1024
"""Of one prompt in one call, and of one HTTP request."""
# What fits one message beside the rest of a Submit.
MAX_PROMPT_BYTES = MAX_MESSAGE_BYTES - 2**16
MAX_PROMPT_TOKENS = MAX_PROMPT_BYTES // ID_BYTES


BYTES = bytes | bytearray | memoryview
"""Sequences of numbers that are no token ids: texts that nobody decoded."""


class TokenIds(Sequence[int]):
    """Ids in [0, 2^31), at least one, that whoever made this checked, packed as they are sent: many requests may share
    them at no cost."""

    __slots__ = ("packed",)

    def __init__(self, ids: Iterable[int]) -> None:
        self.packed = memoryview(pack(array("i", ids)))

    @classmethod
    def of_packed(cls, packed: bytes) -> Self:
        """Ids that somebody else has packed."""
        made = cls.__new__(cls)
        made.packed = memoryview(packed)
        return made

    def __len__(self) -> int:
        return len(self.packed) // ID_BYTES

    def __iter__(self) -> Iterator[int]:
        return iter(unpack(self.packed))

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> array[int]: ...
    def __getitem__(self, index: int | slice) -> int | array[int]:
        if isinstance(index, slice):
            places = range(len(self))[index]
            if not places:
                return array("i")
            first, last = sorted((places[0], places[-1]))
            return unpack(self.packed[first * ID_BYTES : (last + 1) * ID_BYTES])[:: places.step]
        at = range(len(self))[index]
        return unpack(self.packed[at * ID_BYTES : (at + 1) * ID_BYTES])[0]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TokenIds) and self.packed == other.packed

    def __hash__(self) -> int:
        return hash(self.packed)

    def __repr__(self) -> str:
        return f"TokenIds({list(self)})"


def each_prompt(prompts: object) -> list[Any]:
    """The prompts of a call: a text, a dict and token ids are one. Raises TypeError."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if isinstance(prompts, BYTES) or not isinstance(prompts, Iterable):
        raise TypeError(f"prompts are texts or lists of token ids, one or many, not {type(prompts).__name__}")
    found = list(prompts)
    return [found] if found and all(isinstance(one, int) for one in found) else found


def check_prompt(prompt: object) -> str | TokenIds:
    """The prompt as it is sent: text, or token ids. Raises TypeError, or InvalidParams for ids that cannot be."""
    if isinstance(prompt, TokenIds) and len(prompt) <= MAX_PROMPT_TOKENS:
        return prompt
    if isinstance(prompt, str):
        if not is_utf8(prompt):
            raise InvalidParams("prompt", "text that UTF-8 can encode", prompt[:40])
        size_bytes = len(prompt.encode())
        if size_bytes > MAX_PROMPT_BYTES:
            raise InvalidParams("prompt", f"text of at most {MAX_PROMPT_BYTES} bytes", f"{size_bytes} bytes")
        return prompt
    if not isinstance(prompt, list | tuple):
        raise TypeError(f"a prompt is a str or a list of token ids, not {type(prompt).__name__}")
    if len(prompt) > MAX_PROMPT_TOKENS:
        raise InvalidParams("prompt", f"at most {MAX_PROMPT_TOKENS} token ids", f"{len(prompt)} ids")
    # What plain ints are is seen at once; others are looked at one by one, and the first wrong one is named.
    if set(map(type, prompt)) != {int} or min(prompt) < 0 or max(prompt) >= 2**31:
        _check_each(prompt)
    return TokenIds(prompt)


def _check_each(ids: Sequence[object]) -> None:
    for index, token in enumerate(ids):
        if isinstance(token, bool) or not isinstance(token, SupportsIndex):
            raise TypeError(f"a prompt is a str or a list of token ids; item {index} is a {type(token).__name__}")
        if not 0 <= operator.index(token) < 2**31:
            raise InvalidParams("prompt", f"token ids in [0, 2**31) at item {index}", token)
    if not ids:
        raise InvalidParams("prompt", "at least one token id", list(ids))


def check_params(params: object, *, fits: bool = False) -> SamplingParams:
    """The params, or the defaults for None. fits: who sends them shortens `max_tokens` to what there is room for.
    Raises TypeError, InvalidParams."""
    if params is None:
        return SamplingParams()
    if not isinstance(params, SamplingParams):
        raise TypeError(f"params are SamplingParams, not {type(params).__name__}")
    if params.max_tokens == WHAT_FITS and not fits:
        raise InvalidParams("max_tokens", "a number, for only LLM knows how many tokens there is room for", None)
    return params


def check_request_id(request_id: object) -> str:
    """The id, or a new one for None. Raises InvalidParams."""
    if request_id is None:
        return "req-" + uuid.uuid4().hex
    if not isinstance(request_id, str) or not 0 < len(request_id) <= MAX_REQUEST_ID or not is_utf8(request_id):
        raise InvalidParams("request_id", f"a text of 1 to {MAX_REQUEST_ID} characters", request_id)
    return request_id


def check_timeout(timeout_s: object) -> float | None:
    """Seconds > 0 and at most MAX_TIMEOUT_S, or None for the instance's own limit. Raises InvalidParams."""
    if timeout_s is None:
        return None
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not 0 < timeout_s <= MAX_TIMEOUT_S:
        raise InvalidParams("timeout_s", f"seconds > 0, at most {MAX_TIMEOUT_S:g}", timeout_s)
    return float(timeout_s)


def check_n(n: object) -> None:
    """How many outputs a prompt gets. Raises InvalidParams."""
    check_count("n", n, 1, MAX_OUTPUTS)


def check_count(field: str, value: object, least: int, most: int | None = None) -> None:
    """A whole number of something. Raises InvalidParams."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        raise InvalidParams(
            field, f"an integer ≥ {least}" if most is None else f"an integer in [{least}, {most}]", value
        )


def estimate_tokens(submit: Submit) -> int:
    """About how many tokens a prompt has: text is counted as four characters per token."""
    ids = submit.prompt_token_ids
    return len(submit.prompt) // 4 + 1 if ids is None else len(ids) // ID_BYTES
