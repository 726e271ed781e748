"""Operators without a class of their own: carried whole, computed by ONNX, priced as traffic, exported as themselves."""

import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx_models import nodes_of, write_onnx
from onnx_of_op import import_onnx, run_onnxruntime

from iossim.backends.numpy_reference.backend import evaluate_graph
from iossim.base.errors import GraphError, ModelError
from iossim.hardware.load import device
from iossim.hardware.lowering.unit import lower_unit
from iossim.ir.graph import Graph
from iossim.ir.onnx_node import canonical, compute
from iossim.ir.ops.functions import Unary
from iossim.ir.types import DType, TensorType
from iossim.models.load import load
from iossim.models.onnx.export import export_graph
from iossim.models.partition import retype

ALIGNED = "y = RoiAlign (x, boxes, of)"
EINSUM = '[{}] {} = Einsum <equation="ncc,mc->nm"> (x, w)'


def write(path: Path, nodes: str = EINSUM.format("e", "y")) -> Path:
    return write_onnx(path, nodes, {"x": [2, 3, 3]}, {"w": np.arange(12, dtype=np.float32).reshape(4, 3)})


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    return import_onnx(write(tmp_path / "m.onnx"))


def test_it_computes_what_onnxruntime_does_and_exports_as_itself(graph: Graph, tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 3)).astype(np.float32)
    (expected,) = run_onnxruntime(str(tmp_path / "m.onnx"), {"x": x})
    np.testing.assert_allclose(evaluate_graph(graph, {"x": x})["y"], expected, rtol=1e-6)
    model = export_graph(graph)
    assert [each.op_type for each in model.graph.node] == ["Einsum"]
    np.testing.assert_allclose(run_onnxruntime(model, {"x": x})[0], expected, rtol=1e-6)
    (tmp_path / "again.onnx").write_bytes(model.SerializeToString())
    assert import_onnx(tmp_path / "again.onnx").nodes[0].op.op_type == "Einsum"


def test_names_do_not_count(graph: Graph, tmp_path: Path) -> None:
    other = import_onnx(write(tmp_path / "n.onnx", EINSUM.format("other", "z") + "; y = Identity (z)"))
    assert other.nodes[0].op == graph.nodes[0].op


def test_types_are_those_that_it_was_read_with(graph: Graph) -> None:
    op = graph.nodes[0].op
    half = [TensorType(shape, DType.FLOAT16) for shape in ((2, 3, 3), (4, 3))]
    assert op.infer(half) == (TensorType((2, 4), DType.FLOAT16),)
    with pytest.raises(
        GraphError, match=r"was read with inputs fp32\[2x3x3\], fp32\[4x3\], not fp32\[5x3x3\], fp32\[4x3\]"
    ):
        op.infer([TensorType((5, 3, 3)), TensorType((4, 3))])
    with pytest.raises(GraphError, match="was read with inputs"):
        op.infer([half[0], TensorType((4, 3))])
    assert retype(graph, DType.FLOAT16).types["y"].dtype is DType.FLOAT16


def test_a_network_says_what_it_does_not_know_and_prices_the_traffic(tmp_path: Path) -> None:
    nodes = '[g] g = Einsum <equation="ncc,mdd->nm"> (x, x); [d] y = Det (g)'
    path = write_onnx(tmp_path / "n.onnx", nodes, {"x": [2, 3, 3]})
    network = load(path)
    assert network.foreign == {"Det": 1, "Einsum": 1}
    assert network.remarks == (
        "Priced as memory traffic, since iossim does not know what they compute: Det, Einsum.",
        "These run matrix products or convolutions, and take far longer than priced: Einsum.",
    )
    assert [unit.kind for unit in network.units] == ["Einsum", "Det"]
    ((first, *_),) = lower_unit(network, network.units[0], device("v100-sxm2"))
    assert (first.kernels[0].flops, first.kernels[0].bytes_written) == (16, 16)
    assert network.graph.work(network.graph.nodes[0]).flops == 0
    with pytest.raises(ModelError, match="does not know: Det, Einsum; leave out `strict`"):
        load(path, strict=True)


def test_the_file_may_say_what_shapes_inference_leaves_open(tmp_path: Path) -> None:
    """NonZero's output depends on its input; a file that fixes it is believed until it turns out wrong."""
    places = {"y": (TensorProto.INT64, [1, 2])}
    path = write_onnx(tmp_path / "m.onnx", "[n] y = NonZero (x)", {"x": [3]}, output=places)
    graph = import_onnx(path)
    assert evaluate_graph(graph, {"x": np.array([0, 1, 2], np.float32)})["y"].tolist() == [[1, 2]]
    with pytest.raises(GraphError, match=r"NonZero made an output of shape \[1, 3\] where the model says \[1, 2\]"):
        evaluate_graph(graph, {"x": np.ones(3, np.float32)})
    with pytest.raises(ModelError, match="NonZero"):
        import_onnx(path, batch=4)  # what the file declares holds for its own shapes only


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("y = GRU <hidden_size=2, clip=1.0> (s, w, r)", "foreign"),
        ("y = ReduceSum <noop_with_empty_axes=1> (s)", "foreign"),
        ("y = ReduceSum <noop_with_empty_axes=1> (s, axes)", "reduce"),
    ],
)
def test_what_an_op_does_not_cover(text: str, kind: str, tmp_path: Path) -> None:
    weights = {"w": np.zeros((1, 6, 3), np.float32), "r": np.zeros((1, 6, 2), np.float32), "axes": np.array([1])}
    (found,) = import_onnx(write_onnx(tmp_path / "m.onnx", text, {"s": [4, 2, 3]}, weights)).nodes
    assert found.op.kind == kind


def test_an_operator_of_onnxruntime(tmp_path: Path) -> None:
    """ONNX's reference does not know com.microsoft; its shape is the file's word."""
    inverse = "[f] y = com.microsoft.Inverse (x)"
    path = write_onnx(tmp_path / "m.onnx", inverse, {"x": [2, 2]}, output={"y": [2, 2]}, domains=["com.microsoft"])
    graph = import_onnx(path)
    assert graph.nodes[0].op.op_type == "com.microsoft.Inverse"
    x = np.array([[1, 2], [3, 5]], dtype=np.float32)
    np.testing.assert_allclose(evaluate_graph(graph, {"x": x})["y"], np.linalg.inv(x), rtol=1e-5)
    np.testing.assert_allclose(run_onnxruntime(export_graph(graph), {"x": x})[0], np.linalg.inv(x), rtol=1e-5)


def test_equal_nodes_of_other_shapes_are_computed_by_onnxruntime_too(tmp_path: Path) -> None:
    """An operator that the reference lacks, and one that it knows in a newer meaning alone."""
    gelu, aligned = map(canonical, nodes_of(f"y = com.microsoft.Gelu (x); {ALIGNED}"))
    boxes, of = np.array([[0, 0, 2.5, 2.5]], np.float32), np.array([0])
    for size in (4, 5):
        x = np.random.default_rng(size).standard_normal((1, 2, size, size)).astype(np.float32)
        (y,) = compute(gelu, 1, [x])
        np.testing.assert_allclose(y, Unary("gelu").evaluate([x])[0], rtol=1e-5, atol=1e-6)
        (old,), (new,) = compute(aligned, 11, [x, boxes, of]), compute(aligned, 16, [x, boxes, of])
        inputs = {"x": x.shape, "boxes": boxes.shape, "of": (TensorProto.INT64, of.shape)}
        path = write_onnx(tmp_path / "m.onnx", ALIGNED, inputs, opset=11)
        (first,) = run_onnxruntime(str(path), {"x": x, "boxes": boxes, "of": of})
        np.testing.assert_array_equal(old, first)
        assert not np.allclose(old, new)


def test_it_runs_on_the_cpu(tmp_path: Path) -> None:
    from iossim.api import optimize
    from iossim.execution.backend import create_backend
    from iossim.execution.lower import lower_schedule

    network = load(write(tmp_path / "m.onnx"))
    schedule = optimize(network, None, cost_model="random:0", scheduler="sequential")
    plan = lower_schedule(schedule, network, in_place=True)
    x = np.ones((2, 3, 3), dtype=np.float32)
    made = create_backend("onnxruntime_cpu").execute(network, plan, {"x": x})
    np.testing.assert_allclose(made["y"], evaluate_graph(network.graph, {"x": x})["y"])


def test_older_operator_sets_are_exported_as_they_are(tmp_path: Path) -> None:
    """RoiAlign's coordinates are another by default from operator set 16 on."""
    nodes = ALIGNED.replace("y =", "h =") + "; y = Relu (h)"
    weights = {"boxes": np.array([[0, 0, 2.5, 2.5]], np.float32), "of": np.array([0])}
    graph = import_onnx(write_onnx(tmp_path / "m.onnx", nodes, {"x": [1, 2, 4, 4]}, weights, opset=11))
    model = export_graph(graph)
    assert [entry.version for entry in model.opset_import] == [11]
    x = np.random.default_rng(0).standard_normal((1, 2, 4, 4)).astype(np.float32)
    np.testing.assert_allclose(run_onnxruntime(model, {"x": x})[0], evaluate_graph(graph, {"x": x})["y"], rtol=1e-5)
    with pytest.raises(ModelError, match="RoiAlign of operator set 11 is another in 17; write 11"):
        export_graph(graph, 17)


def test_a_library_that_the_reference_lacks_is_no_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    decode = canonical(*nodes_of('image = ImageDecoder <pixel_format="RGB"> (bytes)'))
    with pytest.raises(GraphError, match=r"cannot be computed: .*Pillow"):
        compute(decode, 20, [np.zeros(8, np.uint8)])


@pytest.mark.parametrize("kind", ["initializer", "sparse_initializer"])
def test_a_node_whose_graphs_hold_weights_has_no_bytes_without_names(kind: str) -> None:
    branch = helper.make_graph(nodes_of("t = Add(x, w)"), "branch", [], [helper.make_empty_tensor_value_info("t")])
    getattr(branch, kind).add()
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    with pytest.raises(ValueError, match="its graph 'branch' holds weights"):
        canonical(node)
