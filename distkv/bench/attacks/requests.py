"""What one client sends to hurt all others: plain HTTP, within the limits of what a gateway takes, or beyond them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

COMPLETIONS, TOKENIZE = "/v1/completions", "/tokenize"
SOON_S = 0.5
"""After so long an attacker leaves who wants no answer."""
MAX_STOPS = 64


class Attack(msgspec.Struct, frozen=True):
    """Requests that come at the same time, each by a connection of its own.

    raw: what is sent. leaves_s: after so long, connections without an answer are cut.
    """

    name: str
    raw: Sequence[bytes]
    leaves_s: float


class Scale(msgspec.Struct, frozen=True):
    """How large they are. patience_s: how long an attacker waits for answers; stays_s: the same of one who sends half a
    request."""

    long_text_bytes: int
    text_bytes: int
    texts: int
    tokenize_calls: int
    prompts: int
    ids: int
    many_ids: int
    stop_bytes: int
    half_sent: int
    chunked: int
    chunks: int
    leaving: int
    patience_s: float
    stays_s: float


FULL = Scale(8_000_000, 250_000, 64, 32, 1024, 100_000, 125_000, 270_000, 2000, 60, 1_500_000, 1000, 20.0, 3.0)
QUICK = Scale(80_000, 2_500, 8, 4, 64, 1_000, 1_250, 2_700, 50, 4, 20_000, 50, 2.0, 0.5)


def attacks(scale: Scale, most_connections: int) -> tuple[Attack, ...]:
    """All of them; most_connections: at the same time."""
    long_text = _text(scale.long_text_bytes)
    texts = [_text(scale.text_bytes, seed) for seed in range(scale.texts)]
    stops = [f"{index:04}" * (scale.stop_bytes // 4) for index in range(MAX_STOPS)]
    many_ids = _completion(prompt=[5] * scale.many_ids)
    half = _completion(prompt=[5] * 1000)[:-500]
    endless = _completion(prompt=[5, 6, 7], max_tokens=2000, ignore_eos=True, stream=True)
    half_sent, leaving = min(scale.half_sent, most_connections), min(scale.leaving, most_connections)
    patience_s = scale.patience_s
    return (
        Attack(f"a text of {_bytes(scale.long_text_bytes)}", [_completion(prompt=long_text)], patience_s),
        Attack(
            f"{scale.texts} texts of {_bytes(scale.text_bytes)}",
            [_completion(prompt=text) for text in texts],
            patience_s,
        ),
        Attack(
            f"{scale.tokenize_calls} tokenize calls of {_bytes(scale.text_bytes)}",
            [post(TOKENIZE, {"prompt": text, "return_token_strs": True}) for text in texts[: scale.tokenize_calls]],
            patience_s,
        ),
        Attack(
            f"4 × {scale.prompts:,} prompts",
            [_completion(prompt=[[5, 6, 7]] * scale.prompts, max_tokens=2)] * 4,
            patience_s,
        ),
        Attack(f"{scale.texts} × {scale.many_ids:,} token ids", [many_ids] * scale.texts, patience_s),
        Attack(f"n = 128 of {scale.ids:,} token ids", [_completion(prompt=[5] * scale.ids, n=128)], patience_s),
        Attack(
            f"{MAX_STOPS} stops of {_bytes(scale.stop_bytes)}", [_completion(prompt=[5, 6], stop=stops)], patience_s
        ),
        Attack(f"{half_sent:,} half-sent bodies", [half] * half_sent, scale.stays_s),
        Attack(
            f"{scale.chunked} bodies of {scale.chunks:,} chunks", [_in_chunks(scale.chunks)] * scale.chunked, patience_s
        ),
        Attack(f"{leaving:,} streams whose readers leave", [endless] * leaving, SOON_S),
    )


def post(path: str, body: dict[str, Any]) -> bytes:
    """A request as it is sent; the connection ends with its answer."""
    raw = msgspec.json.encode(body)
    head = f"POST {path} HTTP/1.1\r\nHost: attacked\r\nConnection: close\r\nContent-Length: {len(raw)}\r\n\r\n"
    return head.encode() + raw


def _completion(**body: Any) -> bytes:
    return post(COMPLETIONS, {"max_tokens": 1, **body})


def _in_chunks(count: int) -> bytes:
    """A completion in chunks of one byte."""
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: attacked\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = msgspec.json.encode({"max_tokens": 1, "prompt": [5]}).ljust(count)
    return head.encode() + b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"


def _text(size_bytes: int, seed: int = 0) -> str:
    words = f"hello {seed} "
    return words * (size_bytes // len(words))


def _bytes(size: int) -> str:
    return f"{size / 1e6:g} MB" if size >= 1e6 else f"{size / 1e3:g} kB"
