"""The OpenAPI document is true: schemathesis sends what it allows, and what it does not, and meets no 5xx."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode, checks

from distkv.gateway.prompting.readers import SHORT_BYTES
from distkv.gateway.schema.openapi import OPERATIONS, Operation, document
from distkv.wire.messages.to_rmanager import Submit
from tests.conftest import LASTING
from tests.examples import examples
from tests.gateway.blocking_harness import served
from tests.gateway.harness import speak

SCHEMA = schemathesis.openapi.from_dict(document(asks_for_key=False))
CHECKS = [
    checks.not_a_server_error,
    schemathesis.checks.CHECKS.get_one("status_code_conformance"),
    schemathesis.checks.CHECKS.get_one("content_type_conformance"),
    schemathesis.checks.CHECKS.get_one("response_schema_conformance"),
]


def brief(instance: Any, route: bytes, submit: Submit) -> list[Any]:
    """Speaks, but not for long."""
    most, least = min(3, submit.params.max_tokens), min(3, submit.params.min_tokens)
    few = msgspec.structs.replace(submit.params, max_tokens=most, min_tokens=least)
    return speak(instance, route, msgspec.structs.replace(submit, params=few))


@pytest.fixture(scope="module")
def url(checkpoint: Path) -> Iterator[str]:
    """A gateway beside the test's thread; what reads bodies and grammars for it is there."""
    with served(checkpoint, brief) as url:
        httpx.post(url + "/v1/completions", json={"prompt": "x", "guided_regex": "x"}, timeout=60).raise_for_status()
        httpx.post(url + "/tokenize", json={"prompt": "x" * SHORT_BYTES}, timeout=60).raise_for_status()
        yield url


def test_the_document_is_served(url: str) -> None:
    assert httpx.get(url + "/openapi.json", timeout=60).json() == document(asks_for_key=False)


def test_keys_are_told() -> None:
    told = document(asks_for_key=True)
    assert told["paths"]["/v1/models"]["get"]["security"] == [{"key": []}]
    assert "security" not in told["paths"]["/health"]["get"]
    assert told["components"]["securitySchemes"]["key"] == {"type": "http", "scheme": "bearer"}


CASES = [(one, mode) for one in OPERATIONS for mode in GenerationMode if one.body or mode is GenerationMode.POSITIVE]


@pytest.mark.parametrize(
    ("operation", "mode"), CASES, ids=[f"{one.method} {one.path} {mode.value}" for one, mode in CASES]
)
def test_no_request_breaks_the_gateway(url: str, operation: Operation, mode: GenerationMode) -> None:
    found = SCHEMA[operation.path][operation.method]
    wanted = [one for one in CHECKS if one is not checks.not_a_server_error or 501 not in operation.errors]

    @settings(
        max_examples=examples(25),
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=found.as_strategy(generation_mode=mode))
    def holds(case: schemathesis.Case) -> None:
        answer = case.call(base_url=url)
        case.validate_response(answer, checks=wanted)

    holds()
    # One that has read a body of a mebibyte ends, and the fixture ends the next one.
    LASTING.update(child.pid for child in psutil.Process().children() if "reader_process" in " ".join(child.cmdline()))
