"""Heartbeats as bytes that are encoded once: what differs from one to the next is written in place."""

from __future__ import annotations

import random
import struct

from distkv.wire.codec import encode_envelope
from distkv.wire.messages.envelope import Envelope
from distkv.wire.messages.to_gmanager import Heartbeat, RequestPlacementEntry

BLOCKS = 4096
STATES = 512
"""So many different states of an instance come by turns."""
# Encoded as the marker of a 32-bit number and four bytes, which any smaller number may take too.
_SEQ, _BASE, _BLOCKS = 0xF1F1F1F1, 0xF2F2F2F2, 0xF3F3F3F3
_STATE_KEY = b"\xa5state"


def instance_name(number: int) -> str:
    """All are of equal length."""
    return f"instance-{number:05d}"


def _number_at(frame: bytearray, mark: int) -> int:
    found = frame.index(struct.pack(">BI", 0xCE, mark))
    return found + 1


class HeartbeatFrames:
    """The heartbeats of one instance after the other, as by default: each has one changed placement and other free
    blocks."""

    def __init__(self) -> None:
        self._heads: list[bytearray] = []
        draw = random.Random(0)
        self._tails = [self._parts("instance", draw.randrange(BLOCKS), draw)[1] for _ in range(STATES)]
        self._id_at = self._seq_at = self._base_at = self._blocks_at = self._full_at = self._request_at = 0

    def add(self, name: str) -> None:
        """One more instance; all names are of equal length."""
        head = bytearray(self._parts(name, 0, random.Random(0))[0])
        if not self._heads:
            self._id_at = head.index(name.encode() + b"-00000000") + len(name) + 1
            self._seq_at, self._base_at, self._blocks_at = (_number_at(head, mark) for mark in (_SEQ, _BASE, _BLOCKS))
            self._full_at = head.index(b"\xa4full") + len(b"\xa4full")
            self._request_at = head.index(b"request-") + len(b"request-")
        self._heads.append(head)

    def frame(self, number: int, seq: int) -> bytearray:
        """Its heartbeat `seq`, which builds on the one before; the first is full."""
        head = self._heads[number]
        head[self._id_at : self._id_at + 8] = b"%08d" % seq
        struct.pack_into(">I", head, self._seq_at, seq)
        struct.pack_into(">I", head, self._base_at, seq - 1)
        struct.pack_into(">I", head, self._blocks_at, 1 + seq % 9)
        head[self._full_at] = 0xC3 if seq == 1 else 0xC2
        head[self._request_at] = ord("0") + seq % 3
        return head + self._tails[(number + seq) % STATES]

    @staticmethod
    def _parts(name: str, free: int, draw: random.Random) -> tuple[bytes, bytes]:
        """What is before its state, and its state."""
        running, waiting = draw.randrange(1, 33), max(0, draw.randrange(10) - 8)
        placed = RequestPlacementEntry(req_id="request-0", inst_id=name, num_blocks=_BLOCKS, local=True)
        beat = Heartbeat(
            instance_id=name,
            incarnation=1,
            seq=_SEQ,
            base=_BASE,
            full=False,
            entries=(placed,),
            total_blocks=BLOCKS,
            free_blocks=free,
            lendable_blocks=max(0, free - 8),
            running=running,
            waiting=waiting,
            step_s=0.02,
            context_tokens=16 * (BLOCKS - free),
            prefill_tokens=draw.randrange(4096),
            borrowed_blocks=draw.randrange(256),
            lent_blocks=draw.randrange(256),
            decode_base_s=0.012,
            decode_row_s=0.0005,
            prompt_token_s=0.0005,
            output_tokens=draw.randrange(1, 512),
        )
        frame = encode_envelope(Envelope(id=f"{name}-00000000", sender=name, body=beat))
        at = frame.index(_STATE_KEY)
        return frame[:at], frame[at:]
