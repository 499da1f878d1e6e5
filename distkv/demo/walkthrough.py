"""The demo from beginning to end: a document longer than any instance's memory, and questions about it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from distkv.client.local.child import how_it_ended
from distkv.client.local.cluster import LocalCluster
from distkv.config import DEMO_MODEL, model_dir
from distkv.demo import reference
from distkv.demo.asking import LEAST_DOCUMENT_TOKENS, QUESTION_TOKENS, Ask, Own, plan
from distkv.demo.placement import draw
from distkv.demo.screen import Screen
from distkv.demo.watcher import Traffic, Watcher
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
    own: Own | None = None

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
    """Run the demo; whether every answer is right, and equals that of transformers. Whatever it started or wrote is
    gone on return. Raises DistKVError."""
    screen = Screen(console)
    prompt_tokens = options.prompt_tokens
    model = model_dir(DEMO_MODEL)
    with tempfile.TemporaryDirectory(prefix="distkv-demo-") as name:
        scratch = Path(name)
        with screen.step("writing a document with facts in it") as fact:
            asks, count = plan(model, options.seed, prompt_tokens, options.own)
            sizes = [count(ask.prompt) for ask in asks]
            ratio = sizes[0] / options.pool_tokens
            fact(f"{len(asks[0].prompt):,} characters, {sizes[0]:,} tokens with the question")
            fact(f"that is {ratio:.2f} times the KV pool of one instance")
        with _start(options, scratch / "logs", screen) as cluster:
            try:
                answers = [
                    _serve(cluster, ask, Answer(size), f"demo-{number}", screen)
                    for number, (ask, size) in enumerate(zip(asks, sizes, strict=True), 1)
                ]
            except RequestError:
                _tell_deaths(cluster, screen)
                raise
            with screen.step("stopping the cluster"):
                cluster.close()
        equal = _compare(model, asks, answers, scratch, screen)
    screen.say("everything is stopped; nothing is left behind")
    return equal and all(_is_right(ask, answer) for ask, answer in zip(asks, answers, strict=True))


def _start(options: Options, log_dir: Path, screen: Screen) -> LocalCluster:
    with screen.step(f"starting a gManager and {options.instances} instances on loopback") as fact:
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


def _serve(cluster: LocalCluster, ask: Ask, answer: Answer, request_id: str, screen: Screen) -> Answer:
    params = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0)
    screen.say()
    screen.say(f"{ask.question} ({ask.about})", "bold")
    with Watcher(cluster.client(), request_id) as watcher:
        try:
            with screen.live_view(answer, watcher):
                watcher.look()
                answer.traffic_before = watcher.traffic
                answer.sent_s = time.monotonic()
                for chunk in cluster.stream(ask.prompt, params, request_id=request_id):
                    answer.last_s = time.monotonic()
                    if not answer.token_ids:
                        answer.first_s = answer.last_s
                        watcher.look()
                        answer.traffic_at_first = watcher.traffic
                    answer.token_ids.extend(chunk.token_ids)
                    answer.text += chunk.text
                    screen.stream(chunk.text)
        finally:
            screen.answered(answer.text)
    _tell(ask, answer, watcher, screen)
    return answer


def _is_right(ask: Ask, answer: Answer) -> bool:
    return ask.expected is None or answer.text.strip() == ask.expected


def _tell_deaths(cluster: LocalCluster, screen: Screen) -> None:
    children = (cluster.gmanager, *cluster.instances)
    deadline_s = time.monotonic() + DEATH_SEEN_S
    while all(child.alive for child in children) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    for child in children:
        if not child.alive:
            screen.say(f"{child.name} died: {how_it_ended(child.exit_code)}", "red")
            screen.say(child.last_log(), "dim")


def _tell(ask: Ask, answer: Answer, watcher: Watcher, screen: Screen) -> None:
    if ask.expected is not None:
        if _is_right(ask, answer):
            screen.say("  right", "bold green")
        else:
            screen.say(f"  WRONG: the document says {ask.expected!r}", "bold red")
    if watcher.placement is not None:
        for line in draw(watcher.placement):
            screen.say(line)
    before, after = answer.traffic_before, answer.traffic_at_first
    kv_bytes, query_bytes = after.kv_bytes - before.kv_bytes, after.query_bytes - before.query_bytes
    pace = (answer.num_tokens - 1) / (answer.last_s - answer.first_s) if answer.num_tokens > 1 else 0.0
    screen.say(f"  first token after {answer.first_s - answer.sent_s:.2f} s, then {pace:.1f} tokens/s")
    screen.say(
        f"  moved between instances until the first token: KV {_size(kv_bytes)}, queries and partials "
        f"{_size(query_bytes)}"
    )


def _compare(model: Path, asks: Sequence[Ask], answers: Sequence[Answer], scratch: Path, screen: Screen) -> bool:
    screen.say()
    with screen.step("asking transformers the same, in float32"):
        expected = reference.ask(model, [ask.prompt for ask in asks], MAX_TOKENS, scratch)
    who = f"transformers {expected.version} in float32"
    for ask, answer, theirs in zip(asks, answers, expected.token_ids, strict=True):
        if answer.token_ids != list(theirs):
            screen.say(f"tokens DIFFER from {who}: {ask.question}", "bold red")
            screen.say(f"  ours:   {answer.token_ids}\n  theirs: {list(theirs)}")
            return False
    total = sum(answer.num_tokens for answer in answers)
    screen.say(f"tokens equal: all {total} are those of {who}", "bold green")
    return True


def _size(count: float) -> str:
    for unit in ("B", "KiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} MiB"
