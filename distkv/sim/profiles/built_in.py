"""Built-in profiles by name: `a100-llama2-7b`, `h200-llama2-70b-tp8`, `a100-llama2-7b-tp8-pp4`."""

from __future__ import annotations

import re

from distkv.config import nearest
from distkv.errors import ConfigError
from distkv.sim.profiles.hardware import GPUS, GPUS_PER_HOST, NETWORKS, LinkClass, NetworkName
from distkv.sim.profiles.roofline import Instance, valid_tensor_parallel
from distkv.sim.profiles.shapes import SHAPES
from distkv.wire.messages.profile import Curve, LinkProfile, Point, Profile

BLOCK_TOKENS = 16
NAMES = tuple(f"{gpu}-{model}" for gpu in GPUS for model in SHAPES)
"""Each may be followed by -tpN, GPUs of a host that share a layer, and -ppN, hosts that share the layers."""
_NAME = re.compile(r"(?P<base>.+?)(?:-tp(?P<tp>[0-9]{1,2}))?(?:-pp(?P<pp>[0-9]{1,2}))?")
_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
_CHUNKS = (1, 16, 64, 256, 512, 1024, 2048, 4096, 8192, 16_384)
_TOKENS = 1_000_000


def built_in(name: str, *, network: NetworkName | None = None) -> Profile:
    """What a roofline says of a GPU and a model. network: between hosts; if not given, that of the paper that used the
    GPU. Raises ConfigError naming `profile`."""
    one = instance(name, network=network)
    shape = one.shape
    batches = _with(_BATCHES, one.ridge_rows * one.stages)
    chunks, queries = _with(_CHUNKS, one.ridge_rows), _with(_CHUNKS, one.attention_ridge_rows)
    return Profile(
        model=shape.name,
        device=one.gpu.name if one.gpus == 1 else f"{one.gpus} x {one.gpu.name}",
        layers=shape.layers,
        block_tokens=BLOCK_TOKENS,
        query_bytes=one.query_bytes,
        partial_bytes=one.partial_bytes,
        kv_bytes=shape.kv_bytes,
        step=_curve({batch: one.step_s(batch) for batch in batches}),
        attention=_curve({_TOKENS: one.attention_s(_TOKENS)}),
        prefill=_curve({tokens: one.prefill_s(tokens) for tokens in chunks}),
        prefill_attention=_curve({tokens: one.prefill_attention_s(tokens) for tokens in queries}),
        serving=_curve({tokens: one.remote_s + one.attention_s(tokens) for tokens in (1, _TOKENS)}),
        serving_prefill=_curve({tokens: one.prefill_attention_s(tokens) for tokens in queries}),
        remote_step=_curve({batch: one.step_s(batch) + one.remote_s for batch in batches}),
        remote_prefill=_curve({tokens: one.prefill_s(tokens) + one.remote_s for tokens in chunks}),
        links={"host": _link(one.link(one.gpu.nvlink)), "network": _link(one.link(NETWORKS[one.network]))},
        kernels="roofline",
    )


def kv_tokens(name: str) -> int:
    """KV tokens that such an instance has memory for; 0 where the weights do not fit. Raises ConfigError."""
    return instance(name).kv_tokens()


def instances_per_host(name: str) -> int:
    """Instances for which a host has GPUs. Raises ConfigError naming `profile`."""
    return GPUS_PER_HOST // instance(name).tensor_parallel


def network_shared(name: str, *, network: NetworkName | None = None) -> bool:
    """Whether instances of a host share its network (001 §7.1), or each GPU has its own (004 §5.1).

    Raises ConfigError naming `profile`.
    """
    return NETWORKS[instance(name, network=network).network].shared


def over_all(name: str, gpus: int) -> str:
    """The name of one instance over so many GPUs, as vLLM-single (000 Fig. 8): tensor-parallel within a host, pipelined
    over hosts. name: of any instance of the model. gpus: as many as can share a layer, or whole hosts, over which the
    layers can be divided; ConfigError otherwise."""
    one = instance(name)
    width = min(gpus, GPUS_PER_HOST)
    stages, rest = divmod(gpus, width) if width else (0, 1)
    widths = valid_tensor_parallel(one.gpu, one.shape)
    if rest or width not in widths or one.shape.layers % stages:
        raise ConfigError(
            "gpus",
            f"one {one.shape.name} takes {', '.join(map(str, widths))} GPUs of a host, or whole hosts of "
            f"{GPUS_PER_HOST} that divide its {one.shape.layers} layers, not {gpus}",
        )
    return f"{_parts(name)['base']}-tp{width}" + (f"-pp{stages}" if stages > 1 else "")


def instance(name: str, *, network: NetworkName | None = None) -> Instance:
    """The instance of that name. Raises ConfigError naming `profile`."""
    match = _parts(name)
    gpu_name, _, model = match["base"].partition("-")
    gpu, shape = GPUS[gpu_name], SHAPES[model]
    width = int(match["tp"] or shape.tensor_parallel)
    stages = int(match["pp"] or 1)
    if width not in (widths := valid_tensor_parallel(gpu, shape)):
        raise ConfigError("profile", f"{name}: tp is {' or '.join(map(str, widths))}, not {width}")
    if not stages or shape.layers % stages:
        raise ConfigError("profile", f"{name}: pp divides {shape.layers} layers, {stages} does not")
    return Instance(gpu=gpu, shape=shape, tensor_parallel=width, stages=stages, network=network or gpu.network)


def _parts(name: str) -> re.Match[str]:
    match = _NAME.fullmatch(name)
    base = match["base"] if match else name
    if match is None or base not in NAMES:
        known = f"{{{'|'.join(GPUS)}}}-{{{'|'.join(SHAPES)}}}"
        raise ConfigError(
            "profile",
            f"there is no built-in profile {name!r} and no such file; built in are {known}",
            nearest(base, NAMES, "distkv profile writes files"),
        )
    return match


def _with(sizes: tuple[int, ...], kink: float) -> list[int]:
    """Sizes of a curve's points, with the one where the roofline bends."""
    return sorted({*sizes, round(kink)})


def _curve(seconds: dict[int, float]) -> Curve:
    return tuple(Point(size, seconds[size]) for size in sorted(seconds))


def _link(link: LinkClass) -> LinkProfile:
    return LinkProfile(
        round_trip_s=link.round_trip_s, bytes_per_s=link.bytes_per_s, read_bytes_per_s=link.read_bytes_per_s
    )
