"""Units become the kernels that an engine would launch: epilogues, element-wise chains, concats, views."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from graph_builders import builder_with

from iossim.hardware.load import device
from iossim.hardware.lowering.kernel import Candidate, Libraries
from iossim.hardware.lowering.step import Step
from iossim.hardware.lowering.target import step_candidates
from iossim.hardware.lowering.unit import lower_merged, lower_unit, unit_bytes, unit_steps
from iossim.ir.builder import GraphBuilder
from iossim.ir.op import Op
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
IMAGE = (2, 16, 8, 8)
SIZE = 2 * 16 * 8 * 8


def steps_of(build: Build) -> list[Step]:
    b, x = builder_with("test", x=IMAGE)
    with b.unit("unit", "Test"):
        y = build(b, x)
    network = b.network([y])
    return unit_steps(network, network.units[0])


def kinds(steps: list[Step]) -> list[str]:
    return [step.op.kind for step in steps]


def test_bias_and_activation_are_the_convolutions_epilogue() -> None:
    (step,) = steps_of(lambda b, x: b.add(Relu(), b.conv(x, 32, 3, padding=1)))
    assert step.op.kind == "conv"
    assert step.flops == 2 * SIZE * (2 * 16 * 9 + 2)
    assert [operand.is_weight for operand in step.operands] == [False, True, True]


def test_the_traffic_of_a_unit_is_what_it_reads_and_makes_for_others() -> None:
    b, x = builder_with("test", x=IMAGE)
    with b.unit("unit", "Relu-Sigmoid-Identity"):
        y = b.add(Sigmoid(), b.add(Relu(), x))
        z = b.add(Identity(), y)
    network = b.network([z, b.add(Sigmoid(), y)])
    assert unit_bytes(network, network.units[0]) == 3 * 4 * SIZE


def test_relu_sep_conv_is_three_kernels() -> None:
    steps = steps_of(lambda b, x: b.conv(b.conv(b.add(Relu(), x), 16, 3, padding=1, groups=16), 32))
    assert kinds(steps) == ["relu", "conv", "conv"]
    assert steps[0].flops == SIZE


def test_a_residual_is_added_and_activated_in_the_epilogue_which_reads_it() -> None:
    (step,) = steps_of(lambda b, x: b.add(Relu(), b.add(Add(), b.conv(x, 16, 3, padding=1), x)))
    assert (step.op.kind, len(step.operands), len(step.fused_reads)) == ("conv", 3, 1)
    assert step.flops == SIZE * (2 * 16 * 9 + 3)
    plain, residual = (step_candidates(one, V100) for one in (replace(step, fused_reads=()), step))
    for without, with_residual in zip(plain, residual, strict=True):
        last, reading = without.kernels[-1], with_residual.kernels[-1]
        assert reading.activation_bytes - last.activation_bytes == reading.l2_bytes - last.l2_bytes == SIZE * 4
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
    assert step.flops == SIZE * (2 * 8 + 6)
    assert sorted(operand.type.elements for operand in step.fused_reads) == [1, 1, 1, 8]
    assert all(operand.is_weight for operand in step.fused_reads)


def test_two_products_of_one_sum_the_last_adds() -> None:
    first, second = steps_of(lambda b, x: b.add(Relu(), b.add(Add(), b.conv(x, 16), b.conv(x, 16, 3, padding=1))))
    assert (first.operands[1].type.shape[2:], first.fused_reads) == ((1, 1), ())
    assert [operand.type.shape for operand in second.fused_reads] == [IMAGE]
    assert second.flops - first.flops == SIZE * (2 * 16 * 8 + 2)


@pytest.mark.parametrize(
    ("build", "found"),
    [
        pytest.param(
            lambda b, x: b.add(Add(), b.conv(x, 16), b.add(Transpose((0, 1, 3, 2)), x)),
            ["conv", "transpose", "add"], id="an epilogue waits for nothing that comes later",
        ),
        pytest.param(
            lambda b, x: b.add(Mul(), x, b.add(Sigmoid(), b.conv(b.add(GlobalAveragePool(), x), 16))),
            ["global_average_pool", "conv", "mul"], id="another shape is no epilogue",
        ),
        pytest.param(lambda b, x: b.add(Flatten(), x), [], id="a view costs nothing"),
        pytest.param(lambda b, x: b.add(Identity(), x), ["identity"], id="an identity alone is a copy"),
        pytest.param(
            lambda b, x: b.add(Flatten(), b.add(GlobalAveragePool(), x)), ["global_average_pool"], id="a view after another"
        ),
    ],
)  # fmt: skip
def test_kinds_of_steps(build: Build, found: list[str]) -> None:
    assert kinds(steps_of(build)) == found


def test_a_sum_is_computed_as_the_normalisation_loads_it() -> None:
    def build(b: GraphBuilder, x: str) -> str:
        scaled = b.add(Mul(), b.constant("scale", ()), b.add(Add(), b.constant("mask", (8,)), x))
        return b.add(Softmax(-1), scaled)

    (step,) = steps_of(build)
    assert (step.op.kind, [operand.type.shape for operand in step.operands]) == ("softmax", [IMAGE])
    assert sorted(operand.type.shape for operand in step.fused_reads) == [(), (8,)]


def test_a_sum_before_the_activation_joins_its_kernel_and_reads_each_value_once() -> None:
    (step,) = steps_of(lambda b, x: b.add(Relu(), b.add(Add(), x, b.input("y", IMAGE), x)))
    assert (len(step.operands), step.flops) == (2, 3 * SIZE)


def test_a_concat_is_a_kernel_per_term_and_sums_write_to_their_place() -> None:
    steps = steps_of(lambda b, x: b.add(Concat(1), x, b.add(Add(), x, b.input("y", IMAGE)), x))
    assert [len(step.operands) for step in steps] == [1, 2, 1]
    assert {step.bytes_written for step in steps} == {SIZE * 4}


def test_a_sum_that_something_else_reads_is_a_kernel_of_its_own() -> None:
    def build(b: GraphBuilder, x: str) -> str:
        total = b.add(Add(), x, x)
        return b.add(Concat(1), total, b.add(Relu(), total))

    steps = steps_of(build)
    assert kinds(steps) == ["add", "concat", "concat"]
    assert [step.flops > 0 for step in steps] == [True, False, True]


def test_an_epilogue_does_not_run_again_in_the_concat_after_it() -> None:
    steps = steps_of(lambda b, x: b.add(Concat(1), b.add(Relu(), b.conv(x, 8)), x))
    assert kinds(steps) == ["conv", "concat", "concat"]
    assert (steps[1].flops, len(steps[1].operands)) == (0, 1)


@pytest.mark.parametrize(
    ("op", "inputs", "algorithm", "library"),
    [
        (MaxPool((2, 2), (2, 2), (0, 0, 0, 0)), 1, "pooling", True),
        (Softmax(), 1, "softmax", True),
        (Relu(), 1, "elementwise", False),
        (Add(), 2, "elementwise", False),
        (LocalResponseNorm(5), 1, "pooling", True),
    ],
)
def test_what_is_a_library_call(op: Op, inputs: int, algorithm: str, library: bool) -> None:
    (step,) = steps_of(lambda b, x: b.add(op, *[x] * inputs))
    for libraries in Libraries:
        (candidate,) = (one for one in step_candidates(step, V100) if one.is_in(libraries))
        assert (candidate.algorithm, candidate.is_library_call) == (algorithm, library)


def dense_layer(batch: int, trans_b: bool = True) -> dict[str, Candidate]:
    """Candidates of 1000 outputs of 2048 inputs, by algorithm."""
    b, x = builder_with("test", x=(batch, 2048))
    y = b.add(Gemm(trans_b=trans_b), x, b.constant("w", (1000, 2048) if trans_b else (2048, 1000)))
    network = b.network([y])
    (candidates,) = lower_unit(network, network.units[0], V100)
    return {candidate.algorithm: candidate for candidate in candidates}


def test_a_dense_layer_splits_its_inner_dimension() -> None:
    found = dense_layer(1)["gemm_64x64_split4"]
    assert [kernel.name for kernel in found.kernels] == ["gemm_64x64_split4", "split_reduction"]
    assert (found.kernels[0].blocks, found.workspace_bytes) == (16 * 4, 4 * 4000)


@pytest.mark.parametrize("trans_b", [True, False])
def test_panels_of_a_dense_layer(trans_b: bool) -> None:
    panels = dense_layer(96, trans_b)["gemm_128x64"].kernels[0].panels
    assert panels is not None
    # By columns: the layer's 1000 outputs are the rows, its batch the columns.
    assert (panels.row_tiles, panels.column_tiles) == (8, 2)
    assert (panels.row_bytes, panels.column_bytes, panels.inner) == (1000 * 2048 * 4, 96 * 2048 * 4, 2048)
    assert panels.strided_bytes == panels.row_bytes * trans_b + panels.column_bytes


def test_a_merged_convolution_has_all_filters_and_the_larger_kernel() -> None:
    b, x = builder_with("test", x=(1, 64, 20, 20))
    network = b.network([b.conv(x, filters, kernel, padding=kernel // 2) for filters, kernel in ((8, 1), (24, 3))])
    ((*candidates,),) = lower_merged(network, [0, 1], V100)
    by_name = {candidate.algorithm: candidate for candidate in candidates}
    _, kernel = by_name["implicit_gemm_128x32"].kernels
    assert kernel.blocks == 4  # 400 pixels by 32 filters
    assert kernel.weight_bytes == 32 * 64 * 9 * 4


def test_an_epilogue_adds_a_view_of_what_is_there_before_the_product() -> None:
    def build(b: GraphBuilder, x: str) -> str:
        product = b.conv(x, 16)
        return b.add(Add(), b.add(Reshape(IMAGE), x), product)  # the view comes after the product

    (step,) = steps_of(build)
    assert (step.op.kind, len(step.fused_reads)) == ("conv", 1)
