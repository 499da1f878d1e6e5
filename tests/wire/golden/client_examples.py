"""What clients send, and what is sent to them; see `examples`."""

from __future__ import annotations

from distkv.types import SamplingParams, TokenLogprobs
from distkv.wire.messages import to_client, to_gmanager, to_rmanager
from distkv.wire.messages.envelope import Control
from distkv.wire.messages.to_client import RequestStatus, SpanStatus
from tests.token_ids import packed
from tests.wire.golden.values import (
    PARAMS,
    STATUS,
)

CLIENT_BODIES: dict[str, tuple[str, Control]] = {
    # from a client
    "Submit": (
        "client-1",
        to_rmanager.Submit(
            request_id="req-1", prompt="Zwölf Boxkämpfer", params=PARAMS, timeout_s=60.0, can_move=True, waited_s=2.5
        ),
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
            full_batch=64,
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
            is_draining=True,
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
}
"""By name, and who sends it."""
