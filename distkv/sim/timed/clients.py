"""The clients of a simulated cluster, as one: each request is located, submitted, and sent elsewhere as
`client.dispatch` does it; what comes of it is noted with its time."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from distkv.control import commands as c
from distkv.sim.machines.processes import client_route
from distkv.sim.outcome import DEADLINE, Outcome
from distkv.sim.timed.agenda import Action, Agenda
from distkv.sim.token_times import SharedTimes, Times, TokenTimes
from distkv.sim.trace import TraceRequest
from distkv.token_ids import pack
from distkv.types import SamplingParams
from distkv.wire.messages import to_gmanager as tg
from distkv.wire.messages import to_rmanager as tr
from distkv.wire.messages.envelope import ToClient
from distkv.wire.messages.to_client import Located, RequestEnded, TokenChunk

CLIENT = "clients"
KEEP_ALIVE_S = 1.0
MAX_DISPATCHES = 4
MAX_MOVES = 3
AT_ONCE_S = 1.0
"""As in `client.dispatch`."""


class Cluster(Protocol):
    """What clients see of the processes."""

    def ask_gmanager(self, request: c.GManagerRequested) -> bool:
        """Send a gManager something; false if there is none."""
        ...

    def submit(self, name: str, tokenized: c.Tokenized) -> bool:
        """Send an instance a request; false if it is not there."""
        ...

    def tell(self, name: str, event: c.ClientRequested) -> None:
        """Send an instance something of a client."""
        ...

    def is_ready(self, name: str) -> bool:
        """Whether an instance is there and takes requests."""
        ...

    def settle(self, name: str) -> None:
        """Have all tokens that an instance, if it is there, has sent by now."""
        ...

    def ready(self) -> Iterable[str]:
        """All that do."""
        ...


@dataclass(slots=True, eq=False)
class Sent:
    """A request on its way. name: by which it is known now. at: the instance where it is; empty while none is known.
    sent_s: when it was sent there, begun_s: when anywhere at first. excluded: instances that failed it. times_s: those
    of its outcome. is_over: whether nothing more becomes of it."""

    outcome: Outcome
    times_s: TokenTimes
    name: str
    at: str = ""
    sent_s: float = 0.0
    begun_s: float | None = None
    moves: int = 0
    go_to: str = ""
    excluded: tuple[str, ...] = ()
    failure: str = "no instance is ready to serve the request"
    tries: int = 0
    is_over: bool = False


class Batch:
    """Requests, by these names, that get tokens together. A request that is over leaves by itself.

    times_s: of these tokens.
    """

    def __init__(self, names: tuple[str, ...], waiting: Iterable[Sent]) -> None:
        self.names = names
        self.times_s = SharedTimes()
        self._sent = list(waiting)
        for sent in self._sent:
            sent.times_s.join(self.times_s)

    def break_up(self) -> None:
        """They get no more together."""
        for sent in self._sent:
            sent.times_s.leave(self.times_s)


class Clients:
    """message_s: how long what is sent is on its way. deadline_s: after which a request is given up; None is never.

    outcomes: of all requests that have arrived, in that order.
    """

    def __init__(self, agenda: Agenda, cluster: Cluster, message_s: float, deadline_s: float | None) -> None:
        self._agenda = agenda
        self._cluster = cluster
        self._message_s = message_s
        self._deadline_s = deadline_s
        self._sent: dict[str, Sent] = {}
        self._at: dict[str, dict[str, None]] = {}
        self._batches: dict[str, Batch] = {}
        self._prompts: array[int] = array("i")
        self.outcomes: list[Outcome] = []
        self._open: dict[Sent, None] = {}
        self._num_to_come = 0

    @property
    def num_open(self) -> int:
        """Requests that have not ended, those that have not arrived yet included."""
        return self._num_to_come + len(self._open)

    def play(self, trace: Sequence[TraceRequest], begin_s: float) -> None:
        """Have these requests arrive, the time of the first counted from `begin_s`; they are in order."""
        self._num_to_come += len(trace)
        todo = iter(trace)

        def wait_for_next() -> None:
            if (request := next(todo, None)) is not None:
                self._agenda.at(begin_s + request.arrival_s, lambda: arrive(request))

        def arrive(request: TraceRequest) -> None:
            self._arrive(request, begin_s + request.arrival_s)
            wait_for_next()

        wait_for_next()
        self._agenda.at(begin_s, self._keep_alive)

    def receive_tokens(self, source: str, names: tuple[str, ...], times: Times) -> None:
        """An instance sent each of these requests a token at each of these times, and nothing else meanwhile."""
        batch = self._batches.get(source)
        if batch is None or batch.names != names:
            if batch is not None:
                batch.break_up()
            batch = self._batches[source] = Batch(names, filter(None, map(self._waiting_for, names)))
        batch.times_s.add(times)

    def receive(self, body: ToClient) -> None:
        """An instance or a gManager answers; it is on its way from now on."""
        match body:
            case TokenChunk():
                if (sent := self._waiting_for(body.request_id)) is not None:
                    self._on_chunk(sent, body)
            case Located():
                if (sent := self._waiting_for(body.request_id)) is not None:
                    self._later(sent, partial(self._on_located, sent, body))
            case RequestEnded():
                if (sent := self._waiting_for(body.request_id)) is not None:
                    self._forget(sent)
                    self._later(sent, partial(self._on_ended, sent, body))
            case _:
                raise AssertionError(f"no request is answered by {body}")

    def _waiting_for(self, name: str) -> Sent | None:
        """The open request that is known by this name."""
        sent = self._sent.get(name)
        return sent if sent is not None and not sent.is_over else None

    def lost(self, name: str) -> None:
        """The connections to an instance broke."""
        self._batches.pop(name, None)
        for request_id in list(self._at.pop(name, ())):
            sent = self._sent.get(request_id)
            if sent is not None and sent.at == name and not sent.is_over:
                self._forget(sent)
                if sent.times_s:
                    self._end(sent, "its instance was lost")
                else:
                    self._exclude(sent, f"instance {name} was lost")

    def gmanager_lost(self) -> None:
        """The connection to the gManager broke: who waits for its answer chooses an instance itself."""
        for sent in list(self._open):
            if not sent.at:
                self._choose(sent)

    def stop(self, why: str) -> None:
        """Whatever is open fails."""
        for sent in list(self._open):
            self._end(sent, why)

    # --- a request

    def _arrive(self, request: TraceRequest, due_s: float) -> None:
        times_s = TokenTimes(self._message_s - due_s)
        outcome = Outcome(request, times_s)
        sent = Sent(outcome, times_s, f"r{len(self.outcomes)}")
        self.outcomes.append(outcome)
        self._open[sent] = None
        self._num_to_come -= 1
        if self._deadline_s is not None:
            self._agenda.at(due_s + self._deadline_s, lambda: self._give_up(sent))
        self._find(sent)

    def _find(self, sent: Sent) -> None:
        """Send it to some instance: the one that it was told to go to, else as a gManager says."""
        if len(sent.excluded) == MAX_DISPATCHES:
            self._end(sent, sent.failure)
            return
        if sent.tries:
            sent.name = f"{sent.name.partition('~')[0]}~{sent.tries}"
        sent.tries += 1
        self._sent[sent.name] = sent
        sent.at = ""
        go_to, sent.go_to = sent.go_to, ""
        if go_to and go_to not in sent.excluded and self._cluster.is_ready(go_to):
            self._submit(sent, go_to)
            return
        request = sent.outcome.request
        locate = tg.Locate(
            request_id=sent.name,
            num_tokens=request.num_tokens,
            prompt_tokens=request.prompt_tokens,
            exclude=sent.excluded,
        )
        if not self._cluster.ask_gmanager(c.GManagerRequested(CLIENT, client_route(CLIENT), locate)):
            self._choose(sent)

    def _choose(self, sent: Sent, why: str = "") -> None:
        """As `client.directory` does where no gManager answers, or names none, and says why: the ready instance with
        the fewest requests of this client."""
        found = [name for name in self._cluster.ready() if name not in sent.excluded]
        if found:
            self._submit(sent, min(found, key=lambda name: len(self._at.get(name, ()))))
        else:
            self._forget(sent)
            self._end(sent, why or sent.failure)

    def _on_located(self, sent: Sent, located: Located) -> None:
        if sent.at:
            return  # that gManager was lost meanwhile
        if located.instance_id and located.instance_id not in sent.excluded:
            self._submit(sent, located.instance_id)
        else:
            self._choose(sent, located.reason)

    def _submit(self, sent: Sent, instance_id: str) -> None:
        request = sent.outcome.request
        if len(self._prompts) < request.prompt_tokens:
            self._prompts = array("i", bytes(self._prompts.itemsize * request.prompt_tokens))
        ids = self._prompts[: request.prompt_tokens]
        params = SamplingParams(max_tokens=request.output_tokens, temperature=0.0, ignore_eos=True)
        sent.at, sent.sent_s = instance_id, self._agenda.now()
        sent.begun_s = sent.sent_s if sent.begun_s is None else sent.begun_s
        submit = tr.Submit(
            request_id=sent.name,
            params=params,
            prompt_token_ids=memoryview(pack(ids)),
            can_move=sent.moves < MAX_MOVES,
            waited_s=sent.sent_s - sent.begun_s,
        )
        self._at.setdefault(instance_id, {})[sent.name] = None
        if not self._cluster.submit(instance_id, c.Tokenized(submit, ids, client_route(CLIENT))):
            self._forget(sent)
            self._exclude(sent, f"instance {instance_id} is gone")

    def _on_chunk(self, sent: Sent, chunk: TokenChunk) -> None:
        for _ in chunk.token_ids:
            sent.times_s.append(self._agenda.now())
        if chunk.finish_reason is not None:
            self._forget(sent)
            self._end(sent, "")

    def _on_ended(self, sent: Sent, ended: RequestEnded) -> None:
        if ended.kind == "refused" and not sent.moves:
            self._end(sent, ended.reason or "it needs more memory than there is")
        elif ended.kind == "refused":
            self._exclude(sent, ended.reason)
        elif ended.go_to and not sent.times_s:
            sent.go_to = ended.go_to
            sent.moves += 1
            self._find(sent)
        elif (
            sent.times_s
            or not ended.retryable
            or (self._agenda.now() - sent.sent_s >= AT_ONCE_S and self._cluster.is_ready(sent.at))
        ):
            self._end(sent, ended.reason)
        else:
            self._exclude(sent, ended.reason)

    def _exclude(self, sent: Sent, why: str) -> None:
        sent.excluded += (sent.at,)
        sent.failure = why
        self._find(sent)

    def _give_up(self, sent: Sent) -> None:
        if sent.is_over:
            return
        self._cluster.settle(sent.at)
        if sent.at and sent.name in self._sent:
            cancel = c.ClientRequested(client_route(CLIENT), tr.Cancel(request_id=sent.name))
            self._cluster.tell(sent.at, cancel)
        self._forget(sent)
        self._end(sent, DEADLINE)

    def _end(self, sent: Sent, failed: str) -> None:
        sent.outcome.failed = failed
        sent.is_over = True
        sent.times_s.leave()
        del self._open[sent]

    def _forget(self, sent: Sent) -> None:
        """Nothing more comes for it by the name that it has now."""
        self._sent.pop(sent.name, None)
        sent.times_s.leave()
        self._at.get(sent.at, {}).pop(sent.name, None)

    def _later(self, sent: Sent, action: Action) -> None:
        """When it has come, unless the request is over by then."""
        self._agenda.after(self._message_s, lambda: None if sent.is_over else action())

    def _keep_alive(self) -> None:
        """Instances hear that the client of their requests is there."""
        for name, live in list(self._at.items()):
            if live:
                self._cluster.tell(name, c.ClientRequested(client_route(CLIENT), tr.KeepAlive()))
        if self.num_open:
            self._agenda.after(KEEP_ALIVE_S, self._keep_alive)
