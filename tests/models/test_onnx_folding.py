"""Folding at import: what cannot be computed there ends no import."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from exported_networks import NETWORKS
from onnx import helper
from onnx_import import import_onnx
from onnx_models import write_onnx
from onnx_of_op import run_onnxruntime

from iossim.api import optimize
from iossim.base.errors import GraphError
from iossim.ir.graph import Graph
from iossim.ir.op import Array, Op
from iossim.models.load import load
from iossim.models.onnx import folding as onnx_folding
from iossim.models.passes.pipeline import canonicalise


class Folds:
    """Counts what ONNX's reference is asked to compute, and lets one of them fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self.failing = 0, -1
        self._compute = onnx_folding.compute
        monkeypatch.setattr(onnx_folding, "compute", self)

    def __call__(self, node: bytes, version: int, inputs: Sequence[Array]) -> list[Array]:
        self.count += 1
        if self.count - 1 == self.failing:
            raise GraphError("cannot be computed: cannot reshape array of size 1 into shape (1,128)")
        return self._compute(node, version, inputs)

    def graph(self, path: Path, dimensions: dict[str, int], failing: int) -> Graph:
        self.count, self.failing = 0, failing
        return canonicalise(import_onnx(path, dimensions=dimensions))


def test_whichever_fold_fails_the_network_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, dimensions = NETWORKS["bert_encoder"]
    path = tmp_path / "model.onnx"
    path.write_bytes(model().SerializeToString())
    folds = Folds(monkeypatch)
    expected = folds.graph(path, dimensions, failing=-1)
    assert folds.count > 10
    for failing in range(folds.count):
        graph = folds.graph(path, dimensions, failing)
        assert graph.nodes == expected.nodes
        assert graph.types == expected.types


def test_what_neither_the_reference_nor_the_op_computes_stays_a_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table of 40 rows, which ONNX's reference cannot gather from, added to the input."""
    nodes = [
        helper.make_node("GatherElements", ["table", "places"], ["row"], axis=0),
        helper.make_node("Erf", ["row"], ["bent"]),
        helper.make_node("Add", ["x", "bent"], ["y"]),
    ]
    weights = {"table": np.arange(80, dtype=np.float32).reshape(40, 2) / 80, "places": np.array([[39, 1]])}
    path = write_onnx(tmp_path / "m.onnx", nodes, {"x": [1, 2]}, weights)
    folded = import_onnx(path)
    assert [node.op.kind for node in folded.nodes] == ["add"]
    x = np.ones((1, 2), np.float32)
    (expected,) = run_onnxruntime(str(path), {"x": x})
    np.testing.assert_allclose(x + folded.constants["bent"].load(), expected, rtol=1e-6)

    def fails(*_: object) -> list[Array]:
        raise GraphError("cannot be computed: it is a test")

    monkeypatch.setattr(onnx_folding, "compute", fails)
    monkeypatch.setattr(Op.onnx_registry["GatherElements"], "evaluate", fails)
    graph = import_onnx(path)
    assert [node.op.kind for node in graph.nodes] == ["gather_elements", "unary", "add"]
    assert [node.op.kind for node in canonicalise(graph).nodes] == ["add"]  # still it depends on weights alone
    network = load(path, strict=True)
    assert optimize(network, "v100-sxm2", scheduler="sequential").latency_us > 0


def test_a_constant_cast_like_a_value_is_a_constant(tmp_path: Path) -> None:
    """PyTorch's exporter writes the bounds of ReLU6 like that where it does not optimise."""
    nodes = [
        helper.make_node("CastLike", ["bound", "x"], ["maximum"]),
        helper.make_node("Clip", ["x", "", "maximum"], ["y"]),
    ]
    path = write_onnx(tmp_path / "m.onnx", nodes, {"x": [1, 2]}, {"bound": np.array(6, dtype=np.int64)}, opset=18)
    assert [each.op.signature for each in load(path, strict=True).graph.nodes] == ["clip(minimum=None,maximum=6.0)"]
