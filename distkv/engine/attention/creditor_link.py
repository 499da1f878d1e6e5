"""A debtor's end of the link to one creditor: queries go out, partials come back. Actors hand it frames, no sockets."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
import structlog
import torch
from torch import Tensor

from distkv.engine.attention.answer_times import AnswerTimes
from distkv.engine.attention.bodies import OUT_DTYPES, body_of, partial_of
from distkv.engine.attention.fetch.costs import Costs
from distkv.engine.attention.fetch.keys import work_of
from distkv.engine.attention.fetch.link import FetchLink
from distkv.engine.attention.mailbox.posting import Posting
from distkv.engine.attention.merging import Rows
from distkv.errors import FrameTooLarge, LinkClosed, LinkError, LinkTimeout, WireError
from distkv.kernels import Partial
from distkv.kernels.exchange import Answered, Asked, FrameStatus
from distkv.kernels.mailbox import MailStatus
from distkv.wire.messages.common import clipped
from distkv.wire.messages.counters import Counters
from distkv.wire.messages.data import Attend, AttendPlan, DataMessage, Denied, OutDtype, Partials, PlanServed

TURN_S = 0.05
"""What a creditor gets at least to hand over what it may have answered while another one was waited for."""


class FrameStream(Protocol):
    """See distkv.wire.links.streams.frame_stream."""

    def fileno(self) -> int: ...

    def enter(self) -> None: ...

    def leave(self) -> None: ...

    @property
    def has_received(self) -> bool: ...

    def beginning(self, header: DataMessage, body_bytes: int) -> bytes: ...

    def take(self) -> bytes: ...

    def unread(self, taken: bytes) -> None: ...


class FrameLink(Protocol):
    """Frames to and from one peer, in order. Both methods raise LinkError or WireError."""

    @property
    def stream(self) -> FrameStream | None:
        """The socket that carries them, if there is one."""

    def send(self, header: DataMessage, *buffers: memoryview, timeout_s: float) -> None:
        """Send a header and its body, the buffers one after another. Raises LinkTimeout when the peer takes nothing for
        `timeout_s`."""

    def recv(self, timeout_s: float) -> tuple[DataMessage, bytes | bytearray | memoryview]:
        """The next frame. Raises LinkTimeout when none comes in time. The body is valid until the next `recv`; the
        partials made of it share its memory."""


class Peers(Protocol):
    """Finds creditors. Neither method connects."""

    def creditor(self, instance_id: str, microbatch: int = 0) -> CreditorLink:
        """A usable link to an instance; each microbatch of a step has its own, for their queries overlap. Raises
        LinkError when there is none; does not wait for one longer than a moment."""

    def fetch_link(self, instance_id: str, microbatch: int = 0) -> FetchLink | None:
        """A usable link to read an instance's blocks by, likewise; None when there is none yet. Does not wait."""


class CreditorLink:
    """Attention of one microbatch over the spans that it has on one creditor. Used by one thread, from step to step.

    A step begins with a plan; then each layer sends queries and collects their partials. No method raises LinkError:
    the first failure loses the plan's sequences, is logged, and ends the link. So does a frame that is late or not
    the expected one: what comes after it could be taken for another layer's. `broken` is true from then on, nothing is
    sent or received any more, and whoever opened the link should abort it.
    """

    def __init__(
        self,
        link: FrameLink,
        creditor_id: str,
        times: AnswerTimes,
        counters: Counters,
        on_silent: Callable[[], None] = lambda: None,
        costs: Costs | None = None,
        out_dtype: OutDtype = "float32",
        posting: Posting | None = None,
    ) -> None:
        """times: of this creditor's answers, by which it is waited for. counters: query_bytes are added to these.
        on_silent: called when it was waited for in vain. costs: learn what it costs a step to ask this creditor.
        out_dtype: in which partials are asked for, until the creditor answers in float32 all the same. posting: the
        mailbox that the creditor has mapped, for plans that have room there."""
        self.broken = False
        self._on_silent = on_silent
        self._link, self._creditor_id, self._times, self._out_dtype = link, creditor_id, times, out_dtype
        self._counters, self._costs, self._posting, self._posts = counters, costs, posting, False
        self._busy_s, self._layers, self._own_blocks = 0.0, 0, 0
        self._plan = AttendPlan(step_id=0, num_rows=0, entries=())
        self._rows: Rows = slice(0, 0)
        self._lost: Sequence[set[str]] = ()
        self._work, self._partial_rows, self._patience_s, self._asked_s = 0, 0, 0.0, 0.0
        self._awaited_heads: tuple[int, ...] | None = None
        self._asked_bytes, self._asked_heads = 0, (0, 0)

    @property
    def plan(self) -> AttendPlan:
        """Of this step."""
        return self._plan

    @property
    def rows(self) -> Rows:
        """Which rows of the microbatch the plan sends."""
        return self._rows

    @property
    def is_open(self) -> bool:
        """Whether queries can be sent, and a sequence of the plan still counts."""
        return not self.broken and not all(self._lost)

    @property
    def partial_rows(self) -> int:
        """Rows of the partials of one layer."""
        return self._partial_rows

    def begin(
        self,
        plan: AttendPlan,
        positions: Tensor | memoryview,
        rows: Rows,
        lost: Sequence[set[str]],
        own_blocks: int = 0,
    ) -> None:
        """Send the plan of a step.

        positions: int64 [R], of each row that travels; on the host, or the bytes of it. lost: per entry of the plan,
        the creditors that failed its sequence: this one is added when the entry is stale or the link fails. own_blocks:
        see Work.
        """
        self._own_blocks = own_blocks
        if plan.entries is not self._plan.entries:  # from step to step decodes have the same ones
            self._work = sum(entry.num_rows * entry.num_blocks for entry in plan.entries)
            self._partial_rows = sum(entry.num_rows for entry in plan.entries)
        self._patience_s = self._times.patience_s(self._work)
        first = self._posting.begin(plan, rows, self._patience_s) if self._posting is not None else 0
        self._posts = first > 0
        out_dtype = "float32" if first else self._out_dtype
        if first or plan.out_dtype != out_dtype:
            plan = msgspec.structs.replace(plan, out_dtype=out_dtype, first_post=first)
        self._plan, self._rows, self._lost, self._awaited_heads = plan, rows, lost, None
        self._busy_s, self._layers = 0.0, 0
        self._send(plan, positions)

    @property
    def posts(self) -> bool:
        """Whether the layers of this plan are posted and taken by the device, in place of `send` and `collect`."""
        return self._posts and not self.broken

    def post(self, layer: int, q: Tensor) -> None:
        """Have the device post the queries of a layer, [N, Hq, D] of the microbatch."""
        assert self._posting is not None
        self._posting.post(layer, q)

    def take(self, layer: int) -> Partial:
        """Have the device wait for the partials of what was posted last; see Posting.take."""
        assert self._posting is not None
        partial = self._posting.take(layer)
        self._counters.query_bytes += partial[0].nbytes + partial[1].nbytes
        return partial

    def may_post(self, plan: AttendPlan) -> bool:
        """Whether the device can post and take the layers of such a plan."""
        return self._posting is not None and not self.broken and self._posting.takes(plan)

    def mail_fields(self, first_partial: int, num_layers: int) -> list[int]:
        """See Posting.fields: all layers are posted and taken by a captured step."""
        assert self._posting is not None
        fields = self._posting.fields(self._plan, first_partial)
        self._counters.query_bytes += num_layers * self._posting.partial_bytes(self.partial_rows)
        return fields

    def settle(self) -> float:
        """The device has done a step whose layers were posted: what became of them is known now. To be called inside
        its stream; waits for the creditor's word that all of them counted. Returns the seconds that the device stood
        still for partials."""
        if not self.posts:
            return 0.0
        assert self._posting is not None
        status, waited_s = self._posting.outcome()
        self._posts = False
        try:
            match status:
                case MailStatus.OK:
                    for entry in self._served().stale:
                        self._lost[entry].add(self._creditor_id)
                case MailStatus.LATE:
                    raise LinkTimeout(self._creditor_id, self._patience_s)
                case MailStatus.HALTED:
                    raise LinkClosed(self._creditor_id, "it ended, or has taken back what it lent")
                case MailStatus.SPOILT:
                    raise LinkClosed(self._creditor_id, "it could not serve a layer")
        except (LinkError, WireError) as error:
            self._fail(error)
        return waited_s

    def send(self, layer: int, q: Tensor) -> None:
        """Send the queries of a layer, [R, Hq, D] in the model's dtype, on the host."""
        self._asked_s = time.monotonic()
        self._send(Attend(step_id=self._plan.step_id, layer=layer), q)
        self._busy_s += time.monotonic() - self._asked_s
        self._awaited_heads = q.shape[1:]

    def asked(self, num_layers: int, heads: int, dim: int, dtype: torch.dtype) -> Asked | None:
        """The plan as something that native code can send and receive by itself; None where it is to be done frame by
        frame, and where a frame would be larger than any may be. heads, dim, dtype: of queries."""
        stream = self._link.stream
        if stream is None or not self.is_open or stream.has_received or self.posts:
            return None
        step_id, rows, num_queries = self._plan.step_id, self.partial_rows, self._plan.num_rows
        query_bytes, out_dtype = num_queries * heads * dim * dtype.itemsize, self._plan.out_dtype
        self._asked_bytes, self._asked_heads = query_bytes, (heads, dim)
        partial_bytes = _partial_bytes(rows, heads, dim, out_dtype)
        layers = range(num_layers)
        try:
            frames = [stream.beginning(Attend(step_id=step_id, layer=layer), query_bytes) for layer in layers]
            expected = [
                stream.beginning(Partials(step_id=step_id, layer=layer, out_dtype=out_dtype), partial_bytes)
                for layer in layers
            ]
        except FrameTooLarge:
            return None
        return Asked(stream.fileno(), self._rows, rows, frames, expected, self._patience_s, OUT_DTYPES[out_dtype])

    def enter(self) -> bool:
        """The socket of `asked` stays open until `leave`; False if it is not."""
        stream = self._link.stream
        try:
            if stream is not None and not self.broken:
                stream.enter()
                return True
        except LinkError as error:
            self._fail(error)
        return False

    def leave(self) -> None:
        """See enter."""
        stream = self._link.stream
        assert stream is not None
        stream.leave()

    def answered(self, layer: int, answer: Answered) -> Partial | None:
        """What came of the queries of a layer that native code sent by `asked`; None when no partials will come."""
        self._asked_s = answer.asked_s
        self._busy_s += answer.sent_s - answer.asked_s
        match answer.status:
            case FrameStatus.OK:
                size = _partial_bytes(self._partial_rows, *self._asked_heads, self._plan.out_dtype)
                self._took(answer.waits_s, answer.answered_s, size)
                self._counters.query_bytes += self._asked_bytes
                return answer.partial
            case FrameStatus.OTHER:
                assert self._link.stream is not None
                self._link.stream.unread(answer.taken)
                self._counters.query_bytes += self._asked_bytes
                self._awaited_heads = self._asked_heads
                return self.collect(layer, answer.waits_s)
            case FrameStatus.LATE:
                self._fail(LinkTimeout(self._creditor_id, self._patience_s))
            case FrameStatus.ENDED:
                self._fail(LinkClosed(self._creditor_id, "it ended"))
            case _:
                self._fail(LinkClosed(self._creditor_id, "its connection failed"))
        return None

    def collect(self, layer: int, since_s: float) -> Partial | None:
        """Wait for the partials of what was sent last, entry by entry: out float32 or bfloat16 [ΣR, Hq, D], as it came,
        lse float32 [ΣR, Hq]; on the host, valid until the next call. None when nothing was sent or none will come.

        since_s: when the step began to wait for this layer, on the monotonic clock: all creditors are waited for
        together, and none for longer because another one was."""
        if self.broken or self._awaited_heads is None:
            return None
        (heads, dim), self._awaited_heads = self._awaited_heads, None
        rows = self.partial_rows
        waits_s = time.monotonic()
        left_s = since_s + self._patience_s - waits_s
        try:
            header, body = self._link.recv(min(self._patience_s, max(TURN_S, left_s)))
            found = self._expected(layer, header)
            out, lse = partial_of(body, found.out_dtype, rows, heads, dim)
        except (LinkError, WireError) as error:
            self._fail(error)
            return None
        self._took(waits_s, time.monotonic(), out.nbytes + lse.nbytes)
        self._out_dtype = found.out_dtype
        for entry in found.stale:
            self._lost[entry].add(self._creditor_id)
        return out, lse

    def finish(self) -> None:
        """The step is over: what it cost is known."""
        work = work_of(self._plan.entries, self._own_blocks)
        if self._costs is not None and work is not None and self._layers and not self.broken:
            self._costs.took("ship", work, self._busy_s / self._layers)

    def _took(self, waits_s: float, answered_s: float, partial_bytes: int) -> None:
        self._times.took(self._work, answered_s - self._asked_s)
        self._busy_s += answered_s - waits_s
        self._layers += 1
        self._counters.query_bytes += partial_bytes

    def _send(self, header: AttendPlan | Attend, tensor: Tensor | memoryview) -> None:
        if self.broken:
            self._fail(LinkClosed(self._creditor_id, "the link failed before"))
            return
        body = tensor if isinstance(tensor, memoryview) else body_of(tensor)
        try:
            self._link.send(header, body, timeout_s=self._patience_s)
        except (LinkError, WireError) as error:
            self._fail(error)
        else:
            self._counters.query_bytes += body.nbytes

    def _expected(self, layer: int, header: DataMessage) -> Partials:
        """The header of the partials that were to come. Raises LinkClosed when it is another one."""
        step_id, num_entries = self._plan.step_id, len(self._plan.entries)
        match header:
            case Partials(stale=stale, out_dtype=out_dtype) if header.step_id == step_id and header.layer == layer:
                if out_dtype not in ("float32", self._plan.out_dtype):
                    problem = f"sent partials in {out_dtype} for a plan that wants {self._plan.out_dtype}"
                elif all(0 <= entry < num_entries for entry in stale):
                    return header
                else:
                    problem = f"named entries {stale} of {num_entries}"
            case Denied(field=field, expected=expected, got=got):
                problem = f"denied: {field} should be {expected}, was {got}"
            case _:
                problem = f"sent {clipped(repr(header))} instead of the partials of step {step_id}, layer {layer}"
        raise LinkClosed(self._creditor_id, problem)

    def _served(self) -> PlanServed:
        """The creditor's word about the plan. Raises LinkError, WireError."""
        header, _body = self._link.recv(self._patience_s)
        num_entries = len(self._plan.entries)
        match header:
            case PlanServed(step_id=self._plan.step_id, stale=stale) if all(entry < num_entries for entry in stale):
                return header
        problem = f"sent {clipped(repr(header))} instead of its word on the {num_entries} entries of the plan"
        raise LinkClosed(self._creditor_id, problem)

    def _fail(self, error: LinkError | WireError) -> None:
        if not self.broken:
            structlog.get_logger().warning("a creditor failed", peer=self._creditor_id, why=str(error))
            self.broken = True
            if self._posting is not None:
                self._posting.halt()
            if isinstance(error, LinkTimeout):
                self._on_silent()
        for lost in self._lost:
            lost.add(self._creditor_id)


def _partial_bytes(rows: int, heads: int, dim: int, out_dtype: OutDtype) -> int:
    """Of a frame's body: out, and float32 lse."""
    return rows * heads * (dim * OUT_DTYPES[out_dtype].itemsize + 4)
