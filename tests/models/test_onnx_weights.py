"""Weights are read when somebody asks for them, once for all that share them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper, numpy_helper
from onnx_import import import_onnx
from onnx_models import write_onnx
from onnx_of_op import run_onnxruntime

from iossim.backends.numpy_reference.execute import evaluate_graph
from iossim.models.load import load
from iossim.models.onnx.export import export_graph

node = helper.make_node


@pytest.fixture
def tied(tmp_path: Path) -> Path:
    """A table of embeddings that is the weight of the last layer too, and a layer that is used twice."""
    nodes = [
        node("Cast", ["x"], ["ids"], to=7),
        node("Gather", ["table", "ids"], ["e"]),
        node("MatMul", ["e", "w"], ["f"]),
        node("Relu", ["f"], ["g"]),
        node("MatMul", ["g", "w"], ["h"]),
        node("Transpose", ["table"], ["turned"], perm=[1, 0]),
        node("MatMul", ["h", "turned"], ["y"]),
    ]
    random = np.random.default_rng(0)
    weights = {
        "table": random.standard_normal((600, 8)).astype(np.float32),
        "w": random.standard_normal((8, 8)).astype(np.float32),
    }
    return write_onnx(tmp_path / "tied.onnx", nodes, {"x": [3]}, weights)


def test_shared_weights_are_one_constant(tied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[str] = []
    to_array = numpy_helper.to_array
    monkeypatch.setattr(numpy_helper, "to_array", lambda tensor: loads.append(tensor.name) or to_array(tensor))
    network = load(tied)
    graph = network.graph
    assert loads == []
    assert sorted(graph.constants) == ["table", "turned", "w"]
    assert [reader.op.kind for reader in graph.consumers["w"]] == ["matmul", "matmul"]
    assert graph.constants["turned"].origin is graph.constants["table"]
    assert network.statistics()["parameters"] == 600 * 8 + 8 * 8
    assert load(tied, dtype="fp16").statistics()["parameters"] == 600 * 8 + 8 * 8


def test_shared_weights_go_back_as_one(tied: Path) -> None:
    graph = import_onnx(tied)
    model = export_graph(graph)
    assert sorted(tensor.name for tensor in model.graph.initializer) == ["table", "w"]
    x = np.array([4, 0, 49], np.float32)
    (expected,) = run_onnxruntime(str(tied), {"x": x})
    np.testing.assert_allclose(evaluate_graph(graph, {"x": x})["y"], expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(run_onnxruntime(model, {"x": x})[0], expected, rtol=1e-4, atol=1e-4)
