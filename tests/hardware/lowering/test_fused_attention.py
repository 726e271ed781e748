"""Attention in one kernel, matrix products however their operands' axes are written, and what one thread of a CPU may do."""

import math
from collections.abc import Sequence
from itertools import product

import pytest
from case_files import cases
from cpus import cpu
from hypothesis import given
from hypothesis import strategies as st
from operators import parse_description

from iossim.hardware.load import device
from iossim.hardware.lowering.cpu import GATHERED, GATHERED_AT_STRIDE, PACKED
from iossim.hardware.lowering.kernel import Candidate, Libraries, WorkClass, resident_blocks
from iossim.hardware.lowering.step import Operand, Step
from iossim.hardware.lowering.target import step_candidates
from iossim.hardware.lowering.unit import lower_unit
from iossim.ir.network import Network, Unit
from iossim.ir.op import Op
from iossim.ir.ops.matmul import Gemm, MatMul, stacked_product
from iossim.ir.types import Precision, TensorType
from iossim.models.load import load

CASES = cases(__file__, "kernels.yaml")
H100, V100 = device("h100-sxm"), device("v100-sxm2")
TEXT = "attention batch=2 heads=12 queries=384 keys=384 features=64"


def candidates(
    text: str = TEXT,
    name: str = "h100-sxm",
    precision: Precision = Precision.BF16,
    libraries: Libraries = Libraries.COMPILED,
) -> list[Candidate]:
    found = step_candidates(parse_description(text, precision).step(), device(name))
    return [one for one in found if one.is_in(libraries)]


@pytest.mark.parametrize(("name", "blocks"), [("h100-sxm", 2 * 12 * 2), ("a100-sxm-40gb", 2 * 12 * 3)])
def test_one_kernel_goes_over_all_keys(name: str, blocks: int) -> None:
    (found,) = candidates(name=name, libraries=Libraries.CURRENT)
    (kernel,) = found.kernels
    assert (kernel.work_class, kernel.blocks) == (WorkClass.ATTENTION, blocks)
    pairs = 2 * 12 * 384 * 384
    assert (kernel.flops, kernel.exponentials) == (4 * 64 * pairs, pairs)
    tensor = 2 * 12 * 384 * 64 * 2
    assert (kernel.activation_bytes, kernel.bytes_written) == (3 * tensor, tensor)
    assert resident_blocks(device(name).limits, *kernel.block_needs) > 0


@pytest.mark.parametrize(
    ("text", "name", "precision", "libraries"),
    [
        (TEXT, "v100-sxm2", Precision.FP16, Libraries.COMPILED),
        (TEXT, "t4", Precision.FP16, Libraries.COMPILED),
        (TEXT, "h100-sxm", Precision.FP32, Libraries.COMPILED),
        (TEXT, "h100-sxm", Precision.TF32, Libraries.COMPILED),
        (TEXT, "h100-sxm", Precision.FP16, Libraries.CUDNN_8),  # the published engine has none
        (TEXT.replace("=64", "=512"), "h100-sxm", Precision.FP16, Libraries.COMPILED),
    ],
)
def test_without_a_fused_kernel_it_is_three(text: str, name: str, precision: Precision, libraries: Libraries) -> None:
    found = candidates(text, name, precision, libraries)
    assert found
    for one in found:
        first, *_, last = (kernel.work_class for kernel in one.kernels)
        assert len(one.kernels) == 3
        assert first is last or {first, last} <= {WorkClass.GEMM, WorkClass.TENSOR}


@given(*[st.integers(1, 5000)] * 2, st.sampled_from([8, 64, 72, 128, 160, 256]), st.booleans())
def test_tiles_cover_every_pair_that_is_seen(queries: int, keys: int, features: int, causal: bool) -> None:
    text = f"attention batch=1 heads=2 queries={queries} keys={keys} features={features} causal={int(causal)}"
    operator = parse_description(text, Precision.FP16)
    seen = operator.op.multiply_adds(operator.inputs, ()) // (2 * features)
    for name in ("h100-sxm", "a100-sxm-40gb"):
        for one in candidates(text, name, Precision.FP16):
            kernel, *combine = one.kernels
            assert kernel.flops >= 4 * features * seen
            assert kernel.exponentials >= seen
            assert resident_blocks(device(name).limits, *kernel.block_needs) > 0
            assert bool(combine) == ("split" in one.algorithm) == (one.workspace_bytes > 0)
            assert not combine or queries <= 64


def test_a_causal_one_computes_about_half_and_shared_keys_are_read_once() -> None:
    text = TEXT.replace("384", "8192")
    (whole,), (half,) = candidates(text), candidates(text + " causal=1")
    assert 0.5 < half.kernels[0].flops / whole.kernels[0].flops < 0.52
    assert half.kernels[0].activation_bytes == whole.kernels[0].activation_bytes
    (own,), (shared,) = candidates(), candidates(TEXT + " kv_heads=4")
    assert shared.kernels[0].flops == own.kernels[0].flops
    tensor = own.kernels[0].bytes_written
    assert shared.kernels[0].activation_bytes == tensor + 2 * tensor // 3


def attention_unit(dtype: str, batch: int = 1) -> tuple[Network, Unit]:
    network = load("bert_layer", batch=batch, dtype=dtype, units="fused")
    (unit,) = (unit for unit in network.units if unit.kind == "Attention")
    return network, unit


def test_a_unit_that_spells_it_out_is_that_kernel() -> None:
    network, unit = attention_unit("fp16")
    (found,) = lower_unit(network, unit, H100)
    (one,) = (one for one in found if one.is_in(Libraries.COMPILED))
    alone = candidates("attention batch=1 heads=12 queries=128 keys=128 features=64", precision=Precision.FP16)
    assert [one.kernels] == [each.kernels for each in alone]


@pytest.mark.parametrize("profile", [V100, device("p4")], ids=str)
@pytest.mark.parametrize("batch", [1, 2])
def test_elsewhere_its_ops_are_the_kernels_that_they_are_as_units(batch: int, profile) -> None:
    """But for the transposes of one sequence, whose heads products take where they lie."""
    network, unit = attention_unit("fp32", batch)
    (found,) = lower_unit(network, unit, profile)
    inside = {node.name for node in network.unit_nodes(unit)}
    own = load("bert_layer", batch=batch, dtype="fp32")
    steps = [
        candidates
        for each in own.units
        if {node.name for node in own.unit_nodes(each)} <= inside and (batch > 1 or not each.kind.endswith("Transpose"))
        for candidates in lower_unit(own, each, profile)
    ]
    assert len(found) == math.prod(map(len, steps))
    expected = {frozenset(kernel.name for one in chosen for kernel in one.kernels) for chosen in product(*steps)}
    assert {frozenset(kernel.name for kernel in one.kernels) for one in found} == expected


def test_queries_that_are_few_divide_their_keys() -> None:
    found = candidates("attention batch=1 heads=8 queries=1 keys=4096 features=128 kv_heads=2")
    assert [one.kernels[0].blocks for one in found] == [8, 16, 32, 64, 128]
    assert all(one.kernels[1].bytes_written == 8 * 128 * 2 for one in found[1:])


Shape = tuple[int, ...]


def product_kernels(op: Op, a: Sequence[int], b: Sequence[int]) -> tuple[Candidate, ...]:
    types = [TensorType(tuple(a)), TensorType(tuple(b))]
    outputs = op.infer(types)
    operands = (Operand(types[0]), Operand(types[1], is_weight=True))
    return step_candidates(Step(op, operands, outputs, op.flops(types, outputs), Precision.FP32), V100)


@pytest.mark.parametrize(("a", "b", "count", "rows", "columns"), CASES["stacks"])
def test_stack(a: list[int], b: list[int], count: int, rows: int, columns: int) -> None:
    found = stacked_product(tuple(a), tuple(b))
    assert (found.count, found.rows, found.columns, found.inner) == (count, rows, columns, 64 if 64 in a else 768)


@st.composite
def relaid_products(draw: st.DrawFn) -> tuple[tuple[Shape, Shape], tuple[Shape, Shape]]:
    """A stack of products ``[count, rows, inner] @ [count, inner, columns]``, and the same operands under other shapes.

    The axes of the stack, and those of the rows, are split; axes of one element come anywhere. No element moves.
    """
    sizes = st.integers(1, 6)
    stack = draw(st.lists(sizes, max_size=2))
    inner, columns = draw(st.integers(2, 200)), draw(st.integers(1, 300))
    rows = draw(st.lists(sizes, max_size=3))
    plain = (math.prod(stack), math.prod(rows), inner), (math.prod(stack), inner, columns)
    axes = [(size, size) for size in stack] + [(size, 1) for size in rows]
    for place in draw(st.lists(st.integers(0, len(axes)), max_size=3)):
        axes.insert(min(place, len(axes)), (1, 1))
    (last, own) = axes.pop() if axes and axes[-1][1] == 1 else (1, 1)
    assert own == 1
    a, b = tuple(size for size, _ in axes), tuple(size for _, size in axes)
    while b and b[0] == 1 and draw(st.booleans()):
        b = b[1:]
    while len(b) == len(a) and a and a[0] == 1 and draw(st.booleans()):
        a = a[1:]
    return plain, ((*a, last, inner), (*b, inner, columns))


@given(relaid_products())
def test_equal_work_in_any_layout_is_equal_kernels(products: tuple[tuple[Shape, Shape], tuple[Shape, Shape]]) -> None:
    plain, relaid = products
    assert product_kernels(MatMul(), *relaid) == product_kernels(MatMul(), *plain)


@given(st.integers(1, 300), st.integers(2, 300), st.integers(1, 300))
def test_a_matrix_times_a_matrix_is_one_product_whatever_op_says_so(rows: int, inner: int, columns: int) -> None:
    dense = product_kernels(Gemm(), (rows, inner), (inner, columns))
    stacked = product_kernels(MatMul(), (rows, inner), (inner, columns))
    assert [each.kernels for each in dense][:-1] == [each.kernels for each in stacked][:-1]  # the last names its op
    multiplied = [kernel for each in dense for kernel in each.kernels if kernel.work_class is WorkClass.GEMM]
    assert all(kernel.panels and kernel.panels.inner == inner for kernel in multiplied)


@given(st.integers(2, 300), st.integers(2, 300))
def test_a_matrix_times_a_vector_is_the_same_from_either_side(size: int, inner: int) -> None:
    assert product_kernels(MatMul(), (size, inner), (inner,)) == product_kernels(MatMul(), (size, inner), (inner, 1))
    by_columns = product_kernels(Gemm(trans_b=True), (1, inner), (size, inner))
    as_row = product_kernels(MatMul(), (1, inner), (size, inner, 1))
    one, other = (
        [[(k.blocks, k.flops, k.panels) for k in each.kernels] for each in some] for some in (by_columns, as_row)
    )
    assert one == other


def on_cpu(description: str) -> dict[str, Candidate]:
    return {one.algorithm: one for one in step_candidates(parse_description(description).step(), cpu())}


def conv(channels: int, filters: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> str:
    return (
        f"conv batch=2 in_channels={channels} out_channels={filters} kernel={kernel} in_size=10 stride={stride} "
        f"padding={kernel // 2} groups={groups}"
    )


@pytest.mark.parametrize("name", ["squeezenet", "nasnet_a", "randwire"])
def test_every_step_runs_as_one_block_of_a_core(name: str) -> None:
    network, device = load(name), cpu()
    steps = 0
    for unit in dict(zip(network.signatures, network.units, strict=True)).values():
        for found in lower_unit(network, unit, device):
            for candidate in found:
                (kernel,) = candidate.kernels
                assert kernel.blocks == 1
                needs = kernel.threads_per_block, kernel.registers_per_thread, kernel.shared_bytes_per_block
                assert resident_blocks(device.limits, *needs) == 1
            steps += 1
    assert steps > 15


def test_bytes_of_a_convolution() -> None:
    plain, blocked = on_cpu(conv(32, 24))["nchw"].kernels[0], on_cpu(conv(32, 24))["nchwc"].kernels[0]
    x, weight, y = 2 * 32 * 100 * 4, 24 * 32 * 9 * 4, 2 * 24 * 100 * 4
    assert plain.l2_bytes == x + weight + y + GATHERED * 9 * x
    assert blocked.l2_bytes == 2 * (x + y) + weight
    assert (plain.activation_bytes, plain.weight_bytes, plain.bytes_written) == (x + weight, 0, y)
    flops = 2 * 2 * 24 * 100 * 32 * 9
    assert plain.flops == flops
    assert blocked.flops == flops * 32 // 24  # 24 filters fill one block and a half
    (pointwise,) = on_cpu(conv(32, 24, kernel=1))["nchw"].kernels
    assert pointwise.l2_bytes == x + 24 * 32 * 4 + y + PACKED * x
    (strided,) = on_cpu(conv(32, 24, stride=2))["nchw"].kernels
    assert strided.l2_bytes == x + weight + y // 4 + GATHERED_AT_STRIDE * 9 * x // 4
    (few_channels,) = on_cpu(conv(3, 32))["nchwc"].kernels  # whose input is not reordered
    assert few_channels.l2_bytes == 2 * 3 * 100 * 4 + 32 * 3 * 9 * 4 + 2 * (2 * 32 * 100 * 4)


@pytest.mark.parametrize(
    ("description", "algorithms"),
    [
        (conv(32, 24), {"nchw": WorkClass.CORE_PRODUCT, "nchwc": WorkClass.CORE_BLOCKED}),
        (conv(42, 42), {"nchw": WorkClass.CORE_PRODUCT}),
        (conv(3, 32), {"nchw": WorkClass.CORE_PRODUCT, "nchwc": WorkClass.CORE_BLOCKED}),
        (conv(36, 36, groups=36), {"nchw": WorkClass.CORE_PRODUCT, "nchwc": WorkClass.CORE_BLOCKED_WINDOW}),
        (conv(42, 42, groups=42), {"nchw": WorkClass.CORE_PRODUCT}),
        (conv(64, 64, groups=2), {"nchw": WorkClass.CORE_PRODUCT}),
        (
            "max_pool batch=1 channels=64 in_size=10 kernel=3 stride=2 padding=0",
            {"nchw": WorkClass.CORE_WINDOW, "nchwc": WorkClass.CORE_BLOCKED_WINDOW},
        ),
        ("average_pool batch=1 channels=84 in_size=10 kernel=3 stride=2 padding=0", {"nchw": WorkClass.CORE_WINDOW}),
        ("global_average_pool batch=1 channels=64 in_size=10", {"nchw": WorkClass.CORE_WINDOW}),
        ("linear batch=1 m=4 n=256 k=512", {"nchw": WorkClass.CORE_PRODUCT}),
        ("relu rows=8 cols=900", {"nchw": WorkClass.CORE_STREAM}),
    ],
)
def test_channels_that_blocks_divide_and_work_classes(description: str, algorithms: dict[str, WorkClass]) -> None:
    found = on_cpu(description).items()
    assert {name: candidate.kernels[0].work_class for name, candidate in found} == algorithms
