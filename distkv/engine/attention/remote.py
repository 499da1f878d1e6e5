"""What the engine asks of peers. Actors hand it links; it never sees a socket."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn, Protocol

import torch
from torch import Tensor

from distkv.engine.attention.bodies import body_of, tensor_of
from distkv.errors import LinkClosed, LinkError, WireError
from distkv.wire.messages.data import Attend, AttendPlan, DataMessage, Denied, Partials


class CreditorLink(Protocol):
    """One creditor, asked by one thread. Every method raises LinkError; after that the link is not used again."""

    def plan(self, plan: AttendPlan, positions: Tensor) -> None:
        """Say what the queries of this step mean. positions: int64 [R], of each query row."""

    def send(self, layer: int, q: Tensor) -> None:
        """Ask: q [R, Hq, D] in the model's dtype. Exactly one `collect` of the same layer follows."""

    def collect(self, layer: int) -> tuple[Tensor, Tensor, tuple[int, ...]]:
        """The answer, entry by entry: out float32 [ΣR, Hq, D], lse float32 [ΣR, Hq], and the stale entries."""


class Peers(Protocol):
    """Finds creditors."""

    def creditor(self, instance_id: str, half: int = 0) -> CreditorLink:
        """A usable link to an instance; each half of a step has its own, for their questions overlap. Raises LinkError
        when it cannot be reached."""


class FrameLink(Protocol):
    """Frames to and from one peer, in order. Both methods raise LinkError or WireError."""

    def send(self, header: DataMessage, *buffers: memoryview) -> None:
        """Send a header and its body, the buffers one after another."""

    def recv(self, timeout_s: float) -> tuple[DataMessage, bytes | bytearray | memoryview]:
        """The next frame. Raises LinkTimeout when none comes in time. The body is valid until the next `recv`; the
        partials made of it share its memory."""


def _uncounted(_: int) -> None:
    return None


class FramedCreditor:
    """A CreditorLink over frames.

    count_bytes: told the body bytes of every frame sent or received, as they pass. attend_timeout_s: how long one
    `collect` waits. An answer that is late or is not the one asked for ends the link: what comes after it could be
    taken for another layer's. `broken` is true from then on, and whoever opened the link should abort it.
    """

    def __init__(
        self,
        link: FrameLink,
        peer_id: str,
        num_heads: int,
        head_dim: int,
        attend_timeout_s: float,
        count_bytes: Callable[[int], None] = _uncounted,
    ) -> None:
        self.broken = False
        self._link, self._peer_id = link, peer_id
        self._num_heads, self._head_dim = num_heads, head_dim
        self._attend_timeout_s = attend_timeout_s
        self._count_bytes = count_bytes
        self._step_id = 0
        self._answer_rows = 0
        self._num_entries = 0

    def plan(self, plan: AttendPlan, positions: Tensor) -> None:
        """See CreditorLink."""
        self._step_id = plan.step_id
        self._answer_rows = sum(entry.num_rows for entry in plan.entries)
        self._num_entries = len(plan.entries)
        self._send(plan, positions)

    def send(self, layer: int, q: Tensor) -> None:
        """See CreditorLink."""
        self._send(Attend(step_id=self._step_id, layer=layer), q)

    def collect(self, layer: int) -> tuple[Tensor, Tensor, tuple[int, ...]]:
        """See CreditorLink."""
        with self._using_link():
            header, body = self._link.recv(self._attend_timeout_s)
            return self._read(layer, header, body)

    def _read(
        self, layer: int, header: DataMessage, body: bytes | bytearray | memoryview
    ) -> tuple[Tensor, Tensor, tuple[int, ...]]:
        match header:
            case Partials(step_id=self._step_id, layer=answered, stale=stale) if answered == layer:
                if not all(0 <= index < self._num_entries for index in stale):
                    self._end(f"named entries {stale} of {self._num_entries}")
            case Denied(field=field, expected=expected, got=got):
                self._end(f"denied: {field} should be {expected}, was {got}")
            case _:
                self._end(f"sent {header!r} instead of the partials of step {self._step_id}, layer {layer}")
        rows, heads, dim = self._answer_rows, self._num_heads, self._head_dim
        flat = tensor_of(body, torch.float32, (rows * heads * (dim + 1),))
        self._count_bytes(flat.nbytes)
        return flat[: rows * heads * dim].view(rows, heads, dim), flat[rows * heads * dim :].view(rows, heads), stale

    def _send(self, header: AttendPlan | Attend, tensor: Tensor) -> None:
        body = body_of(tensor)
        with self._using_link():
            self._link.send(header, body)
        self._count_bytes(body.nbytes)

    @contextmanager
    def _using_link(self) -> Iterator[None]:
        """Whatever goes wrong inside is the last thing that happens on this link, and a LinkError."""
        if self.broken:
            raise LinkClosed(self._peer_id, "the link failed before")
        try:
            yield
        except LinkError:
            self.broken = True
            raise
        except WireError as error:
            self.broken = True
            raise LinkClosed(self._peer_id, str(error)) from error

    def _end(self, why: str) -> NoReturn:
        raise LinkClosed(self._peer_id, why)
