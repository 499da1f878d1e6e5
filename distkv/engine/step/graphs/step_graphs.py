"""All graphs of steps over a pool, on a device that captures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import structlog

from distkv.engine.attention.creditor_link import Peers
from distkv.engine.device.device import Device
from distkv.engine.device.pool import KvPool
from distkv.engine.model.decoder import Model
from distkv.engine.step.batch import PlannedSeq
from distkv.engine.step.graphs.decode import DecodeGraphs, Decodes
from distkv.engine.step.graphs.exchanges import ExchangeGraphs
from distkv.engine.step.graphs.mail_steps import MailSteps


class StepGraphs:
    """For one thread and one stream. whole: steps with nothing elsewhere. exchanges: those with keys at creditors,
    whole or in pieces."""

    def __init__(self, model: Model, pool: KvPool, peers: Peers) -> None:
        """Of a device whose backend has a `static_decode`."""
        self.whole = DecodeGraphs(model, pool)
        self.exchanges = ExchangeGraphs(model, pool, self.whole)
        self._mail = MailSteps(model, pool, peers, self.whole, self.exchanges)

    @classmethod
    def of(cls, model: Model, pool: KvPool, peers: Peers) -> StepGraphs | None:
        """None, with a warning where one could expect them, if there are none on the device or with its backend."""
        device = model.device
        if device.is_async and device.backend.static_keys:
            return cls(model, pool, peers)
        if device.is_async:
            structlog.get_logger().warning("no CUDA graphs", of="all steps", reason=device.backend.why_not_static)
        return None

    @staticmethod
    def why_none(device: Device) -> str:
        """In words, for benchmarks."""
        return f"none: {device.backend.why_not_static}" if device.is_async else "none on this device"

    @property
    def state(self) -> str:
        """What became of them, in words: for benchmarks."""
        problem = self.whole.problem or self.exchanges.problem
        return f"given up: {problem}" if problem else "captured"

    def decodes(self, step_id: int, planned: Sequence[PlannedSeq], *, is_cut: bool) -> Decodes | None:
        """A step that is one graph; None if there is none for it. is_cut: steps with keys at creditors are to be."""
        whole = self.whole.decodes(planned)
        return self._mail.decodes(step_id, planned) if whole is None and not is_cut else whole

    def capture_all(self) -> None:
        """All that steps can need, before the first of them."""
        self.whole.capture_all()
        self.exchanges.capture_all()

    def forget(self, request_ids: Iterable[str]) -> None:
        """Drop what is kept of these requests."""
        self.whole.forget(request_ids)
