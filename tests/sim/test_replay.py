"""What was recorded is decided once more: the same commands, in any process, and nothing of what users wrote."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from distkv.control.cluster.member_feed import SETTLING_S
from distkv.errors import ConfigError
from distkv.sim.drawn.cluster import SimCluster
from distkv.sim.drawn.fake_worker import expected_output
from distkv.sim.replay import Replayed, replay
from distkv.structured_output import StructuredOutput
from distkv.types import PolicyName
from tests.lanes import rest_is_slow
from tests.sim.history import live
from tests.sim.parts import prompt
from tests.sim.recording import recording

REPLAY = """
import sys
from distkv.sim.replay import replay
for path in sys.argv[1:]:
    with open(path, "rb") as lines:
        print(*(f"{one.num_events} {one.num_commands} {one.difference}" for one in replay(lines, path)), sep=";")
"""


def replayed(files: dict[str, list[bytes]]) -> list[Replayed]:
    return [one for name, lines in files.items() for one in replay(lines, name)]


@pytest.mark.parametrize("policy", rest_is_slow(["contract", "greedy"]))
def test_whatever_happens_to_a_cluster_is_decided_once_more(policy: PolicyName) -> None:
    events = commands = 0
    for seed in range(5):
        with recording() as files:
            live(seed, policy=policy)
        for one in replayed(files):
            assert one.difference is None, f"history {seed}: {one.name}: {one.difference}"
            events, commands = events + one.num_events, commands + one.num_commands
    assert events > 2000 and commands > 2000


def test_another_process_decides_the_same(tmp_path: Path) -> None:
    """In which texts have other hashes, and sets another order."""
    paths = []
    for seed in range(4):
        with recording() as files:
            live(seed, policy="greedy" if seed % 2 else "contract")
        for name, lines in files.items():
            paths.append(tmp_path / f"{seed} {name}")
            paths[-1].write_bytes(b"\n".join(lines))
    said = set()
    for hash_seed in ("1", "2"):
        ran = subprocess.run(
            [sys.executable, "-c", REPLAY, *paths],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        said.add(ran.stdout)
    (one,) = said
    assert "None" in one and "Difference" not in one, one


def test_however_an_output_ends_it_ends_so_again_without_its_text() -> None:
    """By a stop string, a stop token, an end token, a grammar, its length, a deadline while text is held back."""
    secret = "sesame"
    with recording() as files:
        cluster = SimCluster([40, 40], eos_token_ids=frozenset({17}))
        letters = [chr(ord("a") + one % 26) for one in expected_output(prompt(9), 30)]
        cluster.submit("i0", "string", prompt(9), 30, stop=("".join(letters[7:10]), secret), ignore_eos=True)
        stop = expected_output(prompt(10), 30)[12]
        cluster.submit("i0", "token", prompt(10), 30, stop_token_ids=(stop, 4711), min_tokens=3)
        cluster.submit("i0", "grammar", prompt(11), 30, grammar_id=5, min_tokens=20, ignore_eos=True)
        words, biases = ((901,), (902, 903)), {904: 2.5}
        cluster.submit("i0", "length", prompt(12), 8, bad_words=words, logit_bias=biases, prompt_logprobs=2, logprobs=3)
        cluster.submit("i0", "none", prompt(13), 8, bad_words=((5000,),))
        cluster.submit("i1", "one of few", prompt(14), 8, allowed_token_ids=(905, 906, 907))
        cluster.submit("i0", "again", prompt(9), 30, stop=("".join(letters[3:6]),), include_stop_str_in_output=True)
        cluster.run(SETTLING_S)  # before that others may join
        cluster.submit("i1", "huge", prompt(9), 3000, structured_output=StructuredOutput("regex", secret))
        cluster.finish()
    finishes = {name: outcome.finish or outcome.ended.kind for name, outcome in cluster.outcomes.items()}
    assert finishes == {
        "string": "stop", "token": "stop", "grammar": "stop", "length": "length", "none": "refused",
        "one of few": "length", "again": "stop", "huge": "refused",
    }  # fmt: skip
    assert [one.difference for one in replayed(files)] == [None] * 3
    ids = {one for lines in files.values() for line in lines for one in ids_in(json.loads(line))}
    assert ids <= {0, 1, 5000}, "no token that was in any prompt or output, and none that was forbidden or allowed"
    assert secret not in str(files), "no text"


def ids_in(value: object, *, are_ids: bool = False) -> set[int]:
    """What stands under names that are of tokens, in JSON."""
    if isinstance(value, dict):
        named = {"token", "token_ids", "bad_words", "logit_bias", "allowed_token_ids", "stop_token_ids", "checksums"}
        return {one for name, item in value.items() for one in ids_in(item, are_ids=are_ids or name in named)} | {
            int(name) for name in (value if are_ids else ())
        }
    if isinstance(value, list):
        return {one for item in value for one in ids_in(item, are_ids=are_ids)}
    return {value} if are_ids and isinstance(value, int) else set()


def one_recording() -> list[bytes]:
    with recording() as files:
        cluster = SimCluster([40], seed=1)
        cluster.submit("i0", "r", prompt(20), 5)
        cluster.finish()
    return files["i0"]


def test_another_decision_is_found_where_it_was_made() -> None:
    lines = one_recording()
    number = next(n for n, line in enumerate(lines, 1) if b'"finish_reason":"length"' in line)
    lines[number - 1] = lines[number - 1].replace(b'"finish_reason":"length"', b'"finish_reason":"abort"')
    (found,) = replay(lines, "i0.jsonl")
    assert found.difference is not None and found.num_events < len(lines)
    assert found.difference.line == number and '"StepResult"' in found.difference.event
    assert '"abort"' in found.difference.recorded and '"length"' in found.difference.replayed


def test_a_command_that_is_missing_is_a_difference() -> None:
    lines = one_recording()
    number = next(n for n, line in enumerate(lines, 1) if b'"Accepted"' in line or b'"accepted"' in line)
    record = json.loads(lines[number - 1])
    record["commands"].append({"type": "Exit", "code": 0, "reason": "drained"})
    lines[number - 1] = json.dumps(record, separators=(",", ":")).encode()
    (found,) = replay(lines, "i0.jsonl")
    assert found.difference is not None and (found.difference.line, found.difference.replayed) == (number, "nothing")


def test_what_a_process_died_of_is_raised_again(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = one_recording()
    number = next(n for n, line in enumerate(lines) if b'"StepResult"' in line)
    record = json.loads(lines[number]) | {"commands": None}
    monkeypatch.setattr("distkv.control.request.lifecycle.RequestLifecycle.on_result", lambda *args: [][1])
    (found,) = replay([*lines[:number], json.dumps(record).encode()], "i0.jsonl")
    assert found.difference is None and found.raised == "IndexError: list index out of range"
    (found,) = replay(lines, "i0.jsonl")
    assert found.difference is not None and found.difference.replayed.startswith("IndexError")


def test_a_process_that_was_killed_within_a_line_and_its_next_life() -> None:
    lines = one_recording()
    first, second = replay([*lines, lines[-1][:40], b"\n", *lines, lines[3][:50]], "i0.jsonl")
    assert first.difference is None is second.difference and first.num_events == second.num_events > 10
    assert first.begin_s < first.end_s


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lines: [], "i0.jsonl: nothing is recorded"),
        (lambda lines: lines[1:], "i0.jsonl:1: i0 has not begun"),
        (lambda lines: [*lines[:3], lines[3][:50], *lines[4:]], r"i0.jsonl:4: .*truncated"),
        (
            lambda lines: [b'{"format":3,' + lines[0][1:].replace(b',"format":2', b""), *lines[1:]],
            "i0.jsonl:1: expected f",
        ),
        (lambda lines: [lines[0], b'{"record":"event","t_s":"now"}'], r"i0.jsonl:2: Expected `float`, got `str` .*t_s"),
        (lambda lines: [lines[0], b'{"t_s": 5, "type": "Step"}'], r"i0.jsonl:2: .*missing required field `record`"),
        (lambda lines: [b"arrival_s,prompt_tokens,output_tokens", b"1,2,3"], r"i0.jsonl:1: .*malformed"),
    ],
)
def test_what_is_no_recording_is_refused_with_its_line(change, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        replay(change(one_recording()), "i0.jsonl")
