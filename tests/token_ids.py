"""Token ids as tests write them."""

from __future__ import annotations

from array import array

from distkv.token_ids import pack, unpack
from distkv.wire.messages.to_rmanager import Submit


def packed(*ids: int) -> bytes:
    """As a message carries them."""
    return pack(array("i", ids))


def prompt_fields(prompt: str | tuple[int, ...]) -> dict[str, str | memoryview]:
    """The fields of a Submit with this prompt."""
    return {"prompt": prompt} if isinstance(prompt, str) else {"prompt_token_ids": memoryview(packed(*prompt))}


def prompt_of(submit: Submit) -> str | tuple[int, ...]:
    """The text of a Submit, or its ids."""
    return submit.prompt if submit.prompt_token_ids is None else ids_of(submit)


def ids_of(submit: Submit) -> tuple[int, ...]:
    """The prompt of a Submit that has ids."""
    assert submit.prompt_token_ids is not None
    return tuple(unpack(submit.prompt_token_ids))
