"""The demo from beginning to end: a prompt longer than any instance's memory, served by all of them."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from tokenizers import Tokenizer

from distkv.client.child import how_it_ended
from distkv.client.local_cluster import LocalCluster
from distkv.demo import reference, text
from distkv.demo.placement import draw
from distkv.demo.random_checkpoint import make_checkpoint
from distkv.demo.screen import Screen
from distkv.demo.watcher import Traffic, Watcher
from distkv.errors import InvalidParams, RequestError
from distkv.types import SamplingParams

REQUEST_ID = "demo"
BLOCK_TOKENS = 16
SPARE_BLOCKS = 4  # of the pools together, for tails and rounding
MODEL = {"family": "llama", "hidden": 256, "layers": 4, "heads": 8, "kv_heads": 4, "vocab": 2048}
LEARN_CHARACTERS = 60_000  # of the text, for the tokenizer
LOST_MEMORY_S = 10.0  # how long the request waits for memory that died with an instance
DEATH_SEEN_S = 1.0  # a connection ends a moment before its process does
CHARACTERS_PER_TOKEN = 8  # more than any text has, so that one gathering is enough


@dataclass(frozen=True, slots=True)
class Options:
    """kv_tokens: one instance's pool. keep_checkpoint: where to leave the checkpoint; else it is temporary."""

    instances: int = 3
    kv_tokens: int = 1024
    max_tokens: int = 128
    seed: int = 0
    keep_checkpoint: Path | None = None

    @property
    def pool_tokens(self) -> int:
        """The pool in whole rBlocks."""
        return self.kv_tokens // BLOCK_TOKENS * BLOCK_TOKENS

    @property
    def prompt_tokens(self) -> int:
        """Half an instance less than all have, or what fits beside max_tokens. Raises InvalidParams."""
        lent = (self.instances - 1) * (self.pool_tokens - BLOCK_TOKENS)
        fits = self.pool_tokens + lent - SPARE_BLOCKS * BLOCK_TOKENS - self.max_tokens
        if fits <= self.pool_tokens:
            most = max(0, fits + self.max_tokens - self.pool_tokens - 1)
            raise InvalidParams(
                "max_tokens", f"at most {most}, so that a prompt longer than a pool fits", self.max_tokens
            )
        return min((2 * self.instances - 1) * self.pool_tokens // 2, fits)


@dataclass(slots=True)
class Answer:
    """What came of the request so far; times by time.monotonic()."""

    prompt_tokens: int
    max_tokens: int
    sent_s: float = 0.0
    first_s: float = 0.0
    last_s: float = 0.0
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    traffic_at_first: Traffic = field(default_factory=Traffic)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)


def run(options: Options, console: Console) -> bool:
    """Tell the story; whether the tokens equal those of transformers. Whatever it started or wrote is gone on return,
    except the checkpoint that was asked for. Raises DistKVError."""
    screen = Screen(console)
    prompt_tokens = options.prompt_tokens
    with tempfile.TemporaryDirectory(prefix="distkv-demo-") as name:
        scratch = Path(name)
        model = options.keep_checkpoint or scratch / "model"
        prompt = _prepare(options, prompt_tokens, model, screen)
        with _start(options, model, scratch / "logs", screen) as cluster:
            try:
                answer = _serve(cluster, prompt, options, screen)
            except RequestError:
                _tell_deaths(cluster, screen)
                raise
            with screen.step("stopping the cluster"):
                cluster.close()
        equal = _compare(model, prompt, answer, scratch, screen)
    if options.keep_checkpoint is not None:
        screen.say(f"the checkpoint stays in {options.keep_checkpoint}; nothing else is left behind")
    else:
        screen.say("everything is stopped; nothing is left behind")
    return equal


def _prepare(options: Options, prompt_tokens: int, model: Path, screen: Screen) -> text.Prompt:
    with screen.step("making a checkpoint with random weights and a prompt of real text") as fact:
        pages = text.gather(prompt_tokens * CHARACTERS_PER_TOKEN)
        learn = "".join(page.text for page in pages)[:LEARN_CHARACTERS]
        make_checkpoint(model, **MODEL, seed=options.seed, text_for_tokenizer=learn)  # type: ignore[arg-type]
        prompt = text.cut(pages, Tokenizer.from_file(str(model / "tokenizer.json")), prompt_tokens)
        fact(f"checkpoint: {MODEL['layers']} layers of a Llama in float32, seed {options.seed}")
        fact(f"prompt: {', '.join(prompt.sources)}; {len(prompt.text):,} characters")
        ratio = prompt.num_tokens / options.pool_tokens
        fact(f"{prompt.num_tokens:,} tokens, {ratio:.2f} times the KV pool of one instance")
    return prompt


def _start(options: Options, model: Path, log_dir: Path, screen: Screen) -> LocalCluster:
    with screen.step(f"starting a gManager and {options.instances} instances on loopback") as fact:
        cluster = LocalCluster(
            model,
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


def _serve(cluster: LocalCluster, prompt: text.Prompt, options: Options, screen: Screen) -> Answer:
    params = SamplingParams(max_tokens=options.max_tokens, temperature=0.0, ignore_eos=True)
    answer = Answer(prompt.num_tokens, options.max_tokens)
    title = f"streaming {options.max_tokens} tokens, greedily; random weights make no sense"
    with screen.step(title, spinner=False), Watcher(cluster.client(), REQUEST_ID) as watcher:
        try:
            with screen.picture(answer, watcher):
                _stream(cluster, prompt.text, params, answer, watcher, screen)
        finally:
            screen.answered(answer.text)
        watcher.look()
    _tell(answer, watcher, screen)
    return answer


def _stream(
    cluster: LocalCluster, prompt: str, params: SamplingParams, answer: Answer, watcher: Watcher, screen: Screen
) -> None:
    answer.sent_s = time.monotonic()
    for chunk in cluster.stream(prompt, params, request_id=REQUEST_ID):
        answer.last_s = time.monotonic()
        if not answer.token_ids:
            answer.first_s = answer.last_s
            watcher.look()
            answer.traffic_at_first = watcher.traffic
        answer.token_ids.extend(chunk.token_ids)
        answer.text += chunk.text
        screen.stream(chunk.text)


def _tell_deaths(cluster: LocalCluster, screen: Screen) -> None:
    children = (cluster.gmanager, *cluster.instances)
    deadline_s = time.monotonic() + DEATH_SEEN_S
    while all(child.alive for child in children) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    for child in children:
        if not child.alive:
            screen.say(f"{child.name} died: {how_it_ended(child.exit_code)}", "red")
            screen.say(child.last_log(), "dim")


def _tell(answer: Answer, watcher: Watcher, screen: Screen) -> None:
    screen.say("where the KV of the request lay at the end:")
    if watcher.placement is not None:
        for line in draw(watcher.placement):
            screen.say(line)
        screen.say(f"  on {watcher.placement.instances_used} instances")
    before, after = answer.traffic_at_first, watcher.traffic
    decoded = answer.num_tokens - 1
    queries = after.query_bytes - before.query_bytes
    screen.say("bytes that moved between instances:")
    screen.say(f"  KV       {_size(after.kv_bytes)}: {_size(before.kv_bytes)} until the first token")
    screen.say(
        f"  queries  {_size(after.query_bytes)}: {_size(before.query_bytes)} until the first token, then "
        f"{_size(queries / max(decoded, 1))} per token; partials included"
    )
    pace = f"{decoded / (answer.last_s - answer.first_s):.1f}" if decoded else "no"
    screen.say(f"time to first token: {answer.first_s - answer.sent_s:.2f} s, then {pace} tokens/s")


def _compare(model: Path, prompt: text.Prompt, answer: Answer, scratch: Path, screen: Screen) -> bool:
    with screen.step("asking transformers the same, in float32"):
        expected = reference.ask(model, prompt.text, len(answer.token_ids), scratch)
    ours, theirs = answer.token_ids, list(expected.token_ids)
    who = f"transformers {expected.version} in float32"
    if ours == theirs:
        screen.say(f"tokens equal: all {len(ours)} are those of {who}", "bold green")
        return True
    first = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    screen.say(f"tokens DIFFER from {who}, at token {first} of {len(ours)}", "bold red")
    screen.say(f"  ours:   {ours[first : first + 8]}\n  theirs: {theirs[first : first + 8]}")
    return False


def _size(count: float) -> str:
    for unit in ("B", "KiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} MiB"
