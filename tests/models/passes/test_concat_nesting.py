"""Concats of values that lie in a concat already."""

from __future__ import annotations

import numpy as np
import pytest

from iossim.backends.numpy_reference.backend import evaluate_graph
from iossim.execution.in_place import in_place_buffers
from iossim.ir.builder import GraphBuilder
from iossim.ir.ops.slice import Concat, Slice
from iossim.ir.ops.unary import Relu, Sigmoid
from iossim.models.partition import network_of
from iossim.models.passes.pipeline import canonicalise

SHAPE = (2, 3, 4, 8)


@pytest.mark.parametrize(("axis", "terms", "copies"), [(1, [2, 2, 2], 2), (-3, [2, 2, 2], 2), (2, [2, 3, 4], 0)])
def test_a_dense_block_adds_to_its_concat_of_channels(axis: int, terms: list[int], copies: int) -> None:
    b = GraphBuilder("dense")
    values = [b.add(Relu(), b.input("x", SHAPE))]
    made = values[0]
    for _ in terms:
        part = b.add(Slice((1,), (3,), (axis % 4,), (1,)), made)
        values.append(b.add(Sigmoid(), b.add(Relu(), part)))
        made = b.add(Concat(axis), *values)
    graph = b.graph([made, b.add(Concat(axis), values[1], values[0])])
    after = canonicalise(graph)
    assert [len(node.inputs) for node in after.of_kind["concat"]] == [*terms, 2]
    assert canonicalise(after).hash == after.hash
    assert sum(map(len, in_place_buffers(network_of(after, "dense")).moves.values())) == copies
    inputs = {"x": np.random.default_rng(1).standard_normal(SHAPE).astype(np.float32)}
    now = evaluate_graph(after, inputs)
    for name, array in evaluate_graph(graph, inputs).items():
        np.testing.assert_array_equal(now[name], array)
