"""Activations, and layer, RMS and group norms, as exporters write them, and what is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from spelt_parts import assert_equal_arrays, number

from iossim.ir.builder import GraphBuilder
from iossim.ir.graph import Graph
from iossim.ir.ops.functions import Nary, Unary
from iossim.ir.ops.nary import Add, Mul
from iossim.ir.ops.normalization import InstanceNorm, LayerNorm, RmsNorm
from iossim.ir.ops.pool import GlobalAveragePool
from iossim.ir.ops.reduce import Reduce
from iossim.ir.ops.reshape import Reshape
from iossim.ir.ops.unary import Cast, Clip, Relu, Sigmoid
from iossim.ir.types import DType
from iossim.models.partition import retype
from iossim.models.passes.pipeline import canonicalise
from iossim.models.passes.simplification import dead_op_elimination
from iossim.models.passes.value_recognition import function_recognition, norm_recognition

ROWS, SHAPE = (2, 3, 8), (2, 3, 4, 8)


def gelu(b: GraphBuilder, x: str, factor: float = 0.5) -> str:
    error = b.add(Unary("erf"), b.add(Nary("div"), x, number(b, 2**0.5)))
    return b.add(Mul(), b.add(Mul(), x, b.add(Add(), error, number(b, 1.0))), number(b, factor))


def gelu_tanh(b: GraphBuilder, x: str) -> str:
    cube = b.add(Mul(), b.add(Nary("pow"), x, number(b, 3.0)), number(b, 0.044715))
    inner = b.add(Mul(), b.add(Add(), x, cube), number(b, (2 / np.pi) ** 0.5))
    return b.add(Mul(), b.add(Mul(), x, number(b, 0.5)), b.add(Add(), b.add(Unary("tanh"), inner), number(b, 1.0)))


def swish(b: GraphBuilder, x: str) -> str:
    return b.add(Mul(), x, b.add(Sigmoid(), x))


def quick_gelu(b: GraphBuilder, x: str) -> str:
    return b.add(Mul(), x, b.add(Sigmoid(), b.add(Mul(), x, number(b, 1.702))))


def hard_swish(b: GraphBuilder, x: str) -> str:
    clipped = b.add(Clip(0.0, 6.0), b.add(Add(), x, number(b, 3.0)))
    return b.add(Nary("div"), b.add(Mul(), x, clipped), number(b, 6.0))


def softplus(b: GraphBuilder, x: str) -> str:
    return b.add(Unary("log"), b.add(Add(), b.add(Unary("exp"), x), number(b, 1.0)))


def mish(b: GraphBuilder, x: str) -> str:
    return b.add(Mul(), x, b.add(Unary("tanh"), softplus(b, x)))


def softsign(b: GraphBuilder, x: str) -> str:
    return b.add(Nary("div"), x, b.add(Add(), b.add(Unary("abs"), x), number(b, 1.0)))


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("function", [gelu, gelu_tanh, swish, quick_gelu, hard_swish, softplus, mish, softsign])
def test_a_function_in_several_ops_is_one(function: Callable[[GraphBuilder, str], str], dtype: str) -> None:
    b = GraphBuilder("function")
    graph = b.graph([b.add(Unary("neg"), function(b, b.add(Add(), b.input("x", ROWS), b.constant("bias", (8,)))))])
    retyped = retype(graph, DType(dtype))
    name = function.__name__.replace("quick_gelu", "swish")
    assert [node.op.operation for node in canonicalise(retyped).nodes] == ["add", name, "neg"]
    assert_equal_arrays(graph, canonicalise(graph), tolerance=1e-5)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(lambda b, x: gelu(b, x, 1 / 3), id="another factor"),
        pytest.param(lambda b, x: b.add(Mul(), x, b.add(Sigmoid(), b.input("y", ROWS))), id="two arguments"),
        pytest.param(lambda b, x: b.add(Mul(), x, b.add(Mul(), b.add(Sigmoid(), x), b.constant("c", (8,)))), id="a vector"),
        pytest.param(lambda b, x: b.add(Add(), b.add(Unary("tanh"), gate := b.add(Sigmoid(), x)), b.add(Mul(), x, gate)), id="read elsewhere"),
    ],
)  # fmt: skip
def test_other_functions_stay(other: Callable[[GraphBuilder, str], str]) -> None:
    b = GraphBuilder("function")
    graph = b.graph([other(b, b.input("x", ROWS))])
    assert function_recognition(graph) is graph


def square(b: GraphBuilder, x: str) -> str:
    return b.add(Nary("pow"), x, number(b, 2.0))


def over_root(b: GraphBuilder, x: str, v: str) -> str:
    return b.add(Nary("div"), x, b.add(Unary("sqrt"), v))


WAYS: dict[str, Callable[[GraphBuilder, str, str], str]] = {
    "quotient": over_root,
    "reciprocal": lambda b, x, v: b.add(Mul(), b.add(Unary("reciprocal"), b.add(Unary("sqrt"), v)), x),
    "one over": lambda b, x, v: b.add(Mul(), x, b.add(Nary("div"), number(b, 1.0), b.add(Unary("sqrt"), v))),
    "power": lambda b, x, v: b.add(Mul(), x, b.add(Nary("pow"), v, number(b, -0.5))),
    "root as a power": lambda b, x, v: b.add(Nary("div"), x, b.add(Nary("pow"), v, number(b, 0.5))),
}


def spelt(
    *,
    mean: bool = True,
    axes: tuple[int, ...] = (-1,),
    squared: Callable[[GraphBuilder, str], str] = square,
    divided: Callable[[GraphBuilder, str, str], str] = over_root,
    scale: tuple[int, ...] = (8,),
    bias: bool = True,
    casts: bool = False,
    keepdims: bool = True,
    of: Callable[[GraphBuilder, str], str] = lambda b, x: x,
) -> Graph:
    """A norm by its parts; ``of`` makes what the squares are taken of."""
    b = GraphBuilder("norm")
    x = b.add(Relu(), b.input("x", SHAPE))
    value = b.add(Cast(DType.FLOAT32), x) if casts else x
    if mean:
        value = b.add(Nary("sub"), value, b.add(Reduce("mean", axes, True), value))
    total = b.add(Reduce("mean", axes, keepdims), squared(b, of(b, value)))
    normal = divided(b, value, b.add(Add(), number(b, 1e-3), total))
    y = b.add(Mul(), b.constant("scale", scale), b.add(Cast(DType.FLOAT32), normal) if casts else normal)
    y = b.add(Add(), y, b.constant("bias", scale)) if bias else y
    return b.graph([b.add(Relu(), y)])


def recognised(graph: Graph) -> Graph:
    after = dead_op_elimination(norm_recognition(graph))
    assert_equal_arrays(graph, after, tolerance=1e-5)
    return after


@pytest.mark.parametrize("casts", [False, True])
@pytest.mark.parametrize("mean", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_a_norm_however_it_is_divided(way: str, mean: bool, casts: bool) -> None:
    after = recognised(spelt(mean=mean, divided=WAYS[way], casts=casts))
    op = LayerNorm(3, 1e-3) if mean else RmsNorm(3, 1e-3)
    assert [node.op for node in after.nodes] == [Relu(), op, *([] if mean else [Add()]), Relu()]


@pytest.mark.parametrize("term", ["difference", "sum"])
@pytest.mark.parametrize("pooled", [False, True])
def test_a_norm_by_a_factor_and_a_term(term: str, pooled: bool) -> None:
    """As Keras writes it; tf2onnx takes means of rows as those of images."""
    b = GraphBuilder("keras")
    x = b.add(Relu(), b.input("x", SHAPE[1:]))
    mean = GlobalAveragePool() if pooled else Reduce("mean", (2,), True)
    centre, scale, bias = b.add(mean, x), b.constant("scale", (1, 1, 8)), b.constant("bias", (8,))
    centred = b.add(Nary("sub"), x, centre)
    root = b.add(Unary("sqrt"), b.add(Add(), b.add(mean, b.add(Mul(), centred, centred)), number(b, 1e-3)))
    factor = b.add(Mul(), b.add(Unary("reciprocal"), root), scale)
    if term == "sum":
        shift = b.add(Add(), b.add(Mul(), b.add(Unary("neg"), centre), factor), bias)
    else:
        shift = b.add(Nary("sub"), bias, b.add(Mul(), centre, factor))
    after = recognised(b.graph([b.add(Relu(), b.add(Add(), b.add(Mul(), x, factor), shift))]))
    assert [node.op for node in after.nodes] == [Relu(), LayerNorm(2, 1e-3), Relu()]


@pytest.mark.parametrize("axes", [(3, 2), (-2, -1)])
@pytest.mark.parametrize("bias", [False, True])
def test_several_axes_and_squares_as_products(axes: tuple[int, ...], bias: bool) -> None:
    graph = spelt(axes=axes, squared=lambda b, x: b.add(Mul(), x, x), scale=(4, 8), bias=bias)
    (norm,) = recognised(graph).of_kind["layer_norm"]
    assert (norm.op.axis, len(norm.inputs)) == (2, 2 + bias)


@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(spelt(axes=(1,), scale=(1, 1)), id="not the last axis"),
        pytest.param(spelt(squared=lambda b, x: b.add(Nary("pow"), x, number(b, 3.0))), id="cubes"),
        pytest.param(spelt(squared=lambda b, x: b.add(Mul(), x, b.add(Relu(), x))), id="other products"),
        pytest.param(spelt(of=lambda b, x: b.add(Relu(), x)), id="squares of something else"),
        pytest.param(spelt(divided=lambda b, x, v: b.add(Nary("div"), x, v)), id="no root"),
        pytest.param(
            spelt(divided=lambda b, x, v: over_root(b, b.add(Relu(), x), v)), id="a quotient of something else"
        ),
    ],
)
def test_what_is_no_norm_stays(graph: Graph) -> None:
    assert norm_recognition(graph) is graph


@pytest.mark.parametrize("scale", [(4, 8), (1,)])
@pytest.mark.parametrize("mean", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_a_norm_without_parameters_of_its_axes(way: str, mean: bool, scale: tuple[int, ...]) -> None:
    after = recognised(spelt(mean=mean, divided=WAYS[way], scale=scale))
    assert [node.op for node in after.nodes][1:-1] == [(LayerNorm if mean else RmsNorm)(3, 1e-3), Mul(), Add()]


@pytest.mark.parametrize(("leading", "size", "kind"), [(40, 8, "rms_norm"), (1, 2**33, "reduce")])
def test_a_norm_is_compared_by_few_values(leading: int, size: int, kind: str) -> None:
    """Samples of many axes, or of a row that no memory holds, were made whole."""
    b = GraphBuilder("norm")
    x = b.input("x", (*(1,) * leading, size))
    total = b.add(Add(), b.add(Reduce("mean", (-1,), True), square(b, x)), number(b, 1e-3))
    graph = b.graph([b.add(Mul(), b.constant("scale", (size,), value=1.0), over_root(b, x, total))])
    assert kind in norm_recognition(graph).of_kind


def grouped(
    *,
    scale: tuple[int, ...] | None = (6, 1, 1),
    bias: tuple[int, ...] | None = (1, 6, 1, 1),
    one: float = 1.0,
    back: tuple[int, ...] = (2, 6, 4, 5),
) -> Graph:
    b = GraphBuilder("grouped")
    x = b.add(Reshape((2, 3, 40)), b.input("x", (2, 6, 4, 5)))
    parameters = (b.constant("one", (3,), value=one), b.constant("zero", (3,), value=0.0))
    y = b.add(Reshape(back), b.add(InstanceNorm(1e-3), x, *parameters))
    y = y if scale is None else b.add(Mul(), y, b.constant("scale", scale))
    return b.graph([b.add(Relu(), y if bias is None else b.add(Add(), b.constant("bias", bias), y))])


@pytest.mark.parametrize("changed", [{}, {"scale": None}, {"bias": None}, {"scale": None, "bias": None}], ids=str)
def test_a_group_norm_of_reshapes_is_one_op(changed: dict[str, Any]) -> None:
    graph = grouped(**changed)
    after = canonicalise(graph)
    assert [node.op.kind for node in after.nodes] == ["group_norm", "relu"]
    assert_equal_arrays(graph, after, tolerance=1e-5)


@pytest.mark.parametrize("changed", [{"one": 2.0}, {"back": (2, 6, 5, 4)}, {"scale": (5,)}], ids=str)
def test_other_group_norms(changed: dict[str, Any]) -> None:
    """Factors of groups, and images of another shape, stay as they are; factors of columns are applied after the norm."""
    graph = grouped(**changed)
    kinds = [node.op.kind for node in canonicalise(graph).nodes]
    assert kinds[:3] == (
        ["group_norm", "mul", "add"] if "scale" in changed else ["reshape", "instance_norm", "reshape"]
    )
    assert_equal_arrays(graph, canonicalise(graph), tolerance=1e-5)
