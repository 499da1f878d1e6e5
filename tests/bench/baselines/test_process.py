from __future__ import annotations

import os
import shutil
import sys
import textwrap
from pathlib import Path

import pytest

from distkv.bench.baselines import process as module
from distkv.bench.baselines.process import IDLE_CORES, BaselineFailed, BaselineProcess, wait_until_idle

FAKE = """
    import sys
    from .loop import arguments, private_stdout, serve

    class Fake:
        settings, versions = {"threads": 1}, {"fake": "1.0"}

        def run(self, prompts, max_tokens):
            print("this is no answer")
            if max_tokens == 66:
                raise ValueError("too many")
            if max_tokens == 77:
                sys.exit("out of memory")
            while max_tokens == 88:
                pass
            for token in range(max_tokens):
                for index in range(len(prompts)):
                    yield index, prompts[index][0] + token

    given = arguments("a fake").parse_args()
    answers = private_stdout()
    if given.model == "missing":
        sys.exit("there is no such model")
    serve(Fake(), answers)
"""


@pytest.fixture
def start(tmp_path, monkeypatch):
    (tmp_path / "drivers").mkdir()
    shutil.copy(Path(module.__file__).parent / "drivers" / "loop.py", tmp_path / "drivers")
    (tmp_path / "drivers" / "fake.py").write_text(textwrap.dedent(FAKE))
    monkeypatch.setattr(module, "HERE", tmp_path)
    started = []

    def call(model="any"):
        options = ["--model", model, "--threads", "1", "--tokens", "9", "--sequences", "2"]
        started.append(BaselineProcess(Path(sys.executable), "fake", options, tmp_path / "log", start_s=60))
        return started[-1]

    yield call
    for process in started:
        process.close(stop_s=0)


def test_a_driver_answers_until_it_is_closed(start):
    baseline = start()
    assert baseline.loaded.versions == {"fake": "1.0"}
    for _ in range(2):
        answer = baseline.generate([[5, 6], [9]], 3, 60)
        assert answer.token_ids == [[5, 6, 7], [9, 10, 11]]
        assert all(0 < times[0] <= times[1] <= times[2] for times in answer.times_s)
    baseline.close()
    baseline.close()
    with pytest.raises(ProcessLookupError):
        os.kill(baseline.pid, 0)


@pytest.mark.parametrize(
    ("max_tokens", "patience_s", "told"),
    [(66, 60, "ValueError: too many"), (77, 60, "it ended: out of memory"), (88, 0.2, "no answer within 0 s")],
)
def test_a_failure_ends_it_and_is_told(start, max_tokens, patience_s, told):
    baseline = start()
    with pytest.raises(BaselineFailed, match=told):
        baseline.generate([[5]], max_tokens, patience_s)
    with pytest.raises(ProcessLookupError):
        os.kill(baseline.pid, 0)


def test_one_that_does_not_load_says_why(start):
    with pytest.raises(BaselineFailed, match="it ended: there is no such model"):
        start("missing")


def test_cpu_time_is_seen(start):
    assert wait_until_idle([start().pid]).contenders < IDLE_CORES
    assert wait_until_idle([os.getpid()], patience_s=0).others >= 0
