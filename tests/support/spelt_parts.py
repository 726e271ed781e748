"""Parts of graphs as exporters write them, and graphs compared by what they compute."""

import numpy as np

from iossim.backends.numpy_reference.backend import evaluate_graph
from iossim.ir.builder import GraphBuilder
from iossim.ir.graph import Graph
from iossim.ir.ops.functions import Unary
from iossim.ir.ops.slice import Concat, Slice


def number(b: GraphBuilder, value: float) -> str:
    return b.numbers(f"number {value}", np.float32(value))


def sliced(b: GraphBuilder, x: str, begin: int, end: int, axis: int = -1) -> str:
    return b.add(Slice((begin,), (end,), (axis,), (1,)), x)


def negated(b: GraphBuilder, x: str) -> str:
    return b.add(Unary("neg"), x)


def by_slices(b: GraphBuilder, x: str) -> str:
    return b.add(Concat(-1), negated(b, sliced(b, x, -4, 1 << 31)), sliced(b, x, 0, 4))


def assert_equal_arrays(graph: Graph, other: Graph, tolerance: float = 0) -> None:
    """Both compute the same of normally distributed inputs, within an absolute and relative tolerance."""
    generator = np.random.default_rng(0)
    inputs = {name: generator.standard_normal(graph.types[name].shape).astype(np.float32) for name in graph.inputs}
    before, now = (evaluate_graph(each, inputs).values() for each in (graph, other))
    for expected, found in zip(before, now, strict=True):
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
