"""Values that several of the examples have in common."""

from __future__ import annotations

from distkv.structured_output import StructuredOutput
from distkv.types import SamplingParams
from distkv.wire.messages.common import DataEndpoint, Epoch, Member, SpanRef
from distkv.wire.messages.counters import Counters
from distkv.wire.messages.profile import LinkProfile, Point, Profile
from distkv.wire.messages.to_client import InstanceStatus, SlotCounts

BORN_0, BORN_1 = 1763690000000000000, 1763690001000000000
COMPAT = "5d41402abc4b2a76b9719d911017c592"
SERVES = "model qwen3/1f2e3d4c, weights 00aa11bb, dtype bfloat16, block size 16"
SPAN = SpanRef(span_id="span-i0-18a3f-7", epoch=Epoch(incarnation=BORN_1, counter=3))
CHECKSUMS = (0xFEDCBA9876543210, 0x0123456789ABCDEF)
ENDPOINT = DataEndpoint(
    address="127.0.0.1:7091",
    host_key="0f1e2d3c/4026531836/1000",
    slot_bytes=32768,
    num_slots=64,
    transports={"unix": {"name": "distkv-data-1f2e3d"}, "shm": {"pid": 4714, "fd": 11}},
)
GONE = Member(instance_id="i0", incarnation=BORN_0, address="tcp://127.0.0.1:7081", state="dead", left=True)
READY = Member(
    instance_id="i1",
    incarnation=BORN_1,
    address="tcp://127.0.0.1:7082",
    state="ready",
    pid=4713,
    worker_pid=4714,
    block_tokens=16,
    total_blocks=64,
    lendable_blocks=62,
    free_blocks=40,
    data=ENDPOINT,
    heartbeat_s=0.5,
    max_model_len=131072,
    vocabulary="7c1f0e59a2b3d486",
)
PROFILE = Profile(
    model="Llama-3.2-1B",
    device="cpu",
    layers=16,
    block_tokens=16,
    query_bytes=4096,
    partial_bytes=8320,
    kv_bytes=2048,
    step=(Point(1, 0.0625), Point(16, 0.125)),
    attention=(Point(1024, 0.0078125), Point(32768, 0.25)),
    prefill=(Point(16, 0.125), Point(512, 2.0)),
    prefill_attention=(Point(16, 0.0000625), Point(512, 0.001)),
    serving=(Point(1024, 0.0078125), Point(32768, 0.25)),
    serving_prefill=(Point(16, 0.0000625), Point(512, 0.001)),
    links={"host": LinkProfile(round_trip_s=0.0001, bytes_per_s=2e9, read_bytes_per_s=4e9, busy_round_trip_s=0.0005)},
    remote_step=(Point(1, 0.07), Point(16, 0.14)),
    remote_prefill=(Point(16, 0.13), Point(512, 2.1)),
    serving_busy_times=1.25,
    crowded_times=1.125,
    crowded_step_s=0.002,
    serving_share=0.75,
    serving_step_s=0.001,
    serves=SERVES,
    kernels="avx512bf16",
    threads=2,
    versions={"distkv": "0.1.0"},
    date="2026-11-22",
    within=0.9375,
)
PARAMS = SamplingParams(
    max_tokens=64,
    temperature=0.7,
    top_p=0.95,
    top_k=40,
    seed=7,
    stop=("\n\n",),
    stop_token_ids=(2,),
    ignore_eos=True,
    min_p=0.05,
    repetition_penalty=1.1,
    presence_penalty=0.5,
    frequency_penalty=-0.25,
    logit_bias={17: 2.5, 70000: -100.0},
    logprobs=1,
    prompt_logprobs=0,
    min_tokens=4,
    bad_words=("Boxkampf",),
    allowed_token_ids=(17, 300, 70000),
    skip_special_tokens=False,
    include_stop_str_in_output=True,
    structured_output=StructuredOutput.regex("[a-z]+"),
)
COUNTERS = Counters(
    attend_queries=5120,
    serve_s=1.5,
    step_serve_s=0.5,
    query_bytes=65536,
    kv_bytes=163840,
    fetched_blocks=96,
    fetched_bytes=3145728,
    redispatched=3,
    checksum_refusals=1,
    malformed_messages=2,
    attend_wait_s=0.75,
    steps=512,
    model_s=6.5,
    mask_s=0.25,
)
STATUS = InstanceStatus(
    instance_id="i0",
    state="ready",
    pid=4711,
    worker_pid=4712,
    block_tokens=16,
    blocks=SlotCounts(total=64, free=10, local=40, lent=10, reserved=4),
    borrowed_blocks=8,
    running=2,
    waiting=1,
    serve_fraction=0.25,
    computes="cuda:0",
    counters=Counters(
        attend_queries=5120,
        serve_s=1.5,
        step_serve_s=0.5,
        query_bytes=65536,
        kv_bytes=163840,
        recomputed_tokens=32,
        preemptions=1,
        moved_blocks=8,
        recalled_blocks=2,
        borrows=3,
        avoidable_borrows=1,
        refusals=3,
        lease_expiries=1,
        reclaimed_blocks=7,
        dgfm_runs=2,
        swapped_blocks=12,
        planned_moves=3,
        planned_blocks=24,
        infeasible_moves=1,
        checksum_refusals=2,
        malformed_messages=4,
        prompt_tokens=1400,
        generation_tokens=96,
        attended_tokens=90000,
        remote_attended_tokens=30000,
        attend_wait_s=0.75,
        steps=512,
        remote_steps=64,
        model_s=6.5,
        plan_s=0.0625,
    ),
)
