"""Hypothesis strategies for every message, built from their own type annotations."""

from __future__ import annotations

from array import array
from typing import Any, get_args

import msgspec
from hypothesis import strategies as st
from msgspec import inspect as mi

from distkv.structured_output import StructuredOutput
from distkv.token_ids import pack
from distkv.types import SamplingParams
from distkv.wire.messages.data import DataMessage
from distkv.wire.messages.envelope import Control, Envelope
from distkv.wire.messages.profile import CURVES, LinkKind, LinkProfile, Point, Profile
from distkv.wire.messages.to_rmanager import Submit


def _ascending(sizes: set[int], seconds: list[float]) -> tuple[Point, ...]:
    return tuple(Point(size, one) for size, one in zip(sorted(sizes), sorted(seconds), strict=False))


curves = st.builds(
    _ascending, st.sets(st.integers(1, 2**30), min_size=1, max_size=6), st.lists(st.floats(1e-9, 1e6), min_size=6)
)
"""Measured tables."""
_rates = st.floats(1e-3, 1e15)
_links = st.dictionaries(
    st.sampled_from(get_args(LinkKind)),
    st.builds(
        LinkProfile,
        round_trip_s=st.floats(0, 10),
        bytes_per_s=_rates,
        read_bytes_per_s=_rates,
        busy_round_trip_s=st.floats(0, 10),
    ),
    min_size=1,
)
CONTROL_TYPES: tuple[type[msgspec.Struct], ...] = get_args(Control)
DATA_TYPES: tuple[type[msgspec.Struct], ...] = get_args(DataMessage)

_structured_output = st.just(StructuredOutput("json_object")) | st.builds(
    StructuredOutput, kind=st.sampled_from(["json_schema", "regex", "choice", "grammar"]), text=st.text(min_size=1)
)
_sampling_params = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 2**31 - 1),
    temperature=st.floats(0, 1e6),
    top_p=st.floats(0, 1, exclude_min=True),
    top_k=st.integers(0, 2**31 - 1),
    seed=st.none() | st.integers(0, 2**63 - 1),
    stop=st.lists(st.text(min_size=1), max_size=3).map(tuple),
    stop_token_ids=st.lists(st.integers(0, 2**31 - 1), max_size=3).map(tuple),
    ignore_eos=st.booleans(),
    min_p=st.floats(0, 1),
    repetition_penalty=st.floats(0, 1e6, exclude_min=True),
    presence_penalty=st.floats(-2, 2),
    frequency_penalty=st.floats(-2, 2),
    logit_bias=st.dictionaries(st.integers(0, 2**31 - 1), st.floats(-100, 100), max_size=3),
    logprobs=st.none() | st.integers(0, 20),
    prompt_logprobs=st.none() | st.integers(0, 20),
    min_tokens=st.just(0),
    bad_words=st.lists(st.text(min_size=1, max_size=5), max_size=2).map(tuple),
    allowed_token_ids=st.none() | st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=3).map(tuple),
    skip_special_tokens=st.booleans(),
    include_stop_str_in_output=st.booleans(),
    structured_output=st.none() | _structured_output,
)


def messages_of(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    """Any valid message of this type, all fields drawn."""
    return _of(mi.type_info(kind))


def envelopes(body: st.SearchStrategy[Any]) -> st.SearchStrategy[Envelope]:
    text = st.text(max_size=20)
    return st.builds(Envelope, id=text, sender=text, body=body, cause=text)


any_envelope: st.SearchStrategy[Envelope] = envelopes(st.sampled_from(CONTROL_TYPES).flatmap(messages_of))
any_header: st.SearchStrategy[Any] = st.sampled_from(DATA_TYPES).flatmap(messages_of)


def _of(info: mi.Type) -> st.SearchStrategy[Any]:
    match info:
        case mi.StructType(cls=cls) if cls is SamplingParams:
            return _sampling_params
        case mi.StructType(cls=cls) if cls is StructuredOutput:
            return _structured_output
        case mi.StructType(cls=cls, fields=fields) if cls is Profile:
            drawn = {
                field.name: _of(field.type) for field in fields if field.name not in CURVES and field.name != "links"
            }
            return st.builds(cls, links=_links, **drawn, **{name: curves for name in CURVES})
        case mi.StructType(cls=cls, fields=fields) if cls is Submit:
            drawn = {field.name: _of(field.type) for field in fields}
            either = st.sampled_from([{"prompt": st.just("")}, {"prompt_token_ids": st.none()}])
            return either.flatmap(lambda one: st.builds(cls, **drawn | one))
        case mi.StructType(cls=cls, fields=fields):
            return st.builds(cls, **{field.name: _of(field.type) for field in fields})
        case mi.IntType(ge=ge, le=le):
            # Unsigned 64 bits are the most that MessagePack carries; checksums use them all.
            return st.integers(-(2**63) if ge is None else ge, 2**64 - 1 if le is None else le)
        case mi.FloatType(ge=ge, le=le):
            return st.floats(min_value=ge, max_value=le, allow_nan=False)
        case mi.StrType(min_length=least, max_length=most):
            return st.text(min_size=least or 0, max_size=min(most or 20, 20))
        case mi.BoolType():
            return st.booleans()
        case mi.NoneType():
            return st.none()
        case mi.LiteralType(values=values):
            return st.sampled_from(list(values))
        case mi.VarTupleType(item_type=item):
            return st.lists(_of(item), max_size=3).map(tuple)
        case mi.DictType(key_type=key, value_type=item):
            return st.dictionaries(_of(key), _of(item), max_size=3)
        case mi.TupleType(item_types=items):
            return st.tuples(*(_of(item) for item in items))
        case mi.UnionType(types=types):
            return st.one_of(*(_of(member) for member in types))
        case mi.Metadata(type=inner, extra={"packed": _}):
            packed = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=3).map(lambda ids: pack(array("i", ids)))
            return packed.map(memoryview) if isinstance(inner, mi.MemoryViewType) else packed
        case mi.Metadata(type=inner) | mi.CustomType(cls=inner):
            return _of(inner)
        case _:
            raise AssertionError(f"no strategy for {info}")
