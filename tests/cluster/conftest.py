from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from distkv import LocalCluster
from distkv.demo.random_checkpoint import make_checkpoint
from tests.checkpoints import TEXT, reference_logits
from tests.cluster.driving import heal

NEAR_TIE = 1e-4


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with a tokenizer; `prompt_ids` are within its vocabulary."""
    path = tmp_path_factory.mktemp("cluster") / "model"
    return make_checkpoint(path, layers=3, vocab=320, text_for_tokenizer=TEXT)


@pytest.fixture(scope="session")
def expect(checkpoint: Path) -> Callable[..., None]:
    """Asserts that each token is the best one of transformers after those before it, or nearly as good."""

    def check(prompt: list[int], tokens: list[int], count: int | None = None) -> None:
        count = len(tokens) if count is None else count
        assert len(tokens) == count, f"{len(tokens)} tokens instead of {count}"
        if not tokens:
            return
        logits = reference_logits(checkpoint, [*prompt, *tokens])[len(prompt) - 1 : -1]
        gaps = logits.amax(1) - logits[range(count), tokens]
        at = int(gaps.argmax())
        assert gaps[at] <= NEAR_TIE, f"token {at} is {tokens[at]}, not {int(logits[at].argmax())}, by {float(gaps[at])}"

    return check


@contextmanager
def started(model: Path, instances: int, kv_tokens: int | list[int], **options: Any) -> Iterator[LocalCluster]:
    """A cluster that checks its invariants after every event."""
    settings = {"dtype": "float32", "threads": 1, "validate_state": True, "gateway": False} | options
    with LocalCluster(model, instances, kv_tokens, **settings) as cluster:
        yield cluster


@contextmanager
def without_surprises(cluster: LocalCluster) -> Iterator[LocalCluster]:
    """Whatever is done to the processes of a cluster, none of them may fail of itself."""
    sizes = {log: log.stat().st_size for log in cluster.log_dir.glob("*.log")}
    yield cluster
    for log in sorted(cluster.log_dir.glob("*.log")):
        said = log.read_bytes()[sizes.get(log, 0) :].decode(errors="replace")
        assert "Traceback" not in said, f"{log.name}:\n{said[-6000:]}"


@pytest.fixture(scope="session")
def traces(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The trace files of `three`, one per instance."""
    return [tmp_path_factory.mktemp("traces") / f"i{index}.jsonl" for index in range(3)]


@pytest.fixture(scope="package")
def lasting_three(checkpoint: Path, traces: list[Path]) -> Iterator[LocalCluster]:
    options = [{"trace_file": str(file)} for file in traces]
    with started(checkpoint, 3, 512, instance_options=options, gateway=True) as cluster:
        yield cluster


@pytest.fixture(scope="package")
def lasting_four(checkpoint: Path) -> Iterator[LocalCluster]:
    with started(checkpoint, 4, 512) as cluster:
        yield cluster


@pytest.fixture
def three(lasting_three: LocalCluster) -> Iterator[LocalCluster]:
    """Three instances of 512 tokens and a gateway, shared by tests that end none of them."""
    with without_surprises(lasting_three) as cluster:
        yield cluster


@pytest.fixture
def four(lasting_four: LocalCluster) -> Iterator[LocalCluster]:
    """Four instances of 512 tokens; what a test ends is started again for the next."""
    heal(lasting_four)
    with without_surprises(lasting_four) as cluster:
        yield cluster


@pytest.fixture
def start(checkpoint: Path) -> Iterator[Callable[..., LocalCluster]]:
    """Starts clusters that end with the test: `start(instances, kv_tokens, **options)`."""
    with ExitStack() as stack:

        def start_one(*args: Any, **options: Any) -> LocalCluster:
            cluster = stack.enter_context(started(checkpoint, *args, **options))
            return stack.enter_context(without_surprises(cluster))

        yield start_one
