"""One message of every type, as they could pass while i0 serves a request and borrows from i1.

What is here is a promise: a new field is added to an example with a value that is not its default, and nothing else
changes.
"""

from __future__ import annotations

from distkv.wire.messages import data, to_gmanager, to_rmanager
from distkv.wire.messages.common import ANY_EPOCH, PlanEpoch, SpanRef
from distkv.wire.messages.data import AttendEntry, DataMessage, SpanPart
from distkv.wire.messages.envelope import Control, Envelope
from distkv.wire.messages.to_gmanager import (
    Debtor,
    DroppedMove,
    LongRequest,
    Refusal,
    RequestPlacementEntry,
    WaitingRequest,
)
from distkv.wire.messages.to_rmanager import Candidate, ReadyBlock
from tests.wire.golden.client_examples import CLIENT_BODIES
from tests.wire.golden.values import (
    BORN_0,
    BORN_1,
    CHECKSUMS,
    COMPAT,
    GONE,
    PROFILE,
    READY,
    SERVES,
    SPAN,
)
from tests.wire.golden.worker_examples import WORKER_BODIES

_BODIES: dict[str, tuple[str, Control]] = {
    # to a gManager
    "Join": (
        "i1",
        to_gmanager.Join(member=READY, compat=COMPAT, serves=SERVES, profile=PROFILE, swaps=True, belongs=True),
    ),
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
            arrived=("req-8", "req-9~5e1f"),
            generated_per_s=1480.5,
            wanted_back=True,
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
            request_id="req-5",
            prompt_tokens=1400,
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
        to_gmanager.RedispatchQuery(
            instance_id="i0", requests=(WaitingRequest(req_id="req-1", num_tokens=1464, prompt_tokens=1400),)
        ),
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
            settles_in_s=4.5,
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
            is_running=True,
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
            is_kept=True,
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
    "Vacant": ("i1", to_rmanager.Vacant(request_id="req-7", free_blocks=63)),
    "Reclaim": ("i1", to_rmanager.Reclaim(span=SPAN, deadline_s=29.5, keep_blocks=3, is_draining=True)),
    **CLIENT_BODIES,
    **WORKER_BODIES,
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
        out_dtype="bfloat16",
        first_post=4097,
    ),
    "Attend": data.Attend(step_id=512, layer=3),
    "Partials": data.Partials(step_id=512, layer=3, stale=(0,), out_dtype="bfloat16"),
    "PlanServed": data.PlanServed(step_id=512, stale=(0,)),
    "ReadBlocks": data.ReadBlocks(slots=(4, 5), first_byte=8192, num_bytes=4096),
    "Blocks": data.Blocks(num_blocks=2),
    "Attach": data.Attach(transport="nixl"),
    "Attached": data.Attached(transport="nixl"),
    "SlotsQuery": data.SlotsQuery(parts=(SpanPart(span=SPAN, index=2, num_blocks=6),), with_slots=False),
    "Slots": data.Slots(stale=(0,)),
}
