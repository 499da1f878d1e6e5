"""One instance's requests, without a network: what tests of their life hand in and look at."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Seq
from random import Random

from distkv.clock import ManualClock
from distkv.control.commands import Answer, Tokenized
from distkv.control.loan.debtor.debts import DebtBook
from distkv.control.request.answer.output import MakeDecoder, NoText
from distkv.control.request.lifecycle import RequestLifecycle
from distkv.control.request.sequence import Sequence
from distkv.control.schedule.admission.admission import Admission
from distkv.control.schedule.admission.demand import Demand
from distkv.control.schedule.holdings import Holdings
from distkv.control.schedule.making_room import MakingRoom
from distkv.types import SamplingParams
from distkv.wire.messages.from_worker import SeqResult, StepResult
from distkv.wire.messages.to_client import RequestEnded
from distkv.wire.messages.to_rmanager import Submit
from distkv.wire.messages.to_worker import Step
from tests.control.parts import make_state
from tests.token_ids import prompt_fields

CLIENT = b"client"


class Letters:
    """A decoder of tokens that are letters, capitals being special."""

    def __init__(self, skip_special_tokens: bool, after: Seq[int]) -> None:
        self.skip_special_tokens, self.after = skip_special_tokens, tuple(after)

    def push(self, token_ids: Seq[int]) -> str:
        text = "".join(map(chr, token_ids))
        return "".join(letter for letter in text if not (self.skip_special_tokens and letter.isupper()))

    def finish(self) -> str:
        return ""


class Serving:
    """One instance's requests, without a network: steps are planned and answered by hand."""

    def __init__(self, num_blocks: int = 16, decoder: MakeDecoder = NoText, **settings: object) -> None:
        self.clock = ManualClock(10.0)
        self.state = make_state(num_blocks, (), **settings)
        self.state.members.listed_from = 0.0
        debts = DebtBook(self.state)
        holdings = Holdings(self.state, debts, Random(1))
        self.demand = Demand(self.state, holdings)
        making_room = MakingRoom(self.state, holdings, Random(1))
        self.admission = Admission(self.state, debts, holdings, self.demand, making_room)
        self.lost: list[tuple[Sequence, tuple[str, ...]]] = []
        self.requests = RequestLifecycle(
            self.state,
            debts,
            decoder,
            Random(1),
            lambda seq, creditors: self.lost.append((seq, creditors)),
        )

    def submit(
        self, name: str = "r", prompt: tuple[int, ...] = (1, 2, 3), timeout_s: float | None = None, **params: object
    ):
        sampling = SamplingParams(**{"max_tokens": 4, "temperature": 0.0} | params)  # type: ignore[arg-type]
        submit = Submit(request_id=name, params=sampling, timeout_s=timeout_s, **prompt_fields(prompt))
        self.requests.submit(Tokenized(submit, array("i", prompt), CLIENT), self.clock.now())

    def step(self) -> Step:
        self.admission.admit(self.clock.now())
        step = self.state.scheduler.plan(self.state.running(), self.clock.now())
        assert step is not None
        return step

    def answer(self, step: Step, *results: SeqResult) -> None:
        self.requests.on_result(StepResult(step_id=step.step_id, results=results), self.clock.now())
        self.state.validate()

    def answers(self) -> list[object]:
        found = [command.body for command in self.state.commands if isinstance(command, Answer)]
        self.state.commands.clear()
        return found

    def refusal(self) -> RequestEnded:
        (ended,) = self.answers()
        assert isinstance(ended, RequestEnded)
        return ended


def ok(token: int | None, attempt: int = 0, name: str = "r", **fields: object) -> SeqResult:
    return SeqResult(request_id=name, attempt=attempt, status="ok", token=token, **fields)  # type: ignore[arg-type]
