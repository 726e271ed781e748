"""Graphs as ONNX files: weights inside or beside, all or nothing, read back as the same graph."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from command_line import printed, refused
from onnx import TensorProto, helper
from onnx_import import import_onnx
from onnx_of_op import run_onnxruntime
from random_networks import random_inputs, random_network

from iossim.backends.numpy_reference.execute import evaluate_graph
from iossim.base.errors import GraphError, OptionError
from iossim.ir.constants import AbsentConstant
from iossim.ir.graph import Graph
from iossim.models.load import load
from iossim.models.onnx.constants import ExternalConstant
from iossim.models.onnx.export import write_onnx


@pytest.mark.parametrize("largest_inside_bytes", [0, 2**30])
def test_weights_inside_or_beside(largest_inside_bytes: int, tmp_path: Path) -> None:
    network = random_network(3)
    graph = network.graph
    path = tmp_path / "m.onnx"
    path.write_text("what was there before")
    written = write_onnx(graph, path, largest_inside_bytes=largest_inside_bytes)
    assert written == sorted(tmp_path.iterdir())
    assert len(written) == (1 if largest_inside_bytes else 2)
    again = import_onnx(path)
    assert again.hash == graph.hash
    for name, constant in graph.constants.items():
        assert isinstance(again.constants[name], ExternalConstant) == (not largest_inside_bytes)
        np.testing.assert_array_equal(again.constants[name].load(), constant.load())
    inputs = random_inputs(network)
    expected = evaluate_graph(graph, inputs)
    for name, array in zip(graph.outputs, run_onnxruntime(str(path), inputs), strict=True):
        np.testing.assert_allclose(array, expected[name], rtol=1e-4, atol=1e-5 * max(1, np.abs(expected[name]).max()))


@pytest.mark.parametrize("largest_inside_bytes", [0, 2**30])
def test_what_cannot_be_written_leaves_all_as_it_was(largest_inside_bytes: int, tmp_path: Path) -> None:
    graph = random_network(3).graph
    absent = {name: AbsentConstant(constant.type) for name, constant in graph.constants.items()}
    inputs = {name: graph.types[name] for name in graph.inputs}
    broken = Graph.create(inputs, graph.outputs, graph.nodes, absent)
    path = tmp_path / "m.onnx"
    path.write_text("what was there before")
    with pytest.raises(GraphError, match="without its weights"):
        write_onnx(broken, path, largest_inside_bytes=largest_inside_bytes)
    with pytest.raises(OptionError, match="operator set 6 is not possible; give 7 to"):
        write_onnx(graph, path, opset=6)
    with pytest.raises(OptionError, match="cannot be written"):
        write_onnx(graph, tmp_path / "none" / "m.onnx")
    assert path.read_text() == "what was there before"
    assert list(tmp_path.iterdir()) == [path]


def test_models_export(tmp_path: Path) -> None:
    out = tmp_path / "m.onnx"
    printed(f"models export ios_sample --batch 2 --dtype fp16 --opset 13 --out {out}")
    assert onnx.load(out).opset_import[0].version == 13
    network = load("ios_sample", batch=2, dtype="fp16")
    graph = import_onnx(out)
    assert graph.hash == network.graph.hash
    (name,) = graph.inputs
    x = np.random.default_rng(0).standard_normal(graph.types[name].shape).astype(np.float16)
    (expected,) = evaluate_graph(network.graph, {name: x}).values()
    (found,) = run_onnxruntime(str(out), {name: x})
    np.testing.assert_allclose(found, expected, rtol=2e-2, atol=2e-2 * np.abs(expected).max())
    assert "no scales to write" in refused(f"models export ios_sample --dtype int8 --out {out}.int8")
    assert "operator set 99" in refused(f"models export ios_sample --opset 99 --out {out}")
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.slow
def test_a_model_of_more_than_two_gigabytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its weights are never read to schedule it, and one at a time to export it. The file has holes, and takes no room."""
    side, layers = 12_000, 4
    nbytes = 4 * side * side
    weights = [TensorProto(name=f"w{each}", dims=[side, side], data_type=TensorProto.FLOAT) for each in range(layers)]
    for place, tensor in enumerate(weights):
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", "weights"), ("offset", place * nbytes), ("length", nbytes)):
            tensor.external_data.add(key=key, value=str(value))
    nodes = [helper.make_node("MatMul", [f"x{each}", f"w{each}"], [f"x{each + 1}"]) for each in range(layers)]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, side]) for name in ("x0", f"x{layers}")]
    graph = helper.make_graph(nodes, "large", values[:1], values[1:], weights)
    path = tmp_path / "large.onnx"
    imports = [helper.make_opsetid("", 17)]
    path.write_bytes(helper.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString())
    (tmp_path / "weights").touch()
    os.truncate(tmp_path / "weights", layers * nbytes)
    assert layers * nbytes > 2**31

    out = tmp_path / "exported.onnx"
    loaded: list[Path] = []
    load_weights = ExternalConstant.load
    monkeypatch.setattr(ExternalConstant, "load", lambda self: loaded.append(self.path) or load_weights(self))
    printed(f"models show {path}")
    printed(f"compare {path} -d a100-sxm-40gb")
    assert loaded == []
    printed(f"models export {path} --out {out}")
    assert len(loaded) == layers
    assert out.stat().st_size < 2**20
    assert (tmp_path / "exported.onnx.weights").stat().st_size >= layers * nbytes
    assert import_onnx(out).hash == import_onnx(path).hash
    out.with_name("exported.onnx.weights").unlink()  # which has no holes
