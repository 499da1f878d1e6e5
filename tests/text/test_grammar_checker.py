"""What compiles grammars of strangers, and may die of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import psutil
import pytest

from distkv.errors import ConfigError, InvalidParams
from distkv.process_priority import STEP
from distkv.structured_output import StructuredOutput
from distkv.text import grammar_checker
from distkv.text.grammar_checker import REMEMBERED, GrammarChecker
from tests.waiting import wait_until

pytest.importorskip("llguidance", reason="llguidance is not installed in this environment: pip install -e .")

GOOD = StructuredOutput.regex("[a-z]+")
HOSTILE = StructuredOutput.json_schema(
    {"allOf": [{"type": "string", "pattern": f".*{i}.{{0,20}}x"} for i in range(30)]}
)


@pytest.fixture
def checker() -> Iterator[GrammarChecker]:
    made = GrammarChecker()
    yield made
    made.close()


def children() -> list[psutil.Process]:
    found = []
    for one in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):  # orphans of other tests may have ended
            if "distkv.text.grammar_checker" in one.cmdline():
                found.append(one)
    return found


def test_no_process_before_the_first_check_and_none_behind_the_end(checker: GrammarChecker) -> None:
    assert not children()
    checker.check(GOOD)
    with pytest.raises(InvalidParams, match="unclosed group"):
        checker.check(StructuredOutput.regex("(a"))
    (process,) = children()
    assert process.nice() == min(19, psutil.Process().nice() + 2 * STEP), "event loops go before it"
    checker.close()
    assert not process.is_running()


def test_what_takes_a_machine_to_compile_ends_only_the_process(checker: GrammarChecker) -> None:
    """Twenty patterns that must all match: minutes, and gigabytes; then llguidance aborts."""
    checker.check(GOOD)
    (process,) = children()
    with pytest.raises(InvalidParams, match="takes no more than 2 s and 1024 MiB to be compiled"):
        checker.check(HOSTILE)
    assert not process.is_running()
    checker.check(StructuredOutput.json_object())


def test_that_it_ended_while_it_waited_is_no_fault_of_the_next_output(checker: GrammarChecker) -> None:
    checker.check(GOOD)
    (process,) = children()
    process.kill()
    wait_until(lambda: process.status() == psutil.STATUS_ZOMBIE)
    checker.check(StructuredOutput.json_object())


def test_one_that_stands_still_is_replaced(checker: GrammarChecker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else nobody's grammar is compiled any more, and requests with one wait without end."""
    checker.check(GOOD)
    (process,) = children()
    process.suspend()
    with monkeypatch.context() as patched, suppress(InvalidParams):  # by then a new one may not have answered either
        patched.setattr(grammar_checker, "ANSWER_S", 0.2)
        checker.check(StructuredOutput.choice(["a" * 60_000]))
    assert not process.is_running()
    checker.check(StructuredOutput.json_object())


def test_closing_ends_what_is_being_checked_and_starts_nothing(checker: GrammarChecker) -> None:
    """Also while the process stands still: who closes waits for nothing."""
    checker.check(GOOD)
    (process,) = children()
    process.suspend()
    with ThreadPoolExecutor(1) as thread:
        checking = thread.submit(checker.check, StructuredOutput.choice(["a" * 60_000]))
        wait_until(lambda: checker._turn.locked())
        checker.close()
        with pytest.raises(ConfigError, match="was closed"):
            checking.result(timeout=10)
    assert not children()
    with pytest.raises(ConfigError, match="was closed"):
        checker.check(StructuredOutput.choice(["b"]))


def test_what_passed_is_not_compiled_again(checker: GrammarChecker) -> None:
    checker.check(GOOD)
    (process,) = children()
    process.suspend()
    checker.check(GOOD)
    process.resume()
    for index in range(REMEMBERED - 1):
        checker._passed[StructuredOutput.regex(f"{index}")] = None
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(checker.check, [GOOD, StructuredOutput.choice(["a"])]))
    assert len(checker._passed) == REMEMBERED and GOOD in checker._passed


def test_others_run_while_something_is_compiled(checker: GrammarChecker) -> None:
    with ThreadPoolExecutor(1) as threads:
        checking = threads.submit(checker.check, HOSTILE)
        turns = 0
        while not checking.done():
            time.sleep(0)
            turns += 1
    assert turns > 1000 and isinstance(checking.exception(), InvalidParams)


def test_without_llguidance_the_user_learns_what_is_missing(
    checker: GrammarChecker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_checker, "__name__", "distkv.text.no_such_module")
    with pytest.raises(ConfigError, match="is llguidance installed"):
        checker.check(GOOD)
