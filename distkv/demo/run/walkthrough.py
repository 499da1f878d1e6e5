"""The demo from beginning to end: a document longer than any instance's memory, and questions about it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console

from distkv.client.local.cluster import LocalCluster
from distkv.config import DEMO_MODEL, model_dir
from distkv.demo.run import reference
from distkv.demo.run.display import Display
from distkv.demo.run.monitor import RequestMonitor, Traffic
from distkv.demo.run.placement import draw
from distkv.demo.run.questions import LEAST_DOCUMENT_TOKENS, QUESTION_TOKENS, OwnFact, QuestionPrompt, plan_prompts
from distkv.endings import describe_exit
from distkv.errors import InvalidParams, RequestError
from distkv.types import SamplingParams

BLOCK_TOKENS = 16
SPARE_BLOCKS = 4  # of the pools together, for tails and rounding
MAX_TOKENS = 16  # more than any right answer has
SLACK_TOKENS = 96  # a document and a question are shorter than they may be by less
LEAST_TOKENS = LEAST_DOCUMENT_TOKENS + QUESTION_TOKENS
LOST_MEMORY_S = 10.0  # how long a request waits for memory that died with an instance
DEATH_SEEN_S = 1.0  # a connection ends a moment before its process does


@dataclass(frozen=True, slots=True)
class Options:
    """kv_tokens: one instance's pool. tokens: of document and question; None is half an instance less than all hold.
    seed: of the document. own: a fact and a question of the user's."""

    instances: int = 3
    kv_tokens: int = 1024
    tokens: int | None = None
    seed: int = 0
    own: OwnFact | None = None

    @property
    def pool_tokens(self) -> int:
        """The pool in whole rBlocks."""
        return self.kv_tokens // BLOCK_TOKENS * BLOCK_TOKENS

    @property
    def prompt_tokens(self) -> int:
        """Most tokens of a prompt. Raises InvalidParams when they do not fit, or leave no room for facts."""
        lent = (self.instances - 1) * (self.pool_tokens - BLOCK_TOKENS)
        fits = self.pool_tokens + lent - SPARE_BLOCKS * BLOCK_TOKENS - MAX_TOKENS
        if fits < LEAST_TOKENS:
            raise InvalidParams("kv_tokens", f"pools that hold {LEAST_TOKENS} tokens together", f"room for {fits}")
        if self.tokens is None:
            return max(LEAST_TOKENS, min((2 * self.instances - 1) * self.pool_tokens // 2 + SLACK_TOKENS, fits))
        if not LEAST_TOKENS <= self.tokens <= fits:
            expected = f"from {LEAST_TOKENS} to {fits}, which is what the pools hold together"
            raise InvalidParams("tokens", expected, self.tokens)
        return self.tokens


@dataclass(slots=True)
class Answer:
    """What came of a request so far; times by time.monotonic()."""

    prompt_tokens: int
    max_tokens: int = MAX_TOKENS
    sent_s: float = 0.0
    first_s: float = 0.0
    last_s: float = 0.0
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    traffic_before: Traffic = field(default_factory=Traffic)
    traffic_at_first: Traffic = field(default_factory=Traffic)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)


def run(options: Options, console: Console) -> bool:
    """Run the demo; whether every answer is right, and equals that of transformers if that is installed. Whatever it
    started or wrote is gone on return. Raises DistKVError."""
    display = Display(console)
    prompt_tokens = options.prompt_tokens
    model = model_dir(DEMO_MODEL)
    with tempfile.TemporaryDirectory(prefix="distkv-demo-") as name:
        scratch = Path(name)
        with display.step("writing a document with facts in it") as fact:
            prompts, count = plan_prompts(model, options.seed, prompt_tokens, options.own)
            sizes = [count(prompt.text) for prompt in prompts]
            ratio = sizes[0] / options.pool_tokens
            fact(f"{len(prompts[0].text):,} characters, {sizes[0]:,} tokens with the question")
            fact(f"that is {ratio:.2f} times the KV pool of one instance")
        with _start(options, scratch / "logs", display) as cluster:
            try:
                answers = [
                    _serve(cluster, prompt, Answer(size), f"demo-{number}", display)
                    for number, (prompt, size) in enumerate(zip(prompts, sizes, strict=True), 1)
                ]
            except RequestError:
                _report_deaths(cluster, display)
                raise
            with display.step("stopping the cluster"):
                cluster.close()
        equal = _compare(model, prompts, answers, scratch, display)
    display.say("everything is stopped; nothing is left behind")
    return equal and all(_is_right(prompt, answer) for prompt, answer in zip(prompts, answers, strict=True))


def _start(options: Options, log_dir: Path, display: Display) -> LocalCluster:
    with display.step(f"starting a gManager and {options.instances} instances on loopback") as fact:
        cluster = LocalCluster(
            DEMO_MODEL,
            instances=options.instances,
            kv_tokens=options.kv_tokens,
            dtype="float32",
            block_size=BLOCK_TOKENS,
            gateway=False,
            log_dir=log_dir,
            stop_timeout_s=5.0,
            request_timeout_s=LOST_MEMORY_S,
        )
        fact(f"gManager at {cluster.address}; {options.instances} pools of {options.pool_tokens:,} tokens")
    return cluster


def _serve(cluster: LocalCluster, prompt: QuestionPrompt, answer: Answer, request_id: str, display: Display) -> Answer:
    params = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0)
    display.say()
    display.say(f"{prompt.question} ({prompt.about})", "bold")
    with RequestMonitor(cluster.client(), request_id) as monitor:
        try:
            with display.live_view(answer, monitor):
                monitor.poll()
                answer.traffic_before = monitor.traffic
                answer.sent_s = time.monotonic()
                for chunk in cluster.stream(prompt.text, params, request_id=request_id):
                    answer.last_s = time.monotonic()
                    if not answer.token_ids:
                        answer.first_s = answer.last_s
                        monitor.poll()
                        answer.traffic_at_first = monitor.traffic
                    answer.token_ids.extend(chunk.token_ids)
                    answer.text += chunk.text
                    display.stream(chunk.text)
        finally:
            display.answered(answer.text)
    _report(prompt, answer, monitor, display)
    return answer


def _is_right(prompt: QuestionPrompt, answer: Answer) -> bool:
    return prompt.expected is None or answer.text.strip() == prompt.expected


def _report_deaths(cluster: LocalCluster, display: Display) -> None:
    children = (cluster.gmanager, *cluster.instances)
    deadline_s = time.monotonic() + DEATH_SEEN_S
    while all(child.alive for child in children) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    for child in children:
        if not child.alive:
            display.say(f"{child.name} died: {describe_exit(child.exit_code)}", "red")
            display.say(child.last_log(), "dim")


def _report(prompt: QuestionPrompt, answer: Answer, monitor: RequestMonitor, display: Display) -> None:
    if prompt.expected is not None:
        if _is_right(prompt, answer):
            display.say("  right", "bold green")
        else:
            display.say(f"  WRONG: the document says {prompt.expected!r}", "bold red")
    if monitor.placement is None:
        display.say("  it was answered before its KV had been looked for")
    else:
        for line in draw(monitor.placement):
            display.say(line)
    before, after = answer.traffic_before, answer.traffic_at_first
    kv_bytes, query_bytes = after.kv_bytes - before.kv_bytes, after.query_bytes - before.query_bytes
    since_first_s = answer.last_s - answer.first_s
    pace = f", then {(answer.num_tokens - 1) / since_first_s:.1f} tokens/s" if since_first_s else ""
    display.say(f"  first token after {answer.first_s - answer.sent_s:.2f} s{pace}")
    display.say(
        f"  moved between instances until the first token: KV {_size(kv_bytes)}, queries and partials "
        f"{_size(query_bytes)}"
    )


def _compare(
    model: Path, prompts: Sequence[QuestionPrompt], answers: Sequence[Answer], scratch: Path, display: Display
) -> bool:
    display.say()
    if find_spec("transformers") is None:
        display.say("not compared with transformers, which is not installed (pip install transformers)", "yellow")
        return True
    with display.step("asking transformers the same, in float32"):
        expected = reference.run(model, [prompt.text for prompt in prompts], MAX_TOKENS, scratch)
    who = f"transformers {expected.version} in float32"
    for prompt, answer, theirs in zip(prompts, answers, expected.token_ids, strict=True):
        if answer.token_ids != list(theirs):
            display.say(f"tokens DIFFER from {who}: {prompt.question}", "bold red")
            display.say(f"  ours:   {answer.token_ids}\n  theirs: {list(theirs)}")
            return False
    total = sum(answer.num_tokens for answer in answers)
    display.say(f"tokens equal: all {total} are those of {who}", "bold green")
    return True


def _size(count: float) -> str:
    for unit in ("B", "KiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} MiB"
