"""An exported network computes what NumPy does, with weights inside or beside, all or nothing, and is read back as the same graph."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from command_line import printed, refused
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto
from onnx_models import write_onnx as made_onnx
from onnx_of_op import import_onnx, run_onnxruntime
from random_networks import random_inputs, random_network

from iossim.backends.numpy_reference.backend import evaluate_graph
from iossim.base.errors import GraphError, ModelError, OptionError
from iossim.execution.made_inputs import merged_graph
from iossim.ir.builder import GraphBuilder
from iossim.ir.constants import AbsentConstant
from iossim.ir.graph import Graph
from iossim.ir.merging import merge_keys, merged_convolution
from iossim.ir.network import subgraph
from iossim.ir.op import Op
from iossim.ir.ops.functions import Nary, Unary
from iossim.ir.ops.normalization import LayerNorm
from iossim.ir.ops.pool import AveragePool
from iossim.ir.ops.resize import Resize
from iossim.ir.ops.slice import Slice, Split
from iossim.ir.ops.softmax import Softmax
from iossim.ir.ops.unary import Clip
from iossim.ir.types import DType
from iossim.models.load import load
from iossim.models.onnx.constants import ExternalConstant
from iossim.models.onnx.export import export_graph, write_onnx
from iossim.models.onnx.file import OLDEST_OPSET
from iossim.models.onnx.spelling import OPSET

SEEDS = st.integers(0, 2**20)


def assert_computes(
    model: onnx.ModelProto | Path, feeds: dict[str, np.ndarray], expected: dict[str, np.ndarray]
) -> None:
    """ONNX Runtime's outputs of a model are those of these names, but for rounding."""
    given = model if isinstance(model, onnx.ModelProto) else str(model)
    for (name, array), found in zip(expected.items(), run_onnxruntime(given, feeds), strict=True):
        assert found.dtype == array.dtype
        np.testing.assert_allclose(found, array, rtol=1e-4, atol=1e-5 * max(1, np.abs(array).max()), err_msg=name)
    if isinstance(model, onnx.ModelProto):
        assert [value.name for value in model.graph.output] == list(expected)


@settings(max_examples=25)
@given(SEEDS)
def test_a_graph_and_each_of_its_units(seed: int) -> None:
    network = random_network(seed)
    graph = network.graph
    inputs = random_inputs(network)
    assert_computes(export_graph(graph), inputs, evaluate_graph(graph, inputs))
    made = tuple(name for unit in network.units for name in unit.outputs)
    known = {**inputs, **evaluate_graph(replace(graph, outputs=made), inputs)}
    for unit in network.units:
        model = export_graph(subgraph(graph, network.unit_nodes(unit), unit.inputs, unit.outputs))
        assert [value.name for value in model.graph.input] == list(unit.inputs)
        feeds, made = ({name: known[name] for name in names} for names in (unit.inputs, unit.outputs))
        assert_computes(model, feeds, made)


def test_merged_convolutions() -> None:
    merged = activations = 0
    for seed in range(40):
        network = random_network(seed)
        inputs = random_inputs(network)
        classes: dict[str, list[int]] = {}
        for unit, key in enumerate(merge_keys(network, range(len(network.units)))):
            if key is not None:
                classes.setdefault(key, []).insert(0, unit)
        for units in classes.values():
            if len(units) == 1:
                continue
            model = export_graph(merged_graph(network, units))
            stacked = merged_convolution(network, units)
            values = [network.units[unit].outputs[0] for unit in units]
            known = evaluate_graph(replace(network.graph, outputs=(stacked.input, *values)), inputs)
            (output,) = run_onnxruntime(model, {stacked.input: known[stacked.input]})
            expected = np.concatenate([known[value] for value in values], axis=1)
            assert output.shape == stacked.output.shape
            np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-4)
            merged += 1
            activations += stacked.activation != ""
    assert merged >= 20
    assert 0 < activations < merged


@pytest.mark.parametrize("opset", [12, 13, 17, 21])
def test_odd_ops(opset: int) -> None:
    """Parameters that are inputs in ONNX, beside values that have their names; several outputs of one op; a weight as one."""
    b = GraphBuilder("odd")
    x = b.input("x", (2, 4, 6, 6))
    y = b.add(Clip(-0.5, 0.5), x, name="clip")
    z = b.add(Clip(0.0), y, name="clip.min")
    left, right = b.add_all(Split(1, (1, 3)), z, name="split")
    s = b.add(Slice((0,), (2,), (2,), (1,)), right, name="slice")
    p = b.add(AveragePool((3, 3), (2, 2), (1, 1, 1, 1), ceil_mode=True), left, name="pool")
    soft, conv = b.add(Softmax(1, flatten=True), s, name="soft"), b.conv(x, 2, name="conv")
    graph = b.network([x, p, soft, "clip.min", conv, "conv.bias"]).graph
    inputs = {"x": np.random.default_rng(0).standard_normal((2, 4, 6, 6)).astype(np.float32)}
    assert_computes(export_graph(graph, opset), inputs, evaluate_graph(graph, inputs))


@pytest.mark.parametrize(
    ("op", "opset", "message"),
    [
        (Softmax(1), 12, "op 'y': below operator set 13 a softmax takes all axes after its own; write 13"),
        (
            Resize((1.0, 1.0, 2.0, 2.0)),
            11,
            "'graph' cannot be written in operator set 11: .*empty string.*; write another",
        ),
        (
            AveragePool((2, 2), (1, 1), (0, 0, 0, 0), dilations=(2, 2)),
            11,
            "op 'y': AveragePool of operator set 11 has no 'dilations'; write a later",
        ),
    ],
)
def test_what_an_older_operator_set_cannot_say_is_refused(op: Op, opset: int, message: str) -> None:
    b = GraphBuilder("older")
    graph = b.network([b.add(op, b.input("x", (2, 4, 6, 6)), name="y")]).graph
    with pytest.raises(ModelError, match=message):
        export_graph(graph, opset)
    export_graph(graph, 19)


def test_an_operator_of_several_values_is_not_written_by_its_definition() -> None:
    b = GraphBuilder("older")
    graph = b.graph([b.add(LayerNorm(-1), b.input("x", (2, 8)), b.constant("scale", (8,)), name="y")])
    with pytest.raises(ModelError, match="op 'y': operator set 16 has no LayerNormalization; write a later one"):
        export_graph(graph, 16)


def test_the_operator_set_takes_the_element_type() -> None:
    def exported(function: str, dtype: DType) -> int:
        b = GraphBuilder("pair")
        b.dtype = dtype
        graph = b.network([b.add(Nary(function), b.input("x", (4,)), b.input("y", (4,)), name="z")]).graph
        return int(export_graph(graph).opset_import[0].version)

    assert {exported("shift_left", DType.UINT8), exported("mod", DType.INT8), exported("fmod", DType.FLOAT32)} == {
        OPSET
    }
    # Signed integers are shifted, and real numbers divided with a remainder, from 28 on, which older versions of onnx lack.
    if onnx.defs.onnx_opset_version() >= 28:
        assert {exported("shift_left", DType.INT8), exported("mod", DType.FLOAT32)} == {28}


@pytest.mark.parametrize("opset", range(OLDEST_OPSET, onnx.defs.onnx_opset_version() + 1))
def test_every_operator_set_is_written_and_read(opset: int, tmp_path: Path) -> None:
    network = random_network(1)
    model = export_graph(network.graph, opset)
    assert model.opset_import[0].version == opset
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    inputs = random_inputs(network)
    expected = evaluate_graph(network.graph, inputs)
    for name, array in evaluate_graph(import_onnx(path), inputs).items():
        np.testing.assert_allclose(array, expected.pop(name), rtol=1e-4, atol=1e-4)
    assert not expected


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
    assert_computes(path, inputs, evaluate_graph(graph, inputs))


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
    assert [len(load(out, units=units).units) for units in ("model", "none")] == [len(network.units), len(graph.nodes)]
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
    weights = {f"w{each}": TensorProto(dims=[side, side], data_type=1, name=f"w{each}") for each in range(layers)}
    for place, tensor in enumerate(weights.values()):
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", "weights"), ("offset", place * nbytes), ("length", nbytes)):
            tensor.external_data.add(key=key, value=str(value))
    nodes = "; ".join(f"x{each + 1} = MatMul (x{each}, w{each})" for each in range(layers))
    path = made_onnx(tmp_path / "large.onnx", nodes, {"x0": [1, side]}, weights, output={f"x{layers}": [1, side]})
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


@pytest.mark.parametrize(
    ("function", "opset"), [("gelu", 17), ("gelu_tanh", 19), ("mish", 17), ("hard_swish", 13), ("swish", 15)]
)
def test_below_its_operator_set_an_operator_is_its_definition(function: str, opset: int) -> None:
    b = GraphBuilder("functions")
    op = Unary(function, (1.3,) if function == "swish" else ())
    graph = b.graph([b.add(op, b.add(op, b.input("x", (2, 3))))])
    x = {"x": np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)}
    (made,), (expected,) = run_onnxruntime(export_graph(graph, opset=opset), x), evaluate_graph(graph, x).values()
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-6)
