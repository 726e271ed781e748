"""Every op kind in torch computes what NumPy does, on tensors and traced into a module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from op_cases import CASES, fp8, noise
from small_networks import OPS as OPS_ALONE

from iossim.backends.numpy_reference.backend import evaluate_graph
from iossim.execution.backend import BackendError
from iossim.execution.made_inputs import made_arrays
from iossim.ir.constants import ArrayConstant, dtype_of
from iossim.ir.graph import Graph, Node
from iossim.ir.op import OPS, Array, Op, op_class
from iossim.ir.ops import functions, reduce
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.conv_transpose import ConvTranspose
from iossim.ir.ops.foreign import Foreign
from iossim.ir.ops.functions import Nary, Unary
from iossim.ir.ops.nary import Add
from iossim.ir.ops.pool import AveragePool, MaxPool
from iossim.ir.ops.quantize import ScaledMatMul
from iossim.ir.ops.recurrent import Gru, Lstm
from iossim.ir.ops.reduce import Reduce
from iossim.ir.ops.reshape import Transpose
from iossim.ir.ops.resize import Resize
from iossim.ir.ops.slice import Concat, Slice
from iossim.ir.ops.unary import Clip, Relu
from iossim.ir.types import DType, Precision, TensorType

pytest.importorskip("torch", reason="needs PyTorch; pip install 'iossim[torch]'")

import torch

from iossim.backends.torch_cuda.operators import apply, covers, products
from iossim.backends.torch_cuda.program import input_tensors, torch_module
from iossim.backends.torch_cuda.tensors import arithmetic, to_array, to_tensor

pytestmark = pytest.mark.torch
#: Networks of one op each; torch's attention has no soft cap, and takes no mask of truth values here.
NETWORKS = {name: build() for name, build in OPS_ALONE.items() if "soft cap" not in name}


def types_of(arrays: Sequence[Array]) -> list[TensorType]:
    return [TensorType(array.shape, dtype_of(array)) for array in arrays]


def by_torch(op: Op, arrays: Sequence[Array]) -> list[Array]:
    """Directly on tensors; the module must give the very same."""
    tensors = [to_tensor(array) for array in arrays]
    with arithmetic(Precision.FP32):
        direct = [to_array(tensor) for tensor in apply(op, tensors, types_of(arrays))]
    names = [f"x{index}" for index in range(len(arrays))]
    types = types_of(arrays)
    node = Node("op", op, tuple(names), tuple(f"y{index}" for index in range(len(direct))))
    weights = {name: ArrayConstant(array) for name, array in zip(names[1:], arrays[1:], strict=True)}
    graph = Graph.create({"x0": types[0]}, node.outputs, [node], weights)
    with arithmetic(Precision.FP32):
        traced = torch_module(graph)(*input_tensors(graph, {"x0": arrays[0]}, "cpu"))
    for array, tensor in zip(direct, traced, strict=True):
        np.testing.assert_array_equal(array, to_array(tensor))
    return direct


def check(op: Op, arrays: Sequence[Array], tolerance: float = 2e-5) -> None:
    made = by_torch(op, arrays)
    expected = op.evaluate(arrays)
    assert len(made) == len(expected)
    for array, other in zip(made, expected, strict=True):
        assert array.dtype == other.dtype
        np.testing.assert_allclose(
            array.astype(np.float64), other.astype(np.float64), rtol=tolerance, atol=tolerance, strict=True
        )


@pytest.mark.parametrize(("op", "arrays"), CASES, ids=lambda value: getattr(value, "kind", ""))
def test_an_op_computes_what_numpy_does(op: Op, arrays: list[Array]) -> None:
    check(op, arrays, 1e-4)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_op_of_small_networks(name: str) -> None:
    graph = NETWORKS[name].graph
    inputs = made_arrays(graph.inputs, graph.types)
    with arithmetic(Precision.FP32):
        made = torch_module(graph)(*input_tensors(graph, inputs, "cpu"))
    for array, tensor in zip(evaluate_graph(graph, inputs).values(), made, strict=True):
        assert to_array(tensor).dtype == array.dtype
        np.testing.assert_allclose(to_array(tensor), array, rtol=1e-4, atol=1e-4, strict=True)


def test_every_kind_is_a_case_but_those_that_only_onnx_computes() -> None:
    op_class("relu")  # imports every op
    kinds = {node.op.kind for network in NETWORKS.values() for node in network.graph.nodes}
    assert kinds | {op.kind for op, _ in CASES} == set(OPS.own()) - {"foreign"}
    assert "has no function in torch" in covers(Foreign("Det", 17, "", (), ()), [TensorType((2,))])
    assert {op.function for op, _ in CASES if isinstance(op, Unary)} == set(functions.UNARY)
    assert {op.function for op, _ in CASES if isinstance(op, Nary)} == set(functions.NARY)
    assert {op.function for op, _ in CASES if isinstance(op, Reduce)} == set(reduce.FUNCTIONS)


def test_a_kind_without_a_function_is_computed_on_the_host() -> None:
    @dataclass(frozen=True)
    class Unheard(Relu):
        kind = ""  # not registered

    types = [TensorType((2,))]
    assert covers(Unheard(), types) == "it has no function in torch"
    x = noise(0, 2)
    (made,) = apply(Unheard(), [to_tensor(x)], types)
    np.testing.assert_array_equal(to_array(made), np.maximum(x, 0))


@st.composite
def windows(draw: st.DrawFn) -> tuple[list[tuple[int, ...]], tuple[int, ...], tuple[int, ...]]:
    """Kernel, strides and dilations, pads below the window's extent, and an input size that they fit."""
    rank = draw(st.integers(1, 3))
    parts = [tuple(draw(st.integers(1, top)) for _ in range(rank)) for top in (3, 3, 2)]
    extent = [d * (k - 1) + 1 for k, d in zip(parts[0], parts[2], strict=True)]
    pads = tuple(draw(st.integers(0, min(2, e - 1))) for e in extent + extent)
    size = tuple(draw(st.integers(e, e + 4)) for e in extent)
    return parts, pads, size


@given(windows(), st.booleans(), st.booleans(), st.sampled_from([MaxPool, AveragePool]), st.integers(0, 2**16))
def test_windows_of_pooling(window, ceil_mode, include_pad, kind, seed) -> None:
    (kernel, strides, dilations), pads, size = window
    if kind is MaxPool:
        op: Op = MaxPool(kernel, strides, pads, dilations, ceil_mode)
    else:
        op = AveragePool(kernel, strides, pads, ceil_mode, include_pad, dilations)
    check(op, [noise(seed, 2, 2, *size)])


@given(windows(), st.integers(1, 2), st.integers(1, 2), st.booleans(), st.integers(0, 2**16))
def test_windows_of_convolutions(window, groups, per_group, bias, seed) -> None:
    (kernel, strides, dilations), pads, size = window
    weight = noise(seed + 1, 2 * groups, per_group, *kernel)
    arrays = [noise(seed, 2, groups * per_group, *size), weight, *([noise(seed + 2, len(weight))] if bias else [])]
    check(Conv(strides, pads, dilations, groups), arrays)


@given(windows(), st.integers(1, 2), st.integers(0, 2), st.booleans(), st.integers(0, 2**16))
def test_windows_of_transposed_convolutions(window, groups, extra, bias, seed) -> None:
    (kernel, strides, dilations), pads, size = window
    op = ConvTranspose(strides, pads, dilations, groups, (extra,) * len(kernel))
    weight = noise(seed + 1, 2 * groups, 3, *kernel)
    arrays = [noise(seed, 2, 2 * groups, *size), weight, *([noise(seed + 2, 3 * groups)] if bias else [])]
    assume(min(op.infer(types_of(arrays))[0].shape) > 0)
    check(op, arrays)


COORDINATES = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric"]
ROUNDINGS = ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"]


@settings(max_examples=40, suppress_health_check=[HealthCheck.filter_too_much])
@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 9)), min_size=1, max_size=3),
    st.booleans(),
    st.sampled_from(["nearest", "linear", "cubic"]),
    st.sampled_from(COORDINATES),
    st.sampled_from(ROUNDINGS),
)
def test_resizing_is_what_onnx_means(axes, by_size, mode, coordinates, rounding) -> None:
    x = noise(3, 1, 2, *(size for size, _ in axes))
    sizes = (1, 2, *(wanted for _, wanted in axes))
    scales = (1.0, 1.0, *(wanted / 2 for _, wanted in axes))
    op = Resize(() if by_size else scales, sizes if by_size else (), mode, coordinates, rounding)
    assume(min(op.infer(types_of([x]))[0].shape) > 0)
    check(op, [x], 1e-4)


@given(
    st.lists(
        st.tuples(st.integers(-8, 8), st.integers(-20, 20), st.sampled_from([-3, -1, 1, 2])), min_size=1, max_size=3
    ),
    st.permutations(range(3)),
    st.integers(0, 2**16),
)
def test_slices(parts, axes, seed) -> None:
    x = noise(seed, 4, 5, 6)
    starts, ends, steps = zip(*parts, strict=True)
    op = Slice(starts, ends, tuple(axes[: len(parts)]), steps)
    assume(min(op.infer(types_of([x]))[0].shape) > 0)
    check(op, [x])


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_half_precision_keeps_its_element_type(dtype: str) -> None:
    element = Precision.named(dtype).storage.numpy
    tolerance = 2e-3 if dtype == "fp16" else 2e-2
    for op, shapes in [(Conv((1, 1), (1,) * 4), [(1, 4, 5, 5), (3, 4, 3, 3), (3,)]), (Add(), [(2, 3), (2, 3)])]:
        check(op, [noise(index, *shape).astype(element) for index, shape in enumerate(shapes)], tolerance)


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("each", [True, False])
def test_products_of_fp8_by_torchs_own(each: bool, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a GPU has tensor cores for them; torch has the function on CPUs, too. Other sizes are dequantised."""
    monkeypatch.setattr(products, "multiplies_fp8", lambda weight: isinstance(weight, torch.Tensor))
    own, half = Precision.named(dtype).storage, {"fp32": 1e-5, "fp16": 2e-3, "bf16": 2e-2}[dtype]
    for columns, is_own in ((48, True), (40, False)):
        scales = np.linspace(0.01, 0.02, columns) if each else np.array(0.02)
        arrays = [fp8(2, 3, 32), np.array([0.03]).astype(own.numpy), fp8(32, columns), scales.astype(own.numpy)]
        node = Node("op", ScaledMatMul(), ("x", "s", "w", "t"), ("y",))
        weights = {name: ArrayConstant(array) for name, array in zip("swt", arrays[1:], strict=True)}
        module = torch_module(Graph.create({"x": types_of(arrays)[0]}, ["y"], [node], weights))
        assert ("_scaled_mm" in module.code) is is_own
        (wanted,), made = ScaledMatMul().evaluate(arrays), to_array(module(to_tensor(arrays[0]))[0])
        assert made.dtype == own.numpy
        np.testing.assert_allclose(made.astype(float), wanted.astype(float), rtol=half, atol=half)


def test_whole_numbers_move_and_add_exactly() -> None:
    big = np.array([[2**40 + 1, -5]], dtype=np.int64)
    for op in (Add(), Concat(1)):
        check(op, [big, big])
    for op in (Relu(), Clip(-2.0, 3.0), Transpose((1, 0)), Slice((1,), (-20,), (1,), (-1,))):
        check(op, [big])


def test_what_torch_does_not_cover_is_computed_on_the_host_but_of_types_that_it_has() -> None:
    whole = TensorType((1, 2, 4, 4), dtype_of(np.zeros(1, np.int8)))
    assert "int8" in covers(MaxPool((2, 2), (2, 2), (0,) * 4), [whole])
    four = TensorType((1, 2, 4, 4, 4, 4))
    assert "4" in covers(AveragePool((2,) * 4, (2,) * 4, (0,) * 8, dilations=(1,) * 4), [four])
    refused: list[tuple[Op, list[tuple[int, ...]], str]] = [
        (Gru(4), [(5, 2, 3), (1, 12, 3), (1, 12, 4)], "linear_before_reset"),
        (Lstm(4, operands=("peepholes",)), [(5, 2, 3), (1, 16, 3), (1, 16, 4), (1, 12)], "no peepholes"),
    ]
    for op, shapes, reason in refused:
        assert reason in covers(op, [TensorType(shape) for shape in shapes])
    assert "int8" in covers(Unary("exp"), [TensorType((2,), DType.INT8)])
    node = Node("pool", MaxPool((2, 2), (2, 2), (0,) * 4), ("x",), ("y",))
    graph = Graph.create({"x": whole}, ["y"], [node], {})
    x = np.arange(-16, 16, dtype=np.int8).reshape(whole.shape)
    (made,) = torch_module(graph)(to_tensor(x))
    np.testing.assert_array_equal(to_array(made), evaluate_graph(graph, {"x": x})["y"])
    weight = {"w": ArrayConstant(np.zeros(2, np.uint16))}
    with pytest.raises(BackendError, match=r"'w' is uint16\[2\], which torch does not support"):
        torch_module(Graph.create({"x": TensorType((2,))}, ["x", "w"], [], weight))
