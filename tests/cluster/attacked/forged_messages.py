"""Every message of the protocol as a stranger would forge it who knows all that a cluster shows: well-formed, with ids
of what really runs. What to put into a field follows from its name and type, so a new message is forged without being
named here."""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from distkv.structured_output import StructuredOutput
from distkv.types import SamplingParams
from distkv.wire import messages
from distkv.wire.messages import data
from distkv.wire.messages.common import Epoch, Member, Message
from distkv.wire.messages.profile import Profile
from tests.cluster.driving import traced
from tests.token_ids import packed
from tests.wire.golden.values import PROFILE

EPOCHS_TRIED = 8
FORGED_ADDRESS = "tcp://127.0.0.1:9"
PLAIN = {"type": "forged", "reason": "forged", "problem": "forged", "compat": "forged", "kind": "failed"}


def message_types() -> tuple[list[type[Message]], list[type[Message]]]:
    """All messages of the control plane and of tensor links."""
    for module in pkgutil.iter_modules(messages.__path__):
        importlib.import_module(f"{messages.__name__}.{module.name}")
    kinds = sorted(Message.__subclasses__(), key=lambda kind: kind.__name__)
    of_links = [kind for kind in kinds if kind.__module__ == data.__name__]
    return [kind for kind in kinds if kind not in of_links], of_links


def _named(value: Any) -> Iterator[tuple[str, Any]]:
    """What stands under which name, at any depth."""
    if isinstance(value, dict):
        yield from value.items()
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _named(inner)


@dataclass(frozen=True)
class Known:
    """What there is to know about one running request: who runs it, who lends for it, and every id in the traces."""

    request_id: str
    debtor: Member
    creditor: Member
    ids: dict[str, list[Any]]

    @classmethod
    def of(cls, request_id: str, debtor: Member, creditor: Member, traces: list[Path]) -> Known:
        ids: dict[str, list[Any]] = {}
        for line in (line for trace in traces for line in traced(trace)):
            for name, value in _named(json.loads(line)):
                if (name == "seq" or name.endswith("_id")) and value not in ids.setdefault(name, []):
                    ids[name].append(value)
        return cls(request_id, debtor, creditor, ids)

    def newest(self, name: str) -> Any:
        return self.ids[name][-1]

    def forged(self, kind: type[Message]) -> Iterator[Message]:
        """The message with every guess that is worth a try, about each of the two instances."""
        for about in (self.debtor, self.creditor):
            other = self.creditor if about is self.debtor else self.debtor
            for span_id in self.ids["span_id"][-2:]:
                for counter in range(EPOCHS_TRIED):
                    guess = _Guess(self, about, other, span_id, Epoch(self.creditor.incarnation, counter))
                    yield guess.struct(kind)
                    if not _names_an_epoch(kind):
                        break

    def forged_once(self, kind: type[Message]) -> list[Message]:
        """The same, each different message once."""
        seen: dict[bytes, Message] = {}
        for message in self.forged(kind):
            seen.setdefault(msgspec.msgpack.encode(message), message)
        return list(seen.values())


@cache
def _fields(kind: type[Any]) -> tuple[inspect.Field, ...]:
    return inspect.type_info(kind).fields  # type: ignore[union-attr]


@cache
def _names_an_epoch(kind: type[Any]) -> bool:
    return "Epoch" in str(inspect.type_info(kind))


@dataclass(frozen=True)
class _Guess:
    known: Known
    about: Member
    other: Member
    span_id: str
    epoch: Epoch

    def struct(self, kind: type[Any]) -> Any:
        if kind is Epoch:
            return self.epoch
        if kind is Member:
            return msgspec.structs.replace(self.about, address=FORGED_ADDRESS, state="dead")
        if kind is SamplingParams:
            return SamplingParams(max_tokens=2)
        if kind is Profile:
            return PROFILE
        if kind is StructuredOutput:
            return StructuredOutput.regex("forged")
        return kind(**{field.name: self.value(field.name, field.type) for field in _fields(kind)})

    def value(self, name: str, info: inspect.Type) -> Any:
        match name:
            case "request_id" | "req_id":
                return self.known.request_id
            case "span_id":
                return self.span_id
            case "instance_id" | "inst_id" | "debtor_id" | "source_id" | "expects_id":
                return self.about.instance_id
            case "incarnation" | "debtor_incarnation" | "source_incarnation" | "expects_incarnation":
                return self.about.incarnation
            case "prompt":  # its token ids are given
                return ""
            case "lost" | "exclude":
                return (self.other.instance_id,)
            case "address":
                return FORGED_ADDRESS
            case "seq" if isinstance(info, inspect.IntType):
                return 10**9
            case "ttl_s" | "deadline_s":
                return 1.0
            case "pid" | "worker_pid":
                return self.about.pid
            case _ if name in self.known.ids and isinstance(self.known.newest(name), int | str):
                return self.known.newest(name)
            case _ if name in PLAIN:
                return PLAIN[name]
        match info:
            case inspect.StructType(cls=cls):
                return self.struct(cls)
            case inspect.VarTupleType(item_type=inspect.IntType()):
                return tuple(range(8))
            case inspect.VarTupleType(item_type=item):
                return (self.value(name.removesuffix("s"), item),)
            case inspect.TupleType(item_types=items):
                return tuple(self.value(name, item) for item in items)
            case inspect.DictType():
                return {}
            case inspect.UnionType(types=types):
                wanted = [one for one in types if not isinstance(one, inspect.NoneType)]
                return self.value(name, wanted[-1])
            case inspect.LiteralType(values=values):
                return sorted(values)[-1]
            case inspect.BoolType():
                return True
            case inspect.IntType():
                return 1
            case inspect.FloatType():
                return 0.5
            case inspect.StrType():
                return "forged"
            case inspect.Metadata(extra={"packed": _}, type=inner):
                ids = packed(*range(8))
                return memoryview(ids) if isinstance(inner, inspect.MemoryViewType) else ids
            case inspect.Metadata(type=inner) | inspect.CustomType(cls=inner):
                return self.value(name, inner)
            case _:
                raise AssertionError(f"no guess for {name}: {info}")
