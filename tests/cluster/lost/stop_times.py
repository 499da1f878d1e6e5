"""How long a stop of everything takes, with real processes: from the signal until the last process is gone.

    python -m tests.cluster.lost.stop_times [--rounds N] [--model CHECKPOINT]

Each case starts `distkv up` with three instances, sends requests over HTTP, stops it, and says how long that took, how
long the request itself went on after the signal, and how it ended. The median of all rounds, as a table for
docs/operations.md.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import psutil

SUMMARY = "How long a stop of everything takes, with real processes."
INSTANCES = 3
POOL_TOKENS = 1024
POOLED_PROMPT = 1500
LOCAL_PROMPT = 100
ABOUT_S = 1.0
FORESEEN = 120
"""Tokens; a request borrows memory for what it is expected to grow by, and in a drain nobody lends more."""
QUEUED = 100
AGAIN_S = 1.1
"""After the first signal; one that comes within a second is one with it."""
PATIENCE_S = 120.0


@dataclass
class Request:
    """One completion over HTTP, streamed. began: it has output, or has ended. ended_s: when, by time.monotonic()."""

    port: int
    prompt_tokens: int
    max_tokens: int
    end: str = ""
    ended_s: float = 0.0
    began: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None

    def start(self) -> Request:
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        return self

    def wait_begun(self) -> Request:
        assert self.began.wait(PATIENCE_S), "no token came"
        assert not self.end, self.end
        return self

    def wait_ended(self) -> Request:
        assert self.thread is not None
        self.thread.join(PATIENCE_S)
        assert self.end, "it never ended"
        return self

    def _run(self) -> None:
        try:
            self.end = self._stream()
        except (OSError, http.client.HTTPException) as error:
            self.end = f"{type(error).__name__}: {error}"
        self.ended_s = time.monotonic()
        self.began.set()

    def _stream(self) -> str:
        prompt = [5 + index % 50 for index in range(self.prompt_tokens)]
        body = {"model": "stop", "prompt": prompt, "max_tokens": self.max_tokens, "ignore_eos": True, "stream": True}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        with contextlib.closing(connection):
            connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
            response = connection.getresponse()
            if response.status != 200:
                return str(json.loads(response.read())["error"]["message"])
            end = "its connection ended"
            for line in response:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line.removeprefix(b"data: "))
                if "error" in event:
                    return str(event["error"]["message"])
                self.began.set()
                end = event["choices"][0]["finish_reason"] or end
            return end


@dataclass
class Cluster:
    """A running `distkv up`. pids: of its daemons."""

    up: subprocess.Popen[str]
    port: int
    pids: list[int]

    def request(self, prompt_tokens: int, max_tokens: int) -> Request:
        return Request(self.port, prompt_tokens, max_tokens).start()

    def tokens_of_a_second(self, prompt_tokens: int, most: int) -> int:
        """As many as take about a second to generate after a prompt of this length, by a trial that is as long as that
        may be: by the outputs that have ended, instances expect how long others get, and borrow memory for it."""
        trial = self.request(prompt_tokens, most).wait_begun()
        began_s = time.monotonic()
        took_s = trial.wait_ended().ended_s - began_s
        return max(8, min(most, round((most - 1) / took_s * ABOUT_S)))

    def stop(self, signum: int = signal.SIGINT) -> float:
        """Signal `up`; returns when."""
        os.kill(self.up.pid, signum)
        return time.monotonic()

    def ended(self) -> float:
        """Wait until it and all of its daemons are gone; returns when."""
        self.up.communicate(timeout=PATIENCE_S)
        while any(map(_is_there, self.pids)):
            time.sleep(0.005)
        return time.monotonic()


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@contextlib.contextmanager
def running(model: str, *more: str) -> Iterator[Cluster]:
    """A cluster that is ready."""
    flags = f"--instances {INSTANCES} --kv-tokens {POOL_TOKENS} --dtype float32 --threads 1 --port 0 --http-port 0"
    command = [sys.executable, "-m", "distkv.cli.main", "up", "--model", model, *flags.split()]
    command += ["--served-model-name", "stop", *more]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as up:
        try:
            assert up.stdout is not None
            lines = []
            for line in up.stdout:
                lines.append(line)
                if "try: distkv generate" in line:
                    break
            text = "".join(lines)
            port = re.search(r"http://127\.0\.0\.1:(\d+)", text)
            assert port is not None, text
            yield Cluster(up, int(port[1]), [child.pid for child in psutil.Process(up.pid).children()])
        finally:
            up.kill()


@dataclass(frozen=True)
class Outcome:
    """took_s: of the stop. request_s: how long its request went on after the signal. end: how that ended."""

    took_s: float
    request_s: float | None = None
    end: str = ""


def stopped(cluster: Cluster, request: Request) -> Outcome:
    """Stop while a request runs."""
    signalled_s = cluster.stop()
    ended_s = cluster.ended()
    return of(signalled_s, ended_s, request)


def stopped_all_at_once(cluster: Cluster, request: Request) -> Outcome:
    """As a service manager does that stops everything: every daemon gets SIGTERM, the gManager too."""
    signalled_s = time.monotonic()
    for pid in cluster.pids:
        os.kill(pid, signal.SIGTERM)
    return of(signalled_s, cluster.ended(), request)


def of(signalled_s: float, ended_s: float, request: Request) -> Outcome:
    request.wait_ended()
    return Outcome(ended_s - signalled_s, request.ended_s - signalled_s, request.end)


def idle(model: str) -> Outcome:
    with running(model) as cluster:
        signalled_s = cluster.stop()
        return Outcome(cluster.ended() - signalled_s)


def local(model: str) -> Outcome:
    with running(model) as cluster:
        num_tokens = cluster.tokens_of_a_second(LOCAL_PROMPT, POOL_TOKENS - 2 * LOCAL_PROMPT)
        return stopped(cluster, cluster.request(LOCAL_PROMPT, num_tokens).wait_begun())


def pooled(model: str) -> Outcome:
    with running(model) as cluster:
        num_tokens = cluster.tokens_of_a_second(POOLED_PROMPT, FORESEEN)
        return stopped(cluster, cluster.request(POOLED_PROMPT, num_tokens).wait_begun())


def pooled_all_at_once(model: str) -> Outcome:
    with running(model) as cluster:
        num_tokens = cluster.tokens_of_a_second(POOLED_PROMPT, FORESEEN)
        return stopped_all_at_once(cluster, cluster.request(POOLED_PROMPT, num_tokens).wait_begun())


def outgrowing(model: str) -> Outcome:
    """It gets longer than what was borrowed for it, and is lent the rest by instances that drain."""
    with running(model) as cluster:
        cluster.tokens_of_a_second(POOLED_PROMPT, FORESEEN)
        return stopped(cluster, cluster.request(POOLED_PROMPT, 1200).wait_begun())


def outgrowing_all_at_once(model: str) -> Outcome:
    with running(model) as cluster:
        cluster.tokens_of_a_second(POOLED_PROMPT, FORESEEN)
        return stopped_all_at_once(cluster, cluster.request(POOLED_PROMPT, 1200).wait_begun())


def second_signal(model: str) -> Outcome:
    with running(model) as cluster:
        request = cluster.request(LOCAL_PROMPT, POOL_TOKENS - 2 * LOCAL_PROMPT).wait_begun()
        cluster.stop()
        time.sleep(AGAIN_S)
        signalled_s = cluster.stop()
        return of(signalled_s, cluster.ended(), request)


def queued(model: str) -> Outcome:
    """One runs at each instance, the others wait behind it."""
    with running(model, "--max-num-seqs", "1") as cluster:
        num_tokens = cluster.tokens_of_a_second(LOCAL_PROMPT, POOL_TOKENS - 2 * LOCAL_PROMPT)
        first = [cluster.request(LOCAL_PROMPT, num_tokens) for _ in range(INSTANCES)]
        for request in first:
            request.wait_begun()
        waiting = [cluster.request(LOCAL_PROMPT, 64) for _ in range(QUEUED)]
        time.sleep(0.3)
        outcome = stopped(cluster, first[0])
        for request in waiting:
            request.wait_ended()
        served = sum(request.end == "length" for request in waiting)
        last_s = max(request.ended_s for request in waiting if request.end != "length")
        refused = next(request.end for request in waiting if request.end != "length")
        late_s = last_s - (first[0].ended_s - (outcome.request_s or 0.0))
        others = f"{served} of {QUEUED} served, the others by {late_s:.2f} s: {refused}"
        return Outcome(outcome.took_s, outcome.request_s, f"{outcome.end}; {others}")


CASES: dict[str, Callable[[str], Outcome]] = {
    "nothing runs": idle,
    "one local request, about 1 s to go": local,
    "one pooled request, about 1 s to go": pooled,
    "... SIGTERM to every daemon at once": pooled_all_at_once,
    "one pooled request that outgrows what was lent": outgrowing,
    "one that outgrows it, SIGTERM to every daemon at once": outgrowing_all_at_once,
    "a second Ctrl-C, from then on": second_signal,
    f"{QUEUED} requests in queues": queued,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.lost.stop_times", description=SUMMARY)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--case", help="only those whose name has this in it")
    options = parser.parse_args()
    print("| what runs | until all are gone (s) | the request goes on for (s) | and ends |\n|---|---|---|---|")
    for name, case in CASES.items():
        if options.case and options.case not in name:
            continue
        outcomes = [case(options.model) for _ in range(options.rounds)]
        took = sorted(one.took_s for one in outcomes)
        request = [one.request_s for one in outcomes if one.request_s is not None]
        shown = f"{statistics.median(request):.2f}" if request else ""
        spread = f"{statistics.median(took):.2f} ({took[0]:.2f} to {took[-1]:.2f})"
        print(f"| {name} | {spread} | {shown} | {outcomes[-1].end} |", flush=True)


if __name__ == "__main__":
    main()
