"""What passes between an rManager and its worker; see `examples`."""

from __future__ import annotations

from distkv.checksums import pack
from distkv.structured_output import StructuredOutput
from distkv.types import TokenLogprobs
from distkv.wire.messages import from_worker, to_worker
from distkv.wire.messages.common import Run
from distkv.wire.messages.envelope import Control
from distkv.wire.messages.from_worker import SeqResult
from distkv.wire.messages.to_worker import PromptLogprobs, RemoteSpan, Sampling, SeqStep
from tests.token_ids import packed
from tests.wire.golden.values import (
    BORN_0,
    CHECKSUMS,
    COMPAT,
    COUNTERS,
    ENDPOINT,
    READY,
    SERVES,
    SPAN,
)

WORKER_BODIES: dict[str, tuple[str, Control]] = {
    # to a worker
    "Step": (
        "i0",
        to_worker.Step(
            step_id=512,
            seqs=(
                SeqStep(
                    request_id="req-1",
                    version=6,
                    attempt=1,
                    start=160,
                    end=162,
                    tokens=packed(17, 300),
                    local=(Run(first_block=8, first_slot=4, num_blocks=3),),
                    remote=(RemoteSpan(instance_id="i1", span=SPAN, index=0, first_block=0, num_blocks=8),),
                    sample=Sampling(
                        temperature=0.7,
                        top_k=40,
                        top_p=0.95,
                        seed=7,
                        min_p=0.05,
                        repetition_penalty=1.1,
                        presence_penalty=0.5,
                        frequency_penalty=-0.25,
                        logit_bias={17: 2.5, 70000: -100.0},
                        prompt_tokens=162,
                        logprobs=1,
                        allowed_token_ids=(17, 300, 70000),
                        forbidden_token_ids=(2,),
                        bad_words=((17, 300),),
                        grammar_id=6,
                    ),
                    history=True,
                    prompt_logprobs=PromptLogprobs(first=161, token_ids=packed(300), top=1),
                ),
            ),
        ),
    ),
    "Compile": ("i0", to_worker.Compile(grammar_id=6, output=StructuredOutput.regex("[a-z]+"))),
    "Forget": ("i0", to_worker.Forget(request_ids=("req-1",), grammar_ids=(5,))),
    "Checksum": ("i0", to_worker.Checksum(checksum_id=3, slots=(4, 5))),
    "Grant": ("i1", to_worker.Grant(span=SPAN, slots=(20, 21, 22, 23, 40, 41, 42, 43))),
    "Revoke": ("i1", to_worker.Revoke(span=SPAN, positions=(4, 5, 9))),
    "Link": ("i0", to_worker.Link(instance_id="i1", incarnation=SPAN.epoch.incarnation)),
    "Pull": (
        "i1",
        to_worker.Pull(
            pull_id=8,
            source_id="i0",
            source_incarnation=BORN_0,
            source_slots=(4, 5),
            slots=(20, 21),
            checksums=pack(CHECKSUMS),
            span=SPAN,
        ),
    ),
    "Peers": ("i0", to_worker.Peers(members=(READY,), gone=("i3",))),
    "StatsQuery": ("i0", to_worker.StatsQuery(query_id=2)),
    "Shutdown": ("i0", to_worker.Shutdown()),
    # from a worker
    "WorkerReady": (
        "worker",
        from_worker.WorkerReady(
            pid=4714,
            compat=COMPAT,
            data=ENDPOINT,
            block_tokens=16,
            num_slots=64,
            eos_token_ids=(2,),
            vocab_size=320,
            max_positions=131072,
            serves=SERVES,
            computes="cuda:0",
        ),
    ),
    "StepResult": (
        "worker",
        from_worker.StepResult(
            step_id=512,
            results=(
                SeqResult(
                    request_id="req-1",
                    attempt=1,
                    status="ok",
                    token=41,
                    logprobs=TokenLogprobs(token_id=41, logprob=-0.5, rank=1, top=((41, -0.5),)),
                    prompt_logprobs=(TokenLogprobs(token_id=300, logprob=-2.5, rank=3, top=((41, -0.5),)),),
                    complete=True,
                ),
                SeqResult(
                    request_id="req-2", attempt=1, status="ok", token=3, problem="no finite numbers", is_fault=True
                ),
                SeqResult(request_id="req-3", attempt=2, status="lost", lost=("i2",)),
                SeqResult(
                    request_id="req-4", attempt=0, status="ok", token=5, problem="no thread", may_come_again=True
                ),
            ),
            compute_s=0.0125,
            counters=COUNTERS,
        ),
    ),
    "Compiled": ("worker", from_worker.Compiled(grammar_id=6, problem="the model has no tokenizer.json")),
    "Checksummed": ("worker", from_worker.Checksummed(checksum_id=3, checksums=pack(CHECKSUMS))),
    "Linked": (
        "worker",
        from_worker.Linked(instance_id="i1", incarnation=SPAN.epoch.incarnation, problem="no answer within 1.000 s"),
    ),
    "Pulled": ("worker", from_worker.Pulled(pull_id=8, problem="block 1: its checksum does not match")),
    "Revoked": ("worker", from_worker.Revoked(span=SPAN, positions=(4, 5, 9))),
    "WorkerStats": ("worker", from_worker.WorkerStats(query_id=2, counters=COUNTERS)),
    "WorkerFailed": ("worker", from_worker.WorkerFailed(reason="no memory for a pool of 1048576 bytes")),
}
"""By name, and who sends it."""
