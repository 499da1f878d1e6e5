"""What an output must be, from the ways in which requests say it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from distkv.errors import InvalidParams, RequestRefused
from distkv.gateway.schema.errors import ApiError, invalid
from distkv.gateway.schema.output_formats import ResponseFormat, StructuredOutputs
from distkv.gateway.schema.requests import SamplingRequest
from distkv.structured_output import FIELD, StructuredOutput


class Constraint(NamedTuple):
    """What the output must be, and the field of the request that says so."""

    output: StructuredOutput
    param: str


def constraint_of(body: SamplingRequest) -> Constraint | None:
    """None if the output may be anything. Raises ApiError 400 for several constraints, and for one that is none.

    Whether it can be followed is found out later, for that takes longer.
    """
    found = list(_constraints(body))
    if len(found) > 1:
        raise invalid(f"{found[1].param}: cannot go with {found[0].param}; only one may say what the output is",
                      found[1].param)  # fmt: skip
    return found[0] if found else None


def refused(param: str, error: InvalidParams) -> ApiError:
    """400: this field of the request is wrong."""
    return invalid(f"{param}: expected {error.expected}", param)


def as_asked(param: str, error: RequestRefused) -> ApiError | RequestRefused:
    """What an instance says of an output, of the field of the request that says what it must be; else the same."""
    mark = f"{FIELD}: "
    if not param or not error.reason.startswith(mark):
        return error
    return invalid(error.reason.replace(mark, f"{param}: "), param)


def constraint(param: str, make: Callable[[Any], StructuredOutput], value: Any) -> Constraint:
    """Raises ApiError 400 for a value that is over the bounds, or cannot be written."""
    try:
        return Constraint(make(value), param)
    except InvalidParams as error:
        raise refused(param, error) from None


def _constraints(body: SamplingRequest) -> Iterator[Constraint]:
    make = StructuredOutput
    if body.response_format is not None:
        yield from _of_format(body.response_format)
    if body.guided_json is not None:
        yield constraint("guided_json", make.json_schema, body.guided_json)
    if body.guided_regex is not None:
        yield constraint("guided_regex", make.regex, body.guided_regex)
    if body.guided_choice is not None:
        yield constraint("guided_choice", make.choice, body.guided_choice)
    if body.guided_grammar is not None:
        yield constraint("guided_grammar", make.grammar, body.guided_grammar)
    if body.structured_outputs is not None:
        yield from _of_structured(body.structured_outputs)


def _of_format(wanted: ResponseFormat) -> Iterator[Constraint]:
    if wanted.type == "json_object":
        if wanted.schema is None:
            yield Constraint(StructuredOutput.json_object(), "response_format")
        else:
            yield constraint("response_format", StructuredOutput.json_schema, wanted.schema)
    elif wanted.type == "json_schema":
        if wanted.json_schema is None:
            raise invalid("response_format.json_schema: is missing", "response_format.json_schema")
        yield constraint("response_format", StructuredOutput.json_schema, wanted.json_schema.schema)


def _of_structured(wanted: StructuredOutputs) -> Iterator[Constraint]:
    make = StructuredOutput
    for name in (
        "disable_any_whitespace",
        "disable_additional_properties",
        "whitespace_pattern",
        "structural_tag",
    ):
        if getattr(wanted, name):
            param = f"structured_outputs.{name}"
            raise invalid(f"{param} is not supported by this server", param, "unsupported_parameter")
    makers: dict[str, Callable[[Any], StructuredOutput]] = {
        "json": make.json_schema,
        "regex": make.regex,
        "choice": make.choice,
        "grammar": make.grammar,
    }
    for name, one in makers.items():
        if getattr(wanted, name) is not None:
            yield constraint(f"structured_outputs.{name}", one, getattr(wanted, name))
    if wanted.json_object:
        yield Constraint(make.json_object(), "structured_outputs.json_object")
