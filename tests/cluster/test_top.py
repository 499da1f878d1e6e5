from __future__ import annotations

import os
import signal
import sys

from distkv import SamplingParams
from tests.checkpoints import prompt_ids
from tests.cli.terminal import on_terminal
from tests.cluster.driving import worker_pid

LONG = SamplingParams(max_tokens=400, temperature=0.0, ignore_eos=True)


def test_top_shows_who_lends_to_a_request_that_runs(three):
    with on_terminal([sys.executable, "-m", "distkv.cli.main", "top", "--address", three.address]) as terminal:
        terminal.wait_for("i2 ready")
        stream = three.stream(prompt_ids(800), LONG, request_id="seen-from-above")
        next(stream)
        workers = [worker_pid(instance) for instance in three.instances]
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)  # it runs until it was seen
        try:
            for words in ("1 running, 0 waiting", "loans", "rBlocks", "seen-from-above"):
                terminal.wait_for(words, timeout_s=8.0)
        finally:
            for pid in workers:
                os.kill(pid, signal.SIGCONT)
        stream.close()
        terminal.wait_for("0 running, 0 waiting")
        terminal.press("q")
        assert terminal.process.wait(timeout=30) == 0
