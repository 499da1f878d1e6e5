"""Records what the controllers of a simulated cluster decide, as processes do with `--trace-file`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest

from distkv.config import AdviceSettings, MembershipSettings
from distkv.control import commands as c
from distkv.control.cluster.gmanager import GManager
from distkv.control.recording import records
from distkv.control.recording.masking import Masking, masked_settings
from distkv.control.request.answer.output import MakeDecoder
from distkv.control.rmanager.state import MakePool, RManagerSettings
from distkv.control.rmanager.state_machine import RManager
from distkv.sim.machines import gmanagers, node
from distkv.wire.messages.common import Member


class Letters:
    """A decoder whose every token is a letter; one in three is held back until the next."""

    def __init__(self, skip_special_tokens: bool, after: Sequence[int]) -> None:
        self._held = ""

    def push(self, token_ids: Sequence[int]) -> str:
        text = self._held + "".join(chr(ord("a") + one % 26) for one in token_ids)
        self._held = text[-1:] if token_ids[-1] % 3 == 0 else ""
        return text[: len(text) - len(self._held)]

    def finish(self) -> str:
        text, self._held = self._held, ""
        return text


@contextmanager
def recording() -> Iterator[dict[str, list[bytes]]]:
    """The lines of every process that begins within, by name."""
    files: dict[str, list[bytes]] = {}

    def hidden(route: bytes) -> bytes:
        return b"hidden " + route

    def put(file: str, masking: Masking, event: records.Happened, now: float, commands: Any) -> None:
        done, name = records.encoded_commands(masking.commands(commands)), file.split()[0]
        files[file].append(records.encoded(records.Decided(now, name, masking.event(event, commands), done)))

    class Recorded(RManager):
        def __init__(
            self, settings: RManagerSettings, make_decoder: MakeDecoder, entropy: Random, make_pool: MakePool
        ) -> None:
            seed = entropy.getrandbits(64)
            super().__init__(settings, Letters, Random(seed), make_pool)
            self.masking = Masking(settings.vocab_size, hidden)
            self.name = settings.instance_id
            began = records.RManagerBegan(masked_settings(settings), seed, "0")
            files.setdefault(self.name, []).append(records.encoded(began))

        def handle(self, event: c.Event, now: float) -> list[c.Command]:
            commands = super().handle(event, now)
            put(self.name, self.masking, event, now, commands)
            return commands

        def introduce(self, member: Member, compat: str) -> list[c.Command]:
            commands = super().introduce(member, compat)
            put(self.name, self.masking, records.Introduced(member, compat), 0.0, commands)
            return commands

    class RecordedGManager(GManager):
        def __init__(self, settings: MembershipSettings, policy: AdviceSettings, incarnation: int) -> None:
            super().__init__(settings, policy, incarnation)
            self.name = f"gmanager {incarnation // 1000}"
            self.masking = Masking(0, hidden)
            began = records.GManagerBegan(settings, policy, incarnation, "0")
            files.setdefault(self.name, []).append(records.encoded(began))

        def handle(self, event: c.GManagerRequested | c.Tick, now: float) -> list[c.GManagerCommand]:
            commands = super().handle(event, now)
            put(self.name, self.masking, event, now, commands)
            return commands

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node, "RManager", Recorded)
        patch.setattr(gmanagers, "GManager", RecordedGManager)
        yield files
