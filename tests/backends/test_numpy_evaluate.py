"""The reference evaluator: which values it gives, and what it asks for."""

from __future__ import annotations

import numpy as np
import pytest

from iossim.backends.numpy_reference.execute import evaluate_graph
from iossim.base.errors import GraphError
from iossim.ir.constants import ArrayConstant
from iossim.ir.graph import Graph, Node
from iossim.ir.ops.nary import Add
from iossim.ir.ops.slice import Split
from iossim.ir.ops.unary import Relu
from iossim.ir.types import TensorType

X = np.array([[-1.0, 2.0, -3.0, 4.0]], dtype=np.float32)
GRAPH = Graph.create(
    {"x": TensorType((1, 4))},
    ["y", "b", "c"],
    [
        Node("split", Split(1, (2, 2)), ("x",), ("a", "b")),
        Node("relu", Relu(), ("a",), ("r",)),
        Node("add", Add(), ("r", "b", "c"), ("y",)),
    ],
    {"c": ArrayConstant(np.array([10.0, 20.0], dtype=np.float32))},
)


def test_outputs_are_given_by_name():
    outputs = evaluate_graph(GRAPH, {"x": X})
    assert list(outputs) == ["y", "b", "c"]
    np.testing.assert_array_equal(outputs["y"], [[7, 26]])
    np.testing.assert_array_equal(outputs["b"], [[-3, 4]])
    np.testing.assert_array_equal(outputs["c"], [10, 20])


def test_other_values_are_given_when_asked_for():
    values = evaluate_graph(GRAPH, {"x": X}, ["r", "x"])
    assert list(values) == ["r", "x"]
    np.testing.assert_array_equal(values["r"], [[0, 2]])


@pytest.mark.parametrize(
    ("inputs", "values", "reason"),
    [
        ({}, None, "no array for input 'x'; give one of fp32\\[1x4\\]"),
        ({"x": X[0]}, None, "input 'x' is float32\\[4\\]; give an array of fp32\\[1x4\\]"),
        ({"x": X.astype(np.float64)}, None, "input 'x' is float64"),
        ({"x": X}, ["nothing"], "no value 'nothing'"),
    ],
)
def test_what_is_not_the_graphs_is_refused(inputs, values, reason):
    with pytest.raises(GraphError, match=reason):
        evaluate_graph(GRAPH, inputs, values)
