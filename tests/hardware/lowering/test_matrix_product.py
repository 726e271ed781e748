"""Matrix products: equal work is lowered to equal kernels, however the operands' axes are written."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iossim.api import cost_model, optimize
from iossim.hardware.load import device
from iossim.hardware.lowering.kernel import Candidate
from iossim.hardware.lowering.step import Operand, Step
from iossim.hardware.lowering.target import step_candidates
from iossim.ir.builder import GraphBuilder
from iossim.ir.op import Op
from iossim.ir.ops.matmul import Gemm, MatMul, stacked_product
from iossim.ir.ops.reshape import Transpose
from iossim.ir.types import Precision, TensorType
from iossim.models.passes.pipeline import canonicalise

V100 = device("v100-sxm2")

Shape = tuple[int, ...]


def candidates(op: Op, a: Sequence[int], b: Sequence[int]) -> tuple[Candidate, ...]:
    types = [TensorType(tuple(a)), TensorType(tuple(b))]
    outputs = op.infer(types)
    operands = (Operand(types[0]), Operand(types[1], is_weight=True))
    return step_candidates(Step(op, operands, outputs, op.flops(types, outputs), Precision.FP32), V100)


@pytest.mark.parametrize(
    ("a", "b", "count", "rows", "columns"),
    [
        ((197, 768), (768, 2304), 1, 197, 2304),
        ((197, 1, 768), (768, 2304), 1, 197, 2304),
        ((197, 1, 768), (1, 768, 2304), 1, 197, 2304),
        ((8, 197, 768), (768, 2304), 1, 8 * 197, 2304),
        ((2, 3, 5, 7, 64), (1, 1, 1, 64, 32), 1, 2 * 3 * 5 * 7, 32),
        # Attention: a product for each image and head.
        ((8, 12, 197, 64), (8, 12, 64, 197), 96, 197, 197),
        # Heads that share keys: those that share are rows, where they lie one behind another.
        ((8, 4, 3, 1, 64), (8, 4, 1, 64, 50), 32, 3, 50),
        ((8, 4, 3, 5, 64), (8, 4, 1, 64, 50), 32, 15, 50),
        # Behind the batch there are other products: the rows of different images are at no one distance.
        ((8, 12, 5, 64), (1, 12, 64, 50), 96, 5, 50),
        # One row of each image is: a head's rows are a matrix with longer steps.
        ((8, 12, 1, 64), (1, 12, 64, 50), 12, 8, 50),
        # Columns of several matrices are at no one distance either, several vectors are.
        ((5, 64), (8, 64, 50), 8, 5, 50),
        ((5, 64), (8, 64, 1), 1, 5, 8),
        ((7, 1, 1, 64), (8, 64, 1), 1, 7, 8),
        # Neither side's vectors would be neighbours in the output.
        ((7, 1, 3, 1, 64), (1, 8, 3, 64, 1), 21, 1, 8),
        ((64,), (64, 50), 1, 1, 50),
        ((64,), (8, 64, 50), 8, 1, 50),
        ((8, 5, 64), (64,), 1, 40, 1),
        ((64,), (64,), 1, 1, 1),
        ((8, 1, 64), (8, 64, 1), 8, 1, 1),
    ],
)
def test_stack(a: Shape, b: Shape, count: int, rows: int, columns: int) -> None:
    found = stacked_product(a, b)
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
    assert candidates(MatMul(), *relaid) == candidates(MatMul(), *plain)


@given(st.integers(1, 300), st.integers(2, 300), st.integers(1, 300))
def test_a_matrix_times_a_matrix_is_one_product_whatever_op_says_so(rows: int, inner: int, columns: int) -> None:
    dense = candidates(Gemm(), (rows, inner), (inner, columns))
    stacked = candidates(MatMul(), (rows, inner), (inner, columns))
    assert [each.kernels for each in dense][:-1] == [each.kernels for each in stacked][:-1]  # the last names its op


@given(st.integers(2, 300), st.integers(2, 300))
def test_a_matrix_times_a_vector_is_the_same_from_either_side(size: int, inner: int) -> None:
    times_vector = candidates(MatMul(), (size, inner), (inner,))
    assert times_vector == candidates(MatMul(), (size, inner), (inner, 1))
    assert times_vector == candidates(MatMul(), (size, 1, inner), (inner, 1))
    by_columns = candidates(Gemm(trans_b=True), (1, inner), (size, inner))
    as_row = candidates(MatMul(), (1, inner), (size, inner, 1))
    kernels = [[(k.blocks, k.flops, k.panels) for k in each.kernels] for each in by_columns]
    assert kernels == [[(k.blocks, k.flops, k.panels) for k in each.kernels] for each in as_row]


@pytest.mark.parametrize("device", ["v100-sxm2", "h100-sxm"])
def test_tokens_cost_the_same_wherever_the_batch_of_one_stands(device: str) -> None:
    """An exported attention layer turns ``[1, tokens, width]`` round and back, which moves nothing."""
    prices = cost_model("simulator", device)
    found = set()
    for shape in ((197, 768), (1, 197, 768), (197, 1, 768)):
        b = GraphBuilder("projection")
        y = b.add(MatMul(), b.input("x", shape), b.constant("w", (768, 2304)))
        found.add(optimize(b.network([y]), None, scheduler="sequential", cost_model=prices).latency_us)
    assert len(found) == 1


def test_a_transpose_that_moves_nothing_leaves_the_price() -> None:
    b = GraphBuilder("turned")
    x = b.add(Transpose((1, 0, 2)), b.input("x", (1, 197, 768)))
    graph = canonicalise(b.graph([b.add(MatMul(), x, b.constant("w", (768, 64)))]))
    assert [node.op.kind for node in graph.nodes] == ["reshape", "matmul"]
