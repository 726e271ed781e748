"""Folding at import, tensors without elements, and weights that are read when somebody asks for them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from command_line import printed_json
from exported_networks import NETWORKS
from onnx import numpy_helper
from onnx_models import write_onnx
from onnx_of_op import import_onnx, run_onnxruntime

from iossim.api import optimize
from iossim.backends.numpy_reference.backend import evaluate_graph
from iossim.base.errors import GraphError, ModelError
from iossim.ir.graph import Graph
from iossim.ir.op import Array, Op
from iossim.models.load import load
from iossim.models.onnx import folding as onnx_folding
from iossim.models.onnx.export import export_graph
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
    nodes = "row = GatherElements <axis=0> (table, places); bent = Erf(row); y = Add(x, bent)"
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
    assert optimize(load(path, strict=True), "v100-sxm2", scheduler="sequential").latency_us > 0


def test_a_constant_cast_like_a_value_is_a_constant(tmp_path: Path) -> None:
    """PyTorch's exporter writes the bounds of ReLU6 like that where it does not optimise."""
    nodes = "maximum = CastLike(bound, x); y = Clip(x, , maximum)"
    path = write_onnx(tmp_path / "m.onnx", nodes, {"x": [1, 2]}, {"bound": np.array(6, dtype=np.int64)}, opset=18)
    assert [each.op.signature for each in load(path, strict=True).graph.nodes] == ["clip(minimum=None,maximum=6.0)"]


INTS = {"zero": [0], "nothing": np.zeros(0), "sizes": [0, 3, 0]}
WEIGHTS = {name: np.array(value, dtype=np.int64) for name, value in INTS.items()}
CACHE = "[all] all = Concat <axis=1> (past, x); [relu] y = Relu(all)"


def test_a_cache_that_is_still_empty(tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "m.onnx", CACHE, {"x": [2, 3], "past": [2, "past"]})
    graph = canonicalise(import_onnx(path, dimensions={"past": 0}))
    assert graph.inputs == ("x",)
    assert [each.op.kind for each in graph.nodes] == ["relu"]
    x = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    (expected,) = run_onnxruntime(str(path), {"x": x, "past": np.zeros((2, 0), np.float32)})
    np.testing.assert_array_equal(evaluate_graph(graph, {"x": x})["y"], expected)
    shown = printed_json(f"models show {path} --dim past=0 --json")
    assert shown["inputs"] == {"x": [2, 3]}
    assert printed_json(f"models show {path} --shape past=2x4 --json")["outputs"] == {"y": [2, 7]}


@pytest.mark.parametrize("opset", [11, 18])
@pytest.mark.parametrize(
    "nodes",
    [
        "e = Slice(x, zero, zero); y = Concat <axis=0> (e, x, e)",
        "e = Slice(x, zero, zero); m = {ReduceMin}; y = Sum(x, x)",
        "e = Gather <axis=1> (x, nothing); y = Concat <axis=1> (x, e)",
        "a, b, c = {Split}; y = Concat <axis=1> (a, b, c)",
        "e = Slice(x, zero, zero); z = MatMul(t, e); y = Add(x, z)",
    ],
)
def test_computes_what_onnxruntime_does(nodes: str, opset: int, tmp_path: Path) -> None:
    spelled = {
        11: {"ReduceMin": "ReduceMin <axes=[0]> (x)", "Split": "Split <axis=1, split=[0, 3, 0]> (x)"},
        18: {"ReduceMin": "ReduceMin(x, zero)", "Split": "Split <axis=1> (x, sizes)"},
    }
    weights = WEIGHTS | {"t": np.zeros((2, 0), np.float32)}
    path = write_onnx(tmp_path / "m.onnx", nodes.format(**spelled[opset]), {"x": [2, 3]}, weights, opset=opset)
    graph = canonicalise(import_onnx(path))
    x = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    (expected,) = run_onnxruntime(str(path), {"x": x})
    np.testing.assert_array_equal(evaluate_graph(graph, {"x": x})["y"], expected)
    np.testing.assert_array_equal(run_onnxruntime(export_graph(graph), {"x": x})[0], expected)


def test_terms_that_do_not_join(tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "m.onnx", CACHE, {"x": [2, 3], "past": [5, "past"]})
    with pytest.raises(ModelError, match="do not join"):
        import_onnx(path, dimensions={"past": 0})


@pytest.fixture
def tied(tmp_path: Path) -> Path:
    """A table of embeddings that is the weight of the last layer too, and a layer that is used twice."""
    nodes = """ids = Cast <to=7> (x); e = Gather(table, ids); f = MatMul(e, w); g = Relu(f); h = MatMul(g, w)
        turned = Transpose <perm=[1, 0]> (table); y = MatMul(h, turned)"""
    random = np.random.default_rng(0)
    weights = {name: random.standard_normal((rows, 8)).astype(np.float32) for name, rows in (("table", 600), ("w", 8))}
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


@pytest.mark.parametrize(
    ("places", "reduction", "kept"),
    [
        ([[0], [1], [2]], "none", []),
        (np.stack(np.meshgrid([0, 1, -1], range(4), indexing="ij"), -1).tolist(), "none", []),
        ([[0], [1], [2]], "add", ["foreign"]),
        ([[1], [2]], "none", ["foreign"]),
        ([[2], [1], [0]], "none", ["foreign"]),
        ([[0, 1], [1, 1]], "none", ["foreign"]),
    ],
)
def test_a_scatter_to_all_places_is_what_it_writes(
    places: list[object], reduction: str, kept: list[str], tmp_path: Path
) -> None:
    """As exporters write an assignment to a slice that is all of a mask."""
    given = np.array(places)
    rows = (*given.shape[:-1], *(3, 4)[given.shape[-1] :])
    nodes = f'u = Neg(rows); y = ScatterND <reduction = "{reduction}"> (x, places, u)'
    path = write_onnx(tmp_path / "m.onnx", nodes, {"x": [3, 4], "rows": list(rows)}, {"places": given}, opset=18)
    graph = load(path).graph
    assert [each.op.kind for each in graph.nodes if each.op.kind not in ("unary", "reshape")] == kept
    random = np.random.default_rng(0)
    inputs = {"x": random.random((3, 4), np.float32), "rows": random.random(rows, np.float32)}
    np.testing.assert_array_equal(evaluate_graph(graph, inputs)["y"], run_onnxruntime(str(path), inputs)[0])
