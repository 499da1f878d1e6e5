"""A creditor's side of one link where the layers of a plan are served by one native call."""

from __future__ import annotations

from distkv.engine.attention.creditor_link import FrameStream
from distkv.engine.attention.serving import AttendServer, Direct, ServedPlan
from distkv.errors import LinkClosed, LinkTimeout
from distkv.kernels.exchange import FrameStatus
from distkv.wire.messages.data import Attend, Partials

SEND_S = 10.0
"""As long a peer may take no partials."""


class DirectServing:
    """Of one link, by the thread that serves it. It takes frames that are queries of the plan's next layer; any other
    is left to be received, and so is all that follows, up to the next plan."""

    def __init__(self, server: AttendServer, stream: FrameStream, peer: str) -> None:
        self._server, self._stream, self._peer = server, stream, peer
        self._direct: Direct | None = None
        self._served: ServedPlan | None = None

    @property
    def is_ready(self) -> bool:
        """Whether `run` has layers to serve."""
        return self._served is not None

    def begin(self, served: ServedPlan) -> None:
        """A plan that was accepted. Raises MalformedMessage. Plans with the same entries, as of decodes from step to
        step, share what it takes to serve them."""
        plan, self._served = served.plan, None
        if self._direct is not None and not self._direct.fits(plan):
            self.end()
        if self._direct is None:
            self._direct = self._server.stand(served)
        if self._direct is None:
            return
        query_bytes, partial_bytes = self._direct.serving.query_bytes, self._direct.serving.partial_bytes
        layers, beginning = range(self._server.num_layers), self._stream.beginning
        self._direct.serving.begin(
            served.positions,
            [beginning(Attend(step_id=plan.step_id, layer=layer), query_bytes) for layer in layers],
            [
                beginning(Partials(step_id=plan.step_id, layer=layer, out_dtype=plan.out_dtype), partial_bytes)
                for layer in layers
            ],
        )
        self._served = served

    def run(self, idle_s: float) -> bool:
        """Serve what comes. False when nothing came for idle_s; True when a frame is to be received, or the last layer
        was served. Raises LinkError, MemoryError."""
        served, direct = self._served, self._direct
        assert served is not None and direct is not None
        self._stream.enter()
        try:
            done = direct.serving.run(self._stream.fileno(), self._stream.take(), idle_s, SEND_S)
        finally:
            self._stream.leave()
        self._server.count(served, done.times)
        if done.taken:
            self._stream.unread(done.taken)
        match done.status:
            case FrameStatus.LATE:
                return False
            case FrameStatus.ENDED:
                raise LinkClosed(self._peer, "it ended")
            case FrameStatus.FAILED:
                raise LinkClosed(self._peer, "its connection failed")
            case FrameStatus.STUCK:
                raise LinkTimeout(self._peer, SEND_S)
            case FrameStatus.NO_MEMORY:
                raise MemoryError("micro-attention found no memory for its partials")
            case FrameStatus.SHUT:
                self.end()
        self._served = None
        return True

    def end(self) -> None:
        """What it serves from may be revoked from now on without asking."""
        direct, self._direct, self._served = self._direct, None, None
        if direct is not None:
            self._server.leave(direct)
