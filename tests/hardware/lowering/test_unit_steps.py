"""Units become the kernels that an engine would launch: epilogues, element-wise chains, concats, views."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from iossim.hardware.load import device
from iossim.hardware.lowering.kernel import Libraries
from iossim.hardware.lowering.step import Step
from iossim.hardware.lowering.target import step_candidates
from iossim.hardware.lowering.unit import lower_merged, lower_unit, unit_steps
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.ops.functions import Nary, Unary
from iossim.ir.ops.matmul import Gemm, MatMul
from iossim.ir.ops.nary import Add, Mul
from iossim.ir.ops.normalization import LocalResponseNorm
from iossim.ir.ops.pool import GlobalAveragePool, MaxPool
from iossim.ir.ops.reshape import Flatten, Reshape, Transpose
from iossim.ir.ops.slice import Concat
from iossim.ir.ops.softmax import Softmax
from iossim.ir.ops.unary import Identity, Relu, Sigmoid

V100 = device("v100-sxm2")

Build = Callable[[GraphBuilder, str], str]


def steps_of(build: Build) -> list[Step]:
    b = GraphBuilder("test")
    x = b.input("x", (2, 16, 8, 8))
    with b.unit("unit", "Test"):
        y = build(b, x)
    network = b.network([y])
    return unit_steps(network, network.units[0])


def kinds(steps: list[Step]) -> list[str]:
    return [step.op.kind for step in steps]


def test_bias_and_activation_are_the_convolutions_epilogue() -> None:
    (step,) = steps_of(lambda b, x: b.add(Relu(), b.conv(x, 32, 3, padding=1)))
    outputs = 2 * 32 * 8 * 8
    assert step.op.kind == "conv"
    assert step.flops == outputs * (2 * 16 * 9 + 2)
    assert [operand.is_weight for operand in step.operands] == [False, True, True]


def test_relu_sep_conv_is_three_kernels() -> None:
    def build(b: GraphBuilder, x: str) -> str:
        depthwise = b.conv(b.add(Relu(), x), 16, 3, padding=1, groups=16)
        return b.conv(depthwise, 32)

    steps = steps_of(build)
    assert kinds(steps) == ["relu", "conv", "conv"]
    assert [step.flops for step in steps[:1]] == [2 * 16 * 8 * 8]


def test_a_residual_is_added_and_activated_in_the_epilogue_which_reads_it() -> None:
    def build(b: GraphBuilder, x: str) -> str:
        return b.add(Relu(), b.add(Add(), b.conv(x, 16, 3, padding=1), x))

    (step,) = steps_of(build)
    outputs = 2 * 16 * 8 * 8
    assert (step.op.kind, len(step.operands), len(step.fused_reads)) == ("conv", 3, 1)
    assert step.flops == outputs * (2 * 16 * 9 + 3)
    plain, residual = (step_candidates(one, V100) for one in (replace(step, fused_reads=()), step))
    for without, with_residual in zip(plain, residual, strict=True):
        last, reading = without.kernels[-1], with_residual.kernels[-1]
        assert reading.activation_bytes - last.activation_bytes == reading.l2_bytes - last.l2_bytes == outputs * 4
        assert with_residual.kernels[:-1] == without.kernels[:-1]


def gelu(b: GraphBuilder, x: str) -> str:
    """As exporters spelt it before ONNX had an op for it: ``x`` is read twice."""
    half, one, root = (b.constant(name, ()) for name in ("half", "one", "root"))
    error = b.add(Unary("erf"), b.add(Nary("div"), x, root))
    return b.add(Mul(), b.add(Mul(), x, b.add(Add(), error, one)), half)


def test_an_epilogue_may_read_what_the_product_makes_several_times() -> None:
    def build(b: GraphBuilder, x: str) -> str:
        product = b.add(MatMul(), x, b.constant("w", (8, 8)))
        return gelu(b, b.add(Add(), product, b.constant("bias", (8,))))

    (step,) = steps_of(build)
    assert step.op.kind == "matmul"
    assert step.flops == 2 * 16 * 8 * 8 * (2 * 8 + 6)
    assert sorted(operand.type.elements for operand in step.fused_reads) == [1, 1, 1, 8]
    assert all(operand.is_weight for operand in step.fused_reads)


def test_two_products_of_one_sum_the_last_adds() -> None:
    def build(b: GraphBuilder, x: str) -> str:
        return b.add(Relu(), b.add(Add(), b.conv(x, 16), b.conv(x, 16, 3, padding=1)))

    first, second = steps_of(build)
    assert (first.operands[1].type.shape[2:], first.fused_reads) == ((1, 1), ())
    assert [operand.type.shape for operand in second.fused_reads] == [(2, 16, 8, 8)]
    assert second.flops - first.flops == 2 * 16 * 8 * 8 * (2 * 16 * 8 + 2)


def test_an_epilogue_waits_for_nothing_that_comes_later() -> None:
    def build(b: GraphBuilder, x: str) -> str:
        product = b.conv(x, 16)
        return b.add(Add(), product, b.add(Transpose((0, 1, 3, 2)), x))

    assert kinds(steps_of(build)) == ["conv", "transpose", "add"]


def test_another_shape_is_no_epilogue() -> None:
    def build(b: GraphBuilder, x: str) -> str:
        return b.add(Mul(), x, b.add(Sigmoid(), b.conv(b.add(GlobalAveragePool(), x), 16)))

    assert kinds(steps_of(build)) == ["global_average_pool", "conv", "mul"]


def test_a_sum_is_computed_as_the_normalisation_loads_it() -> None:
    def build(b: GraphBuilder, x: str) -> str:
        scaled = b.add(Mul(), b.constant("scale", ()), b.add(Add(), b.constant("mask", (8,)), x))
        return b.add(Softmax(-1), scaled)

    (step,) = steps_of(build)
    assert (step.op.kind, [operand.type.shape for operand in step.operands]) == ("softmax", [(2, 16, 8, 8)])
    assert sorted(operand.type.shape for operand in step.fused_reads) == [(), (8,)]


def test_a_sum_before_the_activation_joins_its_kernel_and_reads_each_value_once() -> None:
    def build(b: GraphBuilder, x: str) -> str:
        return b.add(Relu(), b.add(Add(), x, b.input("y", (2, 16, 8, 8)), x))

    (step,) = steps_of(build)
    assert len(step.operands) == 2
    assert step.flops == 3 * 2 * 16 * 8 * 8


def test_a_concat_is_a_kernel_per_term_and_sums_write_to_their_place() -> None:
    def build(b: GraphBuilder, x: str) -> str:
        return b.add(Concat(1), x, b.add(Add(), x, b.input("y", (2, 16, 8, 8))), x)

    steps = steps_of(build)
    assert [len(step.operands) for step in steps] == [1, 2, 1]
    assert {step.bytes_written for step in steps} == {2 * 16 * 8 * 8 * 4}


def test_a_sum_that_something_else_reads_is_a_kernel_of_its_own() -> None:
    def build(b: GraphBuilder, x: str) -> str:
        total = b.add(Add(), x, x)
        return b.add(Concat(1), total, b.add(Relu(), total))

    steps = steps_of(build)
    assert kinds(steps) == ["add", "concat", "concat"]
    assert [step.flops > 0 for step in steps] == [True, False, True]


def test_an_epilogue_does_not_run_again_in_the_concat_behind_it() -> None:
    def build(b: GraphBuilder, x: str) -> str:
        return b.add(Concat(1), b.add(Relu(), b.conv(x, 8)), x)

    steps = steps_of(build)
    assert kinds(steps) == ["conv", "concat", "concat"]
    assert steps[1].flops == 0
    assert len(steps[1].operands) == 1


def test_views_cost_nothing_and_an_identity_unit_is_a_copy() -> None:
    assert steps_of(lambda b, x: b.add(Flatten(), x)) == []
    (step,) = steps_of(lambda b, x: b.add(Identity(), x))
    assert step.op.kind == "identity"
    (pool,) = steps_of(lambda b, x: b.add(Flatten(), b.add(GlobalAveragePool(), x)))
    assert pool.op.kind == "global_average_pool"


@pytest.mark.parametrize(
    ("build", "algorithm", "library"),
    [
        (lambda b, x: b.add(MaxPool((2, 2), (2, 2), (0, 0, 0, 0)), x), "pooling", True),
        (lambda b, x: b.add(Softmax(), x), "softmax", True),
        (lambda b, x: b.add(Relu(), x), "elementwise", False),
        (lambda b, x: b.add(Add(), x, x), "elementwise", False),
        (lambda b, x: b.add(LocalResponseNorm(5), x), "pooling", True),
    ],
)
def test_what_is_a_library_call(build: Build, algorithm: str, library: bool) -> None:
    b = GraphBuilder("test")
    x = b.input("x", (2, 16, 8, 8))
    network = b.network([build(b, x)])
    (candidates,) = lower_unit(network, network.units[0], V100)
    for libraries in Libraries:
        (candidate,) = (one for one in candidates if one.is_in(libraries))
        assert (candidate.algorithm, candidate.is_library_call) == (algorithm, library)


def test_a_dense_layer_splits_its_inner_dimension() -> None:
    b = GraphBuilder("test")
    x = b.input("x", (1, 2048))
    y = b.add(Gemm(trans_b=True), x, b.constant("w", (1000, 2048)))
    network = b.network([y])
    (candidates,) = lower_unit(network, network.units[0], V100)
    by_name = {candidate.algorithm: candidate for candidate in candidates}
    assert [kernel.name for kernel in by_name["gemm_64x64_split4"].kernels] == ["gemm_64x64_split4", "split_reduction"]
    assert by_name["gemm_64x64_split4"].kernels[0].blocks == 16 * 4
    assert by_name["gemm_64x64_split4"].workspace_bytes == 4 * 4000


@pytest.mark.parametrize("trans_b", [True, False])
def test_panels_of_a_dense_layer(trans_b: bool) -> None:
    b = GraphBuilder("test")
    x = b.input("x", (96, 2048))
    y = b.add(Gemm(trans_b=trans_b), x, b.constant("w", (1000, 2048) if trans_b else (2048, 1000)))
    network = b.network([y])
    (candidates,) = lower_unit(network, network.units[0], V100)
    panels = next(one for one in candidates if one.algorithm == "gemm_128x64").kernels[0].panels
    assert panels is not None
    # By columns: the layer's 1000 outputs are the rows, its batch the columns.
    assert (panels.row_tiles, panels.column_tiles) == (8, 2)
    assert (panels.row_bytes, panels.column_bytes, panels.inner) == (1000 * 2048 * 4, 96 * 2048 * 4, 2048)
    assert panels.strided_bytes == panels.row_bytes * trans_b + panels.column_bytes


def two_convolutions() -> Network:
    b = GraphBuilder("test")
    x = b.input("x", (1, 64, 20, 20))
    outputs = []
    for name, channels, kernel in (("one", 8, 1), ("three", 24, 3)):
        with b.unit(name, "Conv-Relu"):
            outputs.append(b.add(Relu(), b.conv(x, channels, kernel, padding=kernel // 2)))
    return b.network(outputs)


def test_a_merged_convolution_has_all_filters_and_the_larger_kernel() -> None:
    ((*candidates,),) = lower_merged(two_convolutions(), [0, 1], V100)
    by_name = {candidate.algorithm: candidate for candidate in candidates}
    _, kernel = by_name["implicit_gemm_128x32"].kernels
    assert kernel.blocks == 4  # 400 pixels by 32 filters
    assert kernel.weight_bytes == 32 * 64 * 9 * 4


def test_an_epilogue_adds_a_view_of_what_is_there_before_the_product() -> None:
    def build(b: GraphBuilder, x: str) -> str:
        product = b.conv(x, 16)
        return b.add(Add(), b.add(Reshape((2, 16, 8, 8)), x), product)  # the view comes after the product

    (step,) = steps_of(build)
    assert step.op.kind == "conv"
    assert len(step.fused_reads) == 1
