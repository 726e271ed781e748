"""Activations that exporters write in several ops, and what is none."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from spelt_parts import assert_equal_arrays, number

from iossim.ir.builder import GraphBuilder
from iossim.ir.ops.functions import Nary, Unary
from iossim.ir.ops.nary import Add, Mul
from iossim.ir.ops.unary import Clip, Sigmoid
from iossim.ir.types import DType
from iossim.models.partition import retype
from iossim.models.passes.pipeline import canonicalise
from iossim.models.passes.value_recognition import function_recognition

ROWS = (2, 3, 8)


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
