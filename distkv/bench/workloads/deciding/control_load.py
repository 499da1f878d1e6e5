"""One rManager with a running batch, waiting requests and peers, and events to give it; its worker answers at once."""

from __future__ import annotations

import time
from array import array
from collections import deque
from random import Random

from distkv.control import commands as c
from distkv.control.request.answer.output import NoText
from distkv.control.rmanager.state import RManagerSettings
from distkv.control.rmanager.state_machine import RManager
from distkv.token_ids import pack
from distkv.types import SamplingParams
from distkv.wire.messages import to_rmanager as tr
from distkv.wire.messages.common import Member
from distkv.wire.messages.from_worker import SeqResult, StepResult
from distkv.wire.messages.to_worker import SeqStep, Step

BLOCK_TOKENS = 512
PROMPT = array("i", range(1, 17))
LONG_PROMPT = array("i", (index % 900 for index in range(4 * BLOCK_TOKENS)))
CLIENT = b"client"


class ControlLoad:
    """waiting: requests behind the batch. fits: whether they only wait for a place in it; otherwise for memory: one
    rBlock is free, and each needs two at least. members: peers, which lend nothing now. took_us: what the last event
    cost this thread, not counting when others had the core."""

    def __init__(self, waiting: int, *, members: int = 0, batch: int = 64, max_tokens: int = 4096, fits: bool) -> None:
        self.took_us = 0.0
        self._now = 100.0
        self._number = 0
        self._random = Random(1)
        self._max_tokens = max_tokens
        self._fits = fits
        self._steps: deque[Step] = deque()
        settings = RManagerSettings(
            instance_id="me",
            incarnation=1,
            block_tokens=BLOCK_TOKENS,
            num_blocks=2 * batch + 1,
            vocab_size=1000,
            max_waiting=10**6,
            max_num_seqs=batch if fits else 2 * batch,
            lending_cap_blocks=0,
        )
        self.rm = RManager(settings, NoText, Random(1))
        peers = tuple(Member(instance_id=f"p{i}", incarnation=1, address=f"tcp://10.0.0.1:{i}") for i in range(members))
        self._give(c.FromGManager(tr.Members(version=1, members=peers)))
        for _ in range(batch):
            self.submit(PROMPT)
        for _ in range(4):
            self.answer_step()
        self.waiting = [self.submit_behind() for _ in range(waiting)]

    # --- events

    def submit_behind(self) -> str:
        """A client sends one more request that waits; returns its id."""
        self.submit(PROMPT if self._fits else LONG_PROMPT[: self._random.randint(BLOCK_TOKENS + 1, len(LONG_PROMPT))])
        return f"r{self._number}"

    def submit(self, prompt: array[int]) -> None:
        """A client sends a request."""
        self._number += 1
        params = SamplingParams(max_tokens=self._max_tokens, temperature=0.0, ignore_eos=True)
        name, packed = f"r{self._number}", memoryview(pack(prompt))
        submit = tr.Submit(request_id=name, prompt_token_ids=packed, params=params, timeout_s=3600.0)
        self._give(c.Tokenized(submit, prompt, CLIENT))

    def cancel(self, request_id: str) -> None:
        """Its client does not want it any more."""
        self._give(c.ClientRequested(CLIENT, tr.Cancel(request_id=request_id)))

    def keep_alive(self) -> None:
        """The client says that it is there."""
        self._give(c.ClientRequested(CLIENT, tr.KeepAlive()))

    def heartbeat(self) -> None:
        """It is time for one; clients are there meanwhile."""
        self._now += self.rm.state.settings.heartbeat_s
        self.keep_alive()
        self._give(c.Tick())

    def drain(self) -> None:
        """The instance is stopped."""
        self._give(c.DrainRequested(60.0))

    def answer_step(self) -> None:
        """The oldest step in flight is done: its tokens are committed and the next step is planned."""
        step = self._steps.popleft()
        results = tuple(_result(part) for part in step.seqs)
        self._give(c.FromWorker(StepResult(step_id=step.step_id, results=results, compute_s=0.02)))

    def _give(self, event: c.Event) -> None:
        self._now += 0.0001
        started_ns = time.thread_time_ns()
        commands = self.rm.handle(event, self._now)
        self.took_us = (time.thread_time_ns() - started_ns) / 1e3
        for command in commands:
            if isinstance(command, c.TellWorker) and isinstance(command.body, Step):
                self._steps.append(command.body)


def _result(part: SeqStep) -> SeqResult:
    token = None if part.sample is None else part.end % 1000
    return SeqResult(request_id=part.request_id, attempt=part.attempt, status="ok", token=token)
