"""What is recorded of a gManager or an rManager: how it began, then each event with the commands that came of it. One
JSON object per line, from which `distkv.sim.replay` has the same controllers decide once more."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from distkv.config import AdviceSettings, MembershipSettings
from distkv.control import commands as c
from distkv.control.rmanager.state import RManagerSettings
from distkv.wire.messages.common import Member
from distkv.wire.messages.to_rmanager import Submit

FORMAT = 2
"""Of recordings; another one is not read."""


class RManagerBegan(msgspec.Struct, frozen=True, tag_field="record", tag="rmanager"):
    """A process of an instance begins. seed: of its entropy. version: of the package."""

    settings: RManagerSettings
    seed: int
    version: str
    format: int = FORMAT

    @property
    def name(self) -> str:
        """Of whom this is."""
        return self.settings.instance_id


class GManagerBegan(msgspec.Struct, frozen=True, tag_field="record", tag="gmanager"):
    """A process of a gManager begins. version: of the package."""

    membership: MembershipSettings
    advice: AdviceSettings
    incarnation: int
    version: str
    format: int = FORMAT

    @property
    def name(self) -> str:
        """Of whom this is."""
        return "gmanager"


class Introduced(msgspec.Struct, frozen=True, tag=True):
    """An rManager presented itself, by `RManager.introduce`."""

    member: Member
    compat: str


class Tokenized(msgspec.Struct, frozen=True, tag=True):
    """The event of that name, of which only the length of the prompt is kept."""

    submit: Submit
    num_tokens: int
    route: bytes
    bad_words: tuple[tuple[int, ...], ...]
    grammar_id: int | None


Happened = c.Event | c.GManagerRequested | Introduced
"""An event of an rManager or a gManager."""
RecordedEvent = (
    Introduced
    | c.FromWorker
    | c.FromGManager
    | c.PeerAnswered
    | c.PeerRequested
    | c.ClientRequested
    | c.GManagerRequested
    | Tokenized
    | c.Tick
    | c.PeerDisconnected
    | c.ClientGone
    | c.DrainRequested
)
"""The same without what users wrote and got, see `Masking`."""


class Decided(msgspec.Struct, frozen=True, tag_field="record", tag="event"):
    """An event was handled at `t_s`, on the host's monotonic clock. commands: encoded, as masked; None: it raised."""

    t_s: float
    name: str
    event: RecordedEvent
    commands: msgspec.Raw


Record = RManagerBegan | GManagerBegan | Decided


_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


def encoded(record: Record) -> bytes:
    """One line, without its end."""
    return _encoder.encode(record)


def encoded_commands(commands: Sequence[c.Command | c.GManagerCommand] | None) -> msgspec.Raw:
    """Of commands as masked. The same commands give the same bytes."""
    return msgspec.Raw(_encoder.encode(commands))


def decoded(line: bytes) -> Record:
    """What `encoded` made. Raises msgspec.DecodeError, of which ValidationError says where it is no such record."""
    return _decoder.decode(line)
