"""A recording of `--trace-file`, decided once more: the same events, at the same times, in the same controllers.

    for replayed in replay(lines, "i0.jsonl"): ...

`sim/` holds no policy, so what the processes of a cluster decided comes out again, command by command, or the code that
decides is another one by now.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from random import Random

import msgspec

from distkv.control import commands as c
from distkv.control.cluster.gmanager import GManager
from distkv.control.recording.masking import Masking
from distkv.control.recording.records import (
    FORMAT,
    Decided,
    GManagerBegan,
    Introduced,
    RecordedEvent,
    RManagerBegan,
    Tokenized,
    decoded,
    encoded_commands,
)
from distkv.control.request.answer.output import NoText
from distkv.control.rmanager.state_machine import RManager
from distkv.errors import ConfigError
from distkv.token_ids import ID_BYTES

NOTHING = "nothing"


class Difference(msgspec.Struct, frozen=True):
    """The first command that is another one than was recorded, or is missing, in JSON; and the event that it came of.
    line: of the recording, from 1."""

    line: int
    t_s: float
    event: str
    recorded: str
    replayed: str


class Replayed(msgspec.Struct):
    """One process. kind: `rmanager` or `gmanager`. begin_s, end_s: of its first and last event, on its host's clock.
    raised: what its last event ended with, as it did when it was recorded. difference: the first; nothing behind it was
    looked at, for the state is another one from there on."""

    name: str
    kind: str
    version: str
    num_events: int = 0
    num_commands: int = 0
    begin_s: float = 0.0
    end_s: float = 0.0
    raised: str = ""
    difference: Difference | None = None


def replay(lines: Iterable[bytes], name: str) -> list[Replayed]:
    """Every process of a recording, in the order in which they began. A line that its process did not live to finish
    is left out. name: of the recording. Raises ConfigError naming the line that is no record, or of another format."""
    processes: list[_Process] = []
    current: dict[str, _Process] = {}
    unfinished: ConfigError | None = None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{name}:{number}"
        try:
            record = decoded(line)
        except msgspec.DecodeError as error:
            if unfinished is not None or isinstance(error, msgspec.ValidationError):
                raise unfinished or _wrong(f"{where}: {error}") from None
            unfinished = _wrong(f"{where}: {error}")
            continue
        if isinstance(record, Decided):
            if unfinished is not None:
                raise unfinished
            if record.name not in current:
                raise _wrong(f"{where}: {record.name} has not begun")
            current[record.name].take(record, line, number)
            continue
        unfinished = None
        if record.format != FORMAT:
            raise _wrong(f"{where}: expected format {FORMAT}, got {record.format}")
        current[record.name] = _Process(record)
        processes.append(current[record.name])
    if not processes:
        raise _wrong(f"{name}: nothing is recorded")
    return [one.replayed for one in processes]


class _Process:
    """The controller of one process, and how far it is."""

    def __init__(self, began: RManagerBegan | GManagerBegan) -> None:
        self._decide: Callable[[RecordedEvent, float], Sequence[c.Command | c.GManagerCommand]]
        if isinstance(began, RManagerBegan):
            self.replayed = Replayed(began.name, "rmanager", began.version)
            self._masking = Masking(began.settings.vocab_size, _as_recorded)
            self._decide = _of_rmanager(RManager(began.settings, NoText, Random(began.seed)))
        else:
            self.replayed = Replayed(began.name, "gmanager", began.version)
            self._masking = Masking(0, _as_recorded)
            self._decide = _of_gmanager(GManager(began.membership, began.advice, incarnation=began.incarnation))

    def take(self, record: Decided, line: bytes, number: int) -> None:
        """Decide once more, and compare."""
        replayed = self.replayed
        if replayed.difference is not None or replayed.raised:
            return
        try:
            commands = self._masking.commands(self._decide(record.event, record.t_s))
        except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
            found = encoded_commands(None)
            replayed.raised = f"{type(error).__name__}: {error}"
        else:
            found = encoded_commands(commands)
            replayed.num_commands += len(commands)
        replayed.begin_s = replayed.begin_s if replayed.num_events else record.t_s
        replayed.end_s = record.t_s
        replayed.num_events += 1
        if bytes(found) != bytes(record.commands):
            recorded, other = _first_different(record.commands, found)
            event = bytes(msgspec.json.decode(line, type=dict[str, msgspec.Raw])["event"]).decode()
            replayed.difference = Difference(number, record.t_s, event, recorded, replayed.raised or other)


def _of_rmanager(rm: RManager) -> Callable[[RecordedEvent, float], Sequence[c.Command]]:
    def decide(event: RecordedEvent, now: float) -> Sequence[c.Command]:
        if isinstance(event, Introduced):
            return rm.introduce(event.member, event.compat)
        if isinstance(event, c.GManagerRequested):
            raise _wrong(f"{type(event).__name__} is no event of an rManager")
        if isinstance(event, Tokenized):
            prompt = array("i", bytes(ID_BYTES * event.num_tokens))
            tokenized = c.Tokenized(event.submit, prompt, event.route, event.bad_words, event.grammar_id)
            return rm.handle(tokenized, now)
        return rm.handle(event, now)

    return decide


def _of_gmanager(gmanager: GManager) -> Callable[[RecordedEvent, float], Sequence[c.GManagerCommand]]:
    def decide(event: RecordedEvent, now: float) -> Sequence[c.GManagerCommand]:
        if not isinstance(event, c.GManagerRequested | c.Tick):
            raise _wrong(f"{type(event).__name__} is no event of a gManager")
        return gmanager.handle(event, now)

    return decide


def _as_recorded(route: bytes) -> bytes:
    """Routes of a recording are hidden already."""
    return route


def _first_different(recorded: msgspec.Raw, replayed: msgspec.Raw) -> tuple[str, str]:
    """Where two lists of commands differ first."""
    one, other = (msgspec.json.decode(raw, type=list[msgspec.Raw] | None) or [] for raw in (recorded, replayed))
    pairs = zip_longest(map(bytes, one), map(bytes, other), fillvalue=NOTHING.encode())
    before, now = next((pair for pair in pairs if pair[0] != pair[1]), (bytes(recorded), bytes(replayed)))
    return before.decode(), now.decode()


def _wrong(problem: str) -> ConfigError:
    return ConfigError("trace_file", problem, "give what --trace-file wrote")
