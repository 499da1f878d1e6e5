"""What users wrote and got does not reach a recording, and yet what is left has the same controllers decide the same.

Control looks at prompts by their lengths and at tokens by whether they end an output. So of prompts there are lengths,
of tokens one of two ids, and of whatever only the worker or the client reads nothing. Commands are masked when they are
recorded and when they are compared: `commands(handle(event)) == commands(handle(masked event))`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from distkv.control import commands as c
from distkv.control.recording import masked_messages as masked
from distkv.control.recording.masked_messages import END, TOKEN
from distkv.control.recording.records import Happened, RecordedEvent, Tokenized
from distkv.control.rmanager.state import RManagerSettings
from distkv.wire.messages import from_worker as fw
from distkv.wire.messages import to_client as tc

AnyCommand = c.Command | c.GManagerCommand


def masked_settings(settings: RManagerSettings) -> RManagerSettings:
    """Outputs end with END."""
    return replace(settings, eos_token_ids=frozenset({END}))


class Masking:
    """Of one process. vocab_size: ids from there on are none of the model, and stay. route(route): what stands for a
    route; equal for equal ones, and nobody who reads it can use the connection."""

    def __init__(self, vocab_size: int, route: Callable[[bytes], bytes]) -> None:
        self._vocab_size = vocab_size
        self._route = route

    # --- events

    def event(self, event: Happened, commands: Iterable[AnyCommand] | None) -> RecordedEvent:
        """commands: what came of it, unmasked; they say which outputs ended."""
        match event:
            case c.FromWorker(message=fw.StepResult() as result):
                return c.FromWorker(self._step_result(result, commands or ()))
            case c.FromWorker(message=fw.Checksummed() as message):
                return c.FromWorker(masked.checksummed(message))
            case c.PeerRequested():
                return replace(event, route=self._route(event.route), message=masked.peer_request(event.message))
            case c.ClientRequested() | c.GManagerRequested() | c.ClientGone():
                return replace(event, route=self._route(event.route))
            case c.Tokenized():
                return self._tokenized(event)
            case _:
                return event

    @staticmethod
    def _step_result(message: fw.StepResult, commands: Iterable[AnyCommand]) -> fw.StepResult:
        ended = {
            command.body.request_id
            for command in commands
            if isinstance(command, c.Answer)
            and isinstance(command.body, tc.TokenChunk)
            and command.body.finish_reason == "stop"
        }
        return replace(message, results=tuple(masked.result(one, one.request_id in ended) for one in message.results))

    def _tokenized(self, event: c.Tokenized) -> Tokenized:
        submit = event.submit
        params = replace(
            submit.params,
            stop=(),
            stop_token_ids=(),
            ignore_eos=False,
            logit_bias=dict.fromkeys(self._ids(submit.params.logit_bias), 0.0),
            bad_words=(),
            allowed_token_ids=None
            if submit.params.allowed_token_ids is None
            else self._ids(submit.params.allowed_token_ids),
            structured_output=None,
        )
        return Tokenized(
            replace(submit, prompt="", prompt_token_ids=None, params=params),
            len(event.token_ids),
            self._route(event.route),
            tuple(self._ids(word) for word in event.bad_words),
            event.grammar_id,
        )

    def _ids(self, ids: Iterable[int]) -> tuple[int, ...]:
        return tuple(TOKEN if one < self._vocab_size else one for one in ids)

    # --- commands

    def commands(self, commands: Sequence[AnyCommand]) -> list[AnyCommand]:
        """Those of one event, in order. A chunk with nothing but text is none: when text is held back is its matter."""
        return [kept for command in commands if (kept := self._command(command)) is not None]

    def _command(self, command: AnyCommand) -> AnyCommand | None:
        match command:
            case c.TellWorker():
                return c.TellWorker(masked.to_worker(command.body))
            case c.TellPeer():
                return c.TellPeer(command.instance_id, masked.peer_request(command.body))
            case c.Answer(body=tc.TokenChunk() as chunk) if masked.is_only_text(chunk):
                return None
            case c.Answer():
                return c.Answer(self._route(command.route), masked.answer(command.body))
            case c.Broadcast():
                return c.Broadcast(tuple(map(self._route, command.routes)), command.body)
            case _:
                return command
