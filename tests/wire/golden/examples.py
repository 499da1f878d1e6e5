"""One message of every type, as they could pass while i0 serves a request and borrows from i1.

What is here is a promise: a new field is added to an example with a value that is not its default, and nothing else
changes.
"""

from __future__ import annotations

from distkv.structured_output import StructuredOutput
from distkv.types import SamplingParams, TokenLogprobs
from distkv.wire.messages import data, from_worker, to_client, to_gmanager, to_rmanager, to_worker
from distkv.wire.messages.common import ANY_EPOCH, PlanEpoch, Run, SpanRef
from distkv.wire.messages.data import AttendEntry, DataMessage, SpanPart
from distkv.wire.messages.envelope import Control, Envelope
from distkv.wire.messages.from_worker import SeqResult
from distkv.wire.messages.to_client import RequestStatus, SpanStatus
from distkv.wire.messages.to_gmanager import (
    Debtor,
    DroppedMove,
    LongRequest,
    Refusal,
    RequestPlacementEntry,
    WaitingRequest,
)
from distkv.wire.messages.to_rmanager import Candidate, ReadyBlock
from distkv.wire.messages.to_worker import PromptLogprobs, RemoteSpan, Sampling, SeqStep
from tests.token_ids import packed
from tests.wire.golden.values import (
    BORN_0,
    BORN_1,
    CHECKSUMS,
    COMPAT,
    COUNTERS,
    ENDPOINT,
    GONE,
    PARAMS,
    PROFILE,
    READY,
    SERVES,
    SPAN,
    STATUS,
)

_BODIES: dict[str, tuple[str, Control]] = {
    # to a gManager
    "Join": ("i1", to_gmanager.Join(member=READY, compat=COMPAT, serves=SERVES, profile=PROFILE, swaps=True)),
    "Leave": ("i1", to_gmanager.Leave(instance_id="i1", incarnation=BORN_1)),
    "Heartbeat": (
        "i1",
        to_gmanager.Heartbeat(
            instance_id="i1",
            incarnation=BORN_1,
            seq=42,
            base=41,
            full=False,
            entries=(RequestPlacementEntry(req_id="req-1", inst_id="i1", num_blocks=8, local=False),),
            debtors=(Debtor(instance_id="i0", num_blocks=8),),
            state="draining",
            total_blocks=64,
            free_blocks=40,
            lendable_blocks=38,
            running=1,
            waiting=2,
            waiting_blocks=12,
            step_s=0.0125,
            context_tokens=900,
            prefill_tokens=1200,
            borrowed_blocks=3,
            lent_blocks=8,
            waiting_sizes=(4, 8),
            waiting_tokens=(0, 128),
            decode_base_s=0.0075,
            decode_row_s=0.0025,
            prompt_token_s=0.0005,
            output_tokens=192,
            longest=(LongRequest(request_id="req-7", movable_blocks=9, remote_blocks=3),),
            growing_blocks=5,
            max_num_seqs=64,
            dropped_moves=(DroppedMove(epoch=PlanEpoch(incarnation=BORN_0, counter=7), why="it does not run"),),
        ),
    ),
    "BorrowQuery": (
        "i0",
        to_gmanager.BorrowQuery(
            instance_id="i0",
            borrow_id="borrow-5",
            num_blocks=8,
            refusals=(Refusal(instance_id="i2", free_blocks=3),),
            exclude=("i3",),
            suspects=("i4",),
            movable_tokens=1464,
        ),
    ),
    "Frozen": (
        "i0",
        to_gmanager.Frozen(
            instance_id="i0",
            run=PlanEpoch(BORN_0, 4),
            num_blocks=6,
            spare_blocks=1,
            reason="another run has not ended here",
        ),
    ),
    "Swapped": ("i0", to_gmanager.Swapped(instance_id="i0", run=PlanEpoch(BORN_0, 4), num_blocks=6)),
    "MembersQuery": ("client-1", to_gmanager.MembersQuery(incarnation=BORN_0, version=7, changes_only=True)),
    "RedispatchQuery": (
        "i0",
        to_gmanager.RedispatchQuery(instance_id="i0", requests=(WaitingRequest(req_id="req-1", num_tokens=1464),)),
    ),
    "Locate": (
        "client-1",
        to_gmanager.Locate(request_id="req-1", num_tokens=1464, prompt_tokens=1400, exclude=("i2",)),
    ),
    # from a gManager
    "Members": (
        "gmanager",
        to_rmanager.Members(
            version=9,
            members=(GONE, READY),
            incarnation=BORN_0,
            base=7,
            gone=("i9",),
            more=True,
            newest=12,
            policy="none",
        ),
    ),
    "JoinRefused": ("gmanager", to_rmanager.JoinRefused(reason="the others serve another model", is_taken=True)),
    "HeartbeatAck": (
        "gmanager",
        to_rmanager.HeartbeatAck(
            seq=42, want_full=True, want_join=True, incarnation=BORN_0, version=9, policy="none", room_tokens=640
        ),
    ),
    "Redispatch": (
        "gmanager",
        to_rmanager.Redispatch(requests=(to_rmanager.Redispatched(req_id="req-1", inst_id="i1"),)),
    ),
    "Creditors": (
        "gmanager",
        to_rmanager.Creditors(
            borrow_id="borrow-5", candidates=(Candidate(instance_id="i1", free_blocks=38),), go_to="i2"
        ),
    ),
    "MoveKvcache": (
        "gmanager",
        to_rmanager.MoveKvcache(
            request_id="req-1",
            num_blocks=24,
            destination="i1",
            epoch=PlanEpoch(BORN_0, 3),
            debtor_incarnation=BORN_0,
            seq=42,
            gain_tokens_per_s=12.5,
        ),
    ),
    "Freeze": (
        "gmanager",
        to_rmanager.Freeze(run=PlanEpoch(BORN_0, 4), creditor_id="i1", debtor_id="i2", num_blocks=8, duration_s=5.0),
    ),
    "Swap": ("gmanager", to_rmanager.Swap(run=PlanEpoch(BORN_0, 4), num_blocks=6)),
    "Thaw": ("gmanager", to_rmanager.Thaw(run=PlanEpoch(BORN_0, 4))),
    # between rManagers
    "TryMoveKvcache": (
        "i0",
        to_rmanager.TryMoveKvcache(
            span_id=SPAN.span_id,
            request_id="req-1",
            debtor_id="i0",
            debtor_incarnation=BORN_0,
            num_blocks=8,
            ttl_s=4.0,
            waited_s=2.5,
            is_avoidable=True,
        ),
    ),
    "Granted": (
        "i1",
        to_rmanager.Granted(
            span_id=SPAN.span_id,
            epoch=SPAN.epoch,
            slots=(20, 21, 22, 23, 40, 41, 42, 43),
            ttl_s=4.0,
            serve_fraction=0.25,
            max_serve_fraction=0.5,
        ),
    ),
    "Refused": (
        "i1",
        to_rmanager.Refused(
            span_id=SPAN.span_id,
            reason="it drains",
            free_blocks=0,
            is_draining=True,
            retry_after_s=2.5,
            only_unavoidable=True,
        ),
    ),
    "BlocksReady": (
        "i0",
        to_rmanager.BlocksReady(
            span=SPAN,
            index=0,
            source_id="i0",
            source_incarnation=BORN_0,
            blocks=tuple(ReadyBlock(slot=slot, checksum=sum_) for slot, sum_ in zip((4, 5), CHECKSUMS, strict=True)),
        ),
    ),
    "Complete": ("i1", to_rmanager.Complete(span=SPAN, index=0, num_blocks=2)),
    "Complete/problem": (
        "i1",
        to_rmanager.Complete(span=SPAN, index=0, num_blocks=0, problem="a checksum did not match"),
    ),
    "Renew": ("i0", to_rmanager.Renew(renewal=17, spans=(SPAN,), ttl_s=4.0, room_blocks=6)),
    "Renewed": ("i1", to_rmanager.Renewed(renewal=17, refused=(SPAN,), ttl_s=4.0, incarnation=SPAN.epoch.incarnation)),
    "Release": ("i0", to_rmanager.Release(span=SPAN)),
    "Release/part": ("i0", to_rmanager.Release(span=SPAN, positions=(4, 5, 9))),
    "Release/any": ("i0", to_rmanager.Release(span=SpanRef(span_id=SPAN.span_id, epoch=ANY_EPOCH))),
    "Released": ("i1", to_rmanager.Released(span=SPAN, positions=(4, 5, 9))),
    "Reclaim": ("i1", to_rmanager.Reclaim(span=SPAN, deadline_s=29.5, keep_blocks=3, is_draining=True)),
    # from a client
    "Submit": (
        "client-1",
        to_rmanager.Submit(request_id="req-1", prompt="Zwölf Boxkämpfer", params=PARAMS, timeout_s=60.0, can_move=True),
    ),
    "Submit/ids": (
        "client-1",
        to_rmanager.Submit(
            request_id="req-2", prompt_token_ids=memoryview(packed(1, 300, 70000)), params=SamplingParams()
        ),
    ),
    "Cancel": ("client-1", to_rmanager.Cancel(request_id="req-1")),
    "KeepAlive": ("client-1", to_rmanager.KeepAlive()),
    "StatusQuery": ("client-1", to_rmanager.StatusQuery()),
    "ExplainQuery": ("client-1", to_gmanager.ExplainQuery(request_id="req-1")),
    "ClusterQuery": ("client-1", to_gmanager.ClusterQuery()),
    # to a client
    "Explained": (
        "i0",
        to_client.Explained(
            query="req-1",
            instance_id="i0",
            request_id="req-1",
            others=("req-1-b",),
            state="running",
            came_ago_s=12.5,
            prompt_tokens=1400,
            num_tokens=1420,
            max_tokens=64,
            block_tokens=16,
            local_blocks=40,
            debts=(to_client.DebtStatus(instance_id="i1", num_blocks=46, coming_blocks=2, spare_blocks=1),),
            lacks_blocks=1,
            growth_blocks=3,
            room_blocks=9,
            num_creditors=1,
            num_before=2,
            retry_in_s=0.5,
            history=(
                to_client.HistoryEntry(
                    happened="borrowed", ago_s=12.25, instance_id="i1", why="place", num_blocks=48, times=2
                ),
            ),
            left_out=3,
            retry_after_s=0.25,
        ),
    ),
    "Dispatched": (
        "gmanager",
        to_client.Dispatched(
            query="req-1",
            request_id="req-1",
            instance_id="i0",
            ago_s=12.75,
            num_tokens=1464,
            num_ready=2,
            load=3,
            waiting=1,
            free_tokens=640,
            excluded=1,
            serving_id="i0",
            retry_after_s=0.25,
        ),
    ),
    "ClusterState": (
        "gmanager",
        to_client.ClusterState(
            policy="contract",
            num_instances=3,
            num_ready=2,
            debts=(to_client.DebtEdge(debtor_id="i0", creditor_id="i1", num_blocks=48),),
            num_debts=1,
            lent_blocks=48,
            plans=(
                to_client.PlanStatus(
                    request_id="req-1",
                    debtor_id="i0",
                    destination="i1",
                    num_blocks=8,
                    ago_s=6.5,
                    predicted_tokens_per_s=12.5,
                    achieved_tokens_per_s=9.25,
                    dropped="it does not run",
                ),
            ),
            num_plans=7,
            runs=(
                to_client.DgfmRunStatus(
                    members="i0, i1", ago_s=40.5, predicted_blocks=16, home_blocks=0, why="i1 did not freeze"
                ),
            ),
            num_runs=3,
            retry_after_s=0.25,
        ),
    ),
    "Located": (
        "gmanager",
        to_client.Located(request_id="req-1", instance_id="i0", address="tcp://127.0.0.1:7081"),
    ),
    "Located/nowhere": ("gmanager", to_client.Located(request_id="req-1", reason="no instance is ready")),
    "TokenChunk": (
        "i0",
        to_client.TokenChunk(
            request_id="req-1",
            token_ids=(17, 300),
            text=" jagen",
            finish_reason="length",
            prompt_tokens=1400,
            logprobs=(
                TokenLogprobs(token_id=17, logprob=-0.25, rank=1, top=((17, -0.25),)),
                TokenLogprobs(token_id=300, logprob=-2.5, rank=3, top=((41, -0.5),)),
            ),
            prompt_logprobs=(None, TokenLogprobs(token_id=90, logprob=-1.5, rank=2)),
            queue_s=0.125,
        ),
    ),
    "TokenChunks": (
        "i0",
        to_client.TokenChunks(
            chunks=(
                to_client.TokenChunk(request_id="req-1", token_ids=(17,), text=" ja"),
                to_client.TokenChunk(request_id="req-2", token_ids=(300,), finish_reason="stop", stop_reason=300),
            )
        ),
    ),
    "RequestEnded": (
        "i0",
        to_client.RequestEnded(
            request_id="req-1",
            kind="refused",
            reason="",
            retryable=True,
            retry_after_s=2.5,
            needed_tokens=9000,
            pool_tokens=4096,
            go_to="i1",
        ),
    ),
    "Rejected": (
        "i0",
        to_client.Rejected(reason="malformed message: Invalid value 'Nope' - at `$.body.type`", closed=False),
    ),
    "Status": (
        "i0",
        to_client.Status(
            instance=STATUS,
            requests=(
                RequestStatus(
                    request_id="req-1",
                    instance_id="i0",
                    num_tokens=1420,
                    spans=(
                        SpanStatus(instance_id="i1", first_token=0, num_tokens=128),
                        SpanStatus(instance_id="i0", first_token=128, num_tokens=1292),
                    ),
                ),
            ),
        ),
    ),
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
            checksums=CHECKSUMS,
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
                SeqResult(request_id="req-2", attempt=1, status="ok", token=3, problem="its grammar leaves no token"),
                SeqResult(request_id="req-3", attempt=2, status="lost", lost=("i2",)),
            ),
            compute_s=0.0125,
            counters=COUNTERS,
        ),
    ),
    "Compiled": ("worker", from_worker.Compiled(grammar_id=6, problem="the model has no tokenizer.json")),
    "Checksummed": ("worker", from_worker.Checksummed(checksum_id=3, checksums=CHECKSUMS)),
    "Linked": (
        "worker",
        from_worker.Linked(instance_id="i1", incarnation=SPAN.epoch.incarnation, problem="no answer within 1.000 s"),
    ),
    "Pulled": ("worker", from_worker.Pulled(pull_id=8, problem="block 1: its checksum does not match")),
    "Revoked": ("worker", from_worker.Revoked(span=SPAN, positions=(4, 5, 9))),
    "WorkerStats": ("worker", from_worker.WorkerStats(query_id=2, counters=COUNTERS)),
    "WorkerFailed": ("worker", from_worker.WorkerFailed(reason="no memory for a pool of 1048576 bytes")),
}

ENVELOPES: dict[str, Envelope] = {
    name: Envelope(id=f"{sender}-5f0c2a9e-{number}", sender=sender, body=body, cause=f"i0-77a1b3c4-{number - 1}")
    for number, (name, (sender, body)) in enumerate(_BODIES.items(), 1)
}

HEADERS: dict[str, DataMessage] = {
    "Hello": data.Hello(
        protocol=2,
        instance_id="i0",
        incarnation=BORN_0,
        compat=COMPAT,
        expects_id="i1",
        expects_incarnation=BORN_1,
    ),
    "Welcome": data.Welcome(
        instance_id="i1", incarnation=BORN_1, slot_bytes=32768, num_slots=64, pool_token="distkv-pool-9a8b7c"
    ),
    "Denied": data.Denied(field="compat", expected=COMPAT, got="7d793037a0760186574b0282f2f435e7"),
    "AttendPlan": data.AttendPlan(
        step_id=512,
        num_rows=2,
        entries=(
            AttendEntry(request_id="req-1", span=SPAN, index=0, num_blocks=8, first_position=0, row=0, num_rows=2),
        ),
    ),
    "Attend": data.Attend(step_id=512, layer=3),
    "Partials": data.Partials(step_id=512, layer=3, stale=(0,)),
    "ReadBlocks": data.ReadBlocks(slots=(4, 5), first_byte=8192, num_bytes=4096),
    "Blocks": data.Blocks(num_blocks=2),
    "SlotsQuery": data.SlotsQuery(parts=(SpanPart(span=SPAN, index=2, num_blocks=6),), with_slots=False),
    "Slots": data.Slots(stale=(0,)),
}
