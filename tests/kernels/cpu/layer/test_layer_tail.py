"""The tail of a layer, and whole stacks of layers, in one native call: as the same step by step."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from distkv.kernels import AttentionMetadata, BlockTable, FusedQkv
from distkv.kernels.cpu.dispatch import TORCH, Choice, available, backend_of, choose
from distkv.kernels.cpu.huge_pages import HugePages
from distkv.kernels.cpu.layer.layer_tail import NativeLayerTail
from distkv.kernels.cpu.layer.layers import NativeLayers
from distkv.kernels.cpu.layer.linear import NativeLinear
from distkv.kernels.cpu.native_backend import NativeBackend
from distkv.kernels.layer.layer_tail import LayerTailWeights, StepwiseLayerTail
from distkv.kernels.layer.layers import Layer
from distkv.kernels.layer.linear import TorchLinear
from distkv.kernels.layer.ops import TorchOps
from distkv.types import CpuKernels
from tests.kernels.cpu.layer.test_linear import DTYPES, TOLERANCE, random
from tests.kernels.layers import layer_of

NATIVE = [level for level in available() if level != TORCH]
HIDDEN, HEADS, KV_HEADS, DIM, INNER, EPS = 40, 4, 2, 16, 56, 1e-5
QKV = (HEADS + 2 * KV_HEADS) * DIM
BLOCK, SLOTS = 16, 7


def weights_of(choice: Choice, dtype: torch.dtype, *, last: bool, biased: bool, seed: int = 0) -> LayerTailWeights:
    def linear(out: int, width: int, part: int) -> NativeLinear | TorchLinear:
        weight = random(out, width, dtype=torch.float32, seed=seed + part).div(width**0.5).to(dtype)
        bias = random(out, dtype=dtype, seed=seed + part + 50) if biased else None
        return (
            TorchLinear(weight, bias)
            if choice.native is None
            else NativeLinear(choice.native, weight, bias, HugePages())
        )

    return LayerTailWeights(
        o=linear(HIDDEN, HEADS * DIM, 1),
        mlp_norm=random(HIDDEN, dtype=dtype, seed=seed + 2),
        gate_up=linear(2 * INNER, HIDDEN, 3),
        down=linear(HIDDEN, INNER, 4),
        next_norm=random(HIDDEN, dtype=dtype, seed=seed + 5),
        next_qkv=None if last else linear(QKV, HIDDEN, 6),
        eps=EPS,
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("last", "biased"), [(False, False), (False, True), (True, False)])
@pytest.mark.parametrize("level", NATIVE)
def test_one_call_is_the_same_as_many(level: CpuKernels, last: bool, biased: bool, dtype: torch.dtype) -> None:
    choice = choose(level)
    weights = weights_of(choice, dtype, last=last, biased=biased)
    tail = backend_of(choice).layer_tail(weights)
    assert isinstance(tail, NativeLayerTail)
    for rows in (0, 1, 2, 13, 300):
        x = random(rows, HIDDEN, dtype=dtype, seed=rows)
        attended = random(rows, HEADS, DIM, dtype=torch.float32, seed=rows + 1)
        expected = StepwiseLayerTail(weights, backend_of(choice).ops)(x.clone(), attended)
        found = tail(x, attended)
        assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])
        assert found[1].shape == (rows, HIDDEN if last else QKV)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("level", NATIVE)
def test_it_is_what_torch_computes(level: CpuKernels, dtype: torch.dtype) -> None:
    """Up to roundings of sums on the way, each of which may move what follows by a unit in the last place."""
    x, attended = random(5, HIDDEN, dtype=dtype), random(5, HEADS, DIM, dtype=torch.float32, seed=1)
    plain = weights_of(choose(TORCH), dtype, last=False, biased=True)
    expected = StepwiseLayerTail(plain, TorchOps())(x, attended)
    native = backend_of(choose(level)).layer_tail(weights_of(choose(level), dtype, last=False, biased=True))
    for ours, theirs in zip(native(x.clone(), attended), expected, strict=True):
        assert (ours.double() - theirs.double()).abs().max() <= 4 * TOLERANCE[dtype] * theirs.double().abs().max()


def test_without_the_library_it_goes_step_by_step() -> None:
    choice = choose(TORCH)
    weights = weights_of(choice, torch.float32, last=True, biased=False)
    assert isinstance(backend_of(choice).layer_tail(weights), StepwiseLayerTail)


def stack_of(choice: Choice, dtype: torch.dtype, *, norm: bool) -> list[Layer]:
    backend = NativeBackend(choice.native) if choice.native is not None else None
    assert backend is not None
    layers = []
    for index, window in enumerate((None, 9, None)):
        k, v = (random(SLOTS, KV_HEADS, BLOCK, DIM, dtype=dtype, seed=90 + 2 * index + half) for half in (0, 1))
        norms = tuple(random(DIM, dtype=dtype, seed=80 + index + half) if norm else None for half in (0, 1))
        weights = weights_of(choice, dtype, last=index == 2, biased=norm, seed=10 * index)
        layers.append(Layer(*norms, layer_of(backend, k, v), window, weights))
    return layers


def step_by_step(
    backend: NativeBackend,
    layers: list[Layer],
    x: Tensor,
    qkv: FusedQkv,
    metadata: AttentionMetadata,
    places: Tensor,
) -> Tensor:
    """The residual stream goes on for all rows; returns the normed hidden states of all."""
    choice = choose(backend.name)  # type: ignore[arg-type]
    found = qkv.rows
    for layer in layers:
        now = FusedQkv(found, HEADS, qkv.cos, qkv.sin, layer.q_norm, layer.k_norm, EPS)
        q = backend.store(now, layer.kv, places // BLOCK, places % BLOCK)
        out, _ = backend.attend(q, layer.kv, metadata, 0.3, layer.window)
        x, found = StepwiseLayerTail(layer.tail, backend_of(choice).ops)(x, out)
    return found


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("level", NATIVE)
def test_all_layers_in_one_call_are_the_same_as_each_by_itself(
    level: CpuKernels, dtype: torch.dtype, norm: bool
) -> None:
    choice = choose(level)
    assert choice.native is not None
    backend = NativeBackend(choice.native)
    # Two sequences: one goes on behind 20 keys with 5 rows, one has a row behind 33 keys.
    blocks = (BlockTable((4, 1), (0, 16), 25, BLOCK), BlockTable((0, 6, 2), (0, 16, 32), 34, BLOCK))
    positions = torch.tensor([20, 21, 22, 23, 24, 33])
    places = torch.tensor([1 * BLOCK + offset for offset in range(4, 9)] + [2 * BLOCK + 1])
    angle = random(6, DIM // 2, dtype=torch.float32, seed=7).repeat(1, 2)
    results = []
    for whole in (False, True):
        layers = stack_of(choice, dtype, norm=norm)
        metadata = AttentionMetadata((range(0, 5), range(5, 6)), blocks, positions)
        x, found = random(6, HIDDEN, dtype=dtype), random(6, QKV, dtype=dtype, seed=1)
        qkv = FusedQkv(found, HEADS, angle.cos().to(dtype), angle.sin().to(dtype), eps=EPS)
        if whole:
            wanted = torch.tensor([4, 5])
            run = backend.layers_of(layers, 0.3)
            assert isinstance(run, NativeLayers)
            results.append(run(x, qkv, metadata, places // BLOCK, places % BLOCK, wanted))
        else:
            results.append(step_by_step(backend, layers, x, qkv, metadata, places)[[4, 5]])
        results.append(torch.stack([layer.kv.keys(slice(None)) for layer in layers]))
        results.append(torch.stack([layer.kv.values(slice(None)) for layer in layers]))
    # After the last attention it computes only the wanted rows, and sums of fewer rows may round differently.
    hidden, keys, values = zip(results[:3], results[3:], strict=True)
    assert (hidden[0].double() - hidden[1].double()).abs().max() <= TOLERANCE[dtype] * hidden[0].abs().max()
    assert torch.equal(*keys) and torch.equal(*values)


def test_weights_of_others_are_not_its_business() -> None:
    choice = choose(NATIVE[0]) if NATIVE else pytest.skip("the native library is not built")
    layers = stack_of(choice, torch.float32, norm=False)
    plain = weights_of(choose(TORCH), torch.float32, last=True, biased=False)
    backend = backend_of(choice)
    assert backend.layers_of([*layers[:2], Layer(None, None, layers[2].kv, None, plain)], 0.3) is None
    assert isinstance(backend.layer_tail(plain), StepwiseLayerTail)
