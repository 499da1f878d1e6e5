"""Flags of `vllm serve`, arguments of `LLM` too, that have no meaning here: why, and what to do instead."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from distkv.errors import ConfigError


@dataclass(frozen=True)
class WithoutMeaning:
    """so_anyway: values that ask for what is so here anyway, and may stand; "" is the flag without a value."""

    why: str
    instead: str
    so_anyway: frozenset[str] = frozenset()


LEAVE_OUT = "leave it out"
LEFT_OUT = WithoutMeaning("", "", frozenset([""]))
_GROUPS: Mapping[tuple[str, str], str] = {
    (
        "one process computes for an instance",
        "use --data-parallel-size for several instances, whose KV memory is one pool",
    ): """--tensor-parallel-size=1 --pipeline-parallel-size=1 --decode-context-parallel-size=1
        --prefill-context-parallel-size=1 --enable-expert-parallel --all2all-backend --enable-eplb --eplb-config
        --num-redundant-experts --expert-placement-strategy --enable-dbo --dbo-decode-token-threshold
        --dbo-prefill-token-threshold --distributed-executor-backend=mp|uni --max-parallel-loading-workers
        --disable-custom-all-reduce --worker-cls=auto --worker-extension-cls --ray-workers-use-nsight
        --disable-nccl-for-dp-synchronization""",
    (
        "distkv up and serve start a cluster on one machine",
        "on several start distkv-gmanager, distkv-instance and distkv-gateway: docs/operations.md, Several hosts",
    ): """--data-parallel-rank --data-parallel-start-rank --data-parallel-size-local --data-parallel-address
        --data-parallel-rpc-port --data-parallel-backend=mp --data-parallel-hybrid-lb --data-parallel-external-lb
        --headless --nnodes=1 --node-rank=0 --master-addr --master-port""",
    ("a gateway is one process", "start more of them with distkv-gateway"): "--api-server-count=1",
    ("there are no LoRA adapters", "give a checkpoint into which the adapter is merged"): """--enable-lora
        --lora-modules --max-loras --max-lora-rank --max-cpu-loras --lora-dtype --lora-extra-vocab-size
        --fully-sharded-loras --default-mm-loras""",
    ("there is no speculative decoding", LEAVE_OUT): """--speculative-config --speculative-model
        --num-speculative-tokens --num-lookahead-slots""",
    ("there is no prefix caching", LEAVE_OUT): """--enable-prefix-caching --no-enable-prefix-caching=
        --prefix-caching-hash-algo""",
    (
        "long prompts are always computed in parts",
        "bound the parts with --max-num-batched-tokens",
    ): "--enable-chunked-prefill= --no-enable-chunked-prefill",
    (
        "weights are not quantized",
        "give a checkpoint in float32, bfloat16 or float16; --kv-cache-dtype fp8 halves the KV cache on GPUs",
    ): "--quantization --calculate-kv-scales",
    ("models are local directories, and nothing is downloaded", "give the directory of what you want"): """--revision
        --code-revision --tokenizer-revision --download-dir --hf-token --load-format=auto|safetensors
        --config-format=auto|hf --hf-config-path --model-loader-extra-config --ignore-patterns --use-tqdm-on-load
        --safetensors-load-strategy --model-impl=auto --pt-load-map-location""",
    ("the checkpoint's config.json is obeyed", "change it there"): """--hf-overrides --rope-scaling --rope-theta
        --disable-sliding-window --override-attention-dtype""",
    (
        "models need no code of their own, and none is run",
        LEAVE_OUT,
    ): "--trust-remote-code --no-trust-remote-code=",
    ("the tokenizer is the one in the model's directory", "put the other's files there"): """--tokenizer
        --tokenizer-mode=auto|hf --skip-tokenizer-init""",
    (
        "every request has its own seed",
        "leave it out, and send the same `seed` with requests whose answers are to be the same",
    ): "--seed",
    (
        "weights lie where they are computed with",
        "leave it out, and give an instance a device that has room for them",
    ): "--cpu-offload-gb=0",
    ("KV cache is lent to other instances, never swapped or offloaded", LEAVE_OUT): """--swap-space=0
        --preemption-mode --kv-transfer-config --kv-events-config --kv-offloading-size
        --kv-offloading-backend --kv-sharing-fast-prefill --disable-hybrid-kv-cache-manager --mamba-cache-dtype
        --mamba-ssm-cache-dtype --mamba-block-size""",
    (
        "the KV pool's size is given otherwise",
        "use --kv-tokens or --kv-cache-memory-bytes",
    ): "--num-gpu-blocks-override",
    ("kernels and CUDA graphs are prepared as the device needs", LEAVE_OUT): """--enforce-eager --no-enforce-eager=
        --compilation-config --cuda-graph-sizes --cudagraph-capture-sizes --max-cudagraph-capture-size
        --max-seq-len-to-capture --disable-cascade-attn --additional-config --enable-sleep-mode
        --attention-config --kernel-config --optimization-level""",
    ("prompts are text", LEAVE_OUT): """--limit-mm-per-prompt --mm-processor-kwargs --mm-processor-cache-gb
        --mm-processor-cache-type --mm-encoder-tp-mode --mm-encoder-attn-backend --media-io-kwargs
        --allowed-local-media-path --allowed-media-domains --interleave-mm-strings --enable-mm-embeds
        --disable-mm-preprocessor-cache --disable-chunked-mm-input --skip-mm-profiling --video-pruning-rate
        --enable-prompt-embeds --io-processor-plugin""",
    ("tools can always be called", "say with --tool-call-parser how the model writes calls"): """
        --enable-auto-tool-choice= --no-enable-auto-tool-choice --tool-parser-plugin --tool-server""",
    ("llguidance follows schemas and grammars", LEAVE_OUT): """--guided-decoding-backend=auto|guidance
        --guided-decoding-disable-fallback= --guided-decoding-disable-any-whitespace
        --guided-decoding-disable-additional-properties --structured-outputs-config""",
    ("models generate text", LEAVE_OUT): """--task=auto|generate --runner=auto|generate --convert=auto|none
        --pooler-config --override-pooler-config""",
    ("requests are served in the order in which they came", LEAVE_OUT): """--scheduling-policy=fcfs
        --max-num-partial-prefills=1 --max-long-partial-prefills=1 --long-prefill-token-threshold=0 --scheduler-cls
        --async-scheduling= --no-async-scheduling --num-scheduler-steps=1 --scheduler-delay-factor=0
        --stream-interval=1""",
    ("logs have neither prompts nor outputs", "choose how much is logged with --log-level"): """--disable-log-requests=
        --no-disable-log-requests --enable-log-requests --no-enable-log-requests= --enable-log-outputs
        --enable-log-deltas --max-log-len --log-config-file --log-error-stack""",
    ("logs have no statistics, /metrics has them", LEAVE_OUT): """--disable-log-stats --aggregate-engine-logging
        --enable-logging-iteration-details""",
    ("the gateway logs a line for each HTTP request", "--log-level warning leaves it out, and other lines too"): """
        --disable-uvicorn-access-log --disable-access-log-for-endpoints""",
    ("thoughts stay in the text of an answer", LEAVE_OUT): """--reasoning-parser
        --reasoning-parser-plugin --reasoning-config --enable-reasoning""",
    ("there is no export of traces", "scrape /metrics"): """--otlp-traces-endpoint --collect-detailed-traces
        --show-hidden-metrics-for-version --enable-server-load-tracking --kv-cache-metrics""",
    ("the gateway does not have that", "put an HTTP proxy in front of it"): """--uds --root-path --middleware
        --allow-credentials --allowed-methods --allowed-headers --ssl-ca-certs --ssl-cert-reqs=0 --ssl-ciphers
        --enable-ssl-refresh --disable-fastapi-docs --h11-max-incomplete-event-size --h11-max-header-count""",
    ("answers come in one form", LEAVE_OUT): """--response-role=assistant
        --chat-template-content-format=auto --return-tokens-as-token-ids --enable-prompt-tokens-details
        --enable-force-include-usage --enable-request-id-headers --trust-request-chat-template
        --default-chat-template-kwargs --exclude-tools-when-tool-choice-none --enable-tokenizer-info-endpoint=
        --max-logprobs=20 --logprobs-mode=raw_logprobs --fingerprint-mode --fingerprint-value""",
    (
        "sampling defaults are those of the checkpoint's generation_config.json",
        "change it, or send them with requests",
    ): "--override-generation-config",
    (
        "no code of others chooses tokens",
        "send logit_bias, allowed_token_ids, bad_words or structured_outputs with requests",
    ): "--logits-processors --logits-processor-pattern",
    ("the configuration is TOML, with one flag for all", "use --config"): "--json-arg",
}
"""By why and what instead: flags, behind = the values that may stand."""


def _flags() -> Iterator[tuple[str, WithoutMeaning]]:
    for (why, instead), words in _GROUPS.items():
        for word in words.split():
            flag, equals, values = word.partition("=")
            yield flag, WithoutMeaning(why, instead, frozenset(values.split("|")) if equals else frozenset())


WITHOUT_MEANING: Mapping[str, WithoutMeaning] = dict(_flags())


def is_so_anyway(name: str, value: object) -> bool:
    """Whether an argument of vLLM's `LLM` asks for what is so here anyway; false if it is none of these.

    Raises ConfigError for one that has no meaning here, or has another name.
    """
    if name == "data_parallel_size":
        raise ConfigError(name, "instances are such replicas, and their KV memory is one pool", "use instances=N")
    found = WITHOUT_MEANING.get(_flag(name))
    if found is None:
        return False
    if value is False:
        word, allowed = "", WITHOUT_MEANING.get(_flag(f"no_{name}"), LEFT_OUT).so_anyway
    else:
        word, allowed = "" if value is True else str(value), found.so_anyway
    if value is None or word in allowed:
        return True
    instead = found.instead.replace("--data-parallel-size", "instances=N")
    raise ConfigError(name, found.why, re.sub(r"--([a-z-]+)", lambda flag: flag[1].replace("-", "_"), instead))


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
