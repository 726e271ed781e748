"""ONNX files become networks: units by the generic policy, blocks at cuts, batch and dtype bound."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnx.backend.test
import pytest
from onnx import TensorProto, helper

from iossim.api import optimize
from iossim.base.errors import ModelError, OptionError
from iossim.ir.types import DType
from iossim.models.load import load, load_source
from iossim.report.search_words import optimality
from iossim.schedule.problem import ScheduleProblem

LIGHT = Path(onnx.backend.test.__file__).parent / "data" / "light"


def save(path: Path, nodes: list[onnx.NodeProto], inputs: dict[str, list[int | str]], output: str) -> Path:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
    result = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "test", values, [result])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


@pytest.mark.parametrize("keeps_io", [False, True])
@pytest.mark.parametrize(
    ("stored", "precision"), [("FLOAT16", "fp16"), ("BFLOAT16", "bf16"), ("FLOAT", "fp32"), ("DOUBLE", "fp32")]
)
def test_the_default_precision_is_that_of_the_files_weights(
    stored: str, precision: str, keeps_io: bool, tmp_path: Path
) -> None:
    code = TensorProto.DataType.Value(stored)
    outside = TensorProto.FLOAT if keeps_io else code
    weight = helper.make_tensor("w", code, [8, 4], np.ones(32, np.float32).tolist())
    nodes = [
        helper.make_node("Cast", ["x"], ["a"], to=code),
        helper.make_node("MatMul", ["a", "w"], ["b"]),
        helper.make_node("Cast", ["b"], ["y"], to=outside),
    ]
    x, y = (helper.make_tensor_value_info(name, outside, [2, size]) for name, size in (("x", 8), ("y", 4)))
    model = helper.make_model(
        helper.make_graph(nodes, "half", [x], [y], [weight]), opset_imports=[helper.make_opsetid("", 17)]
    )
    path = tmp_path / "half.onnx"
    onnx.save(model, path)
    network = load(path)
    assert str(network.precision) == precision
    assert str(load_source(network.source).precision) == precision
    assert not network.notes
    assert bool(network.remarks) == (stored == "DOUBLE")
    asked = load(path, dtype="fp32")
    assert str(asked.precision) == str(load_source(asked.source).precision) == "fp32"
    assert not asked.notes
    assert bool(asked.remarks) == (stored != "FLOAT")
    found = optimize(asked, "v100-sxm2")
    assert found.proven
    assert str(optimality(found)).startswith("Provably optimal")


def test_squeezenet_is_cut_at_its_fire_modules() -> None:
    network = load(LIGHT / "light_squeezenet.onnx")
    assert network.name == "light_squeezenet"
    assert Counter(unit.kind for unit in network.units) == {"Conv-Relu": 26, "Concat": 8, "Pool": 4, "Softmax": 1}
    # Of a fire module the squeeze is a block, the two expansions and their concat another.
    sizes = [len(block.units) for block in network.blocks]
    assert Counter(sizes) == {1: 15, 3: 8}


def test_resnet_has_something_to_run_side_by_side_where_it_changes_its_shape() -> None:
    """Elsewhere the residual is the input itself, and all the rest a chain."""
    network = load(str(LIGHT / "light_resnet50.onnx"), batch=4, dtype="fp16")
    sizes = Counter(len(block.units) for block in network.blocks)
    assert sizes == {1: 41, 4: 4}
    assert network.source.batch == 4
    types = network.graph.types
    assert types[network.graph.outputs[0]].shape == (4, 1000)
    assert {types[name].dtype for name in network.graph.inputs} == {DType.FLOAT16}
    for block in network.blocks:
        assert len(ScheduleProblem.of_block(network, block)) == len(block.units)


@pytest.mark.parametrize("options", [{}, {"batch": 2, "units": "none", "max_block": 3}, {"dtype": "int8"}])
def test_a_source_loads_the_file_again(options: dict[str, object]) -> None:
    network = load(LIGHT / "light_squeezenet.onnx", **options)  # type: ignore[arg-type]
    again = load_source(network.source)
    assert again.graph.hash == network.graph.hash
    assert (again.units, again.blocks, again.notes) == (network.units, network.blocks, network.notes)
    assert again.source == network.source


def test_any_existing_file_is_taken_for_a_model(tmp_path: Path) -> None:
    path = tmp_path / "model"
    shutil.copy(LIGHT / "light_squeezenet.onnx", path)
    assert load(str(path)).graph.hash == load(LIGHT / "light_squeezenet.onnx").graph.hash


def test_symbolic_dimensions_are_bound_and_kept(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", [helper.make_node("Relu", ["x"], ["y"])], {"x": ["N", 3, "H", 8]}, "y")
    network = load(path, batch=2, dimensions={"H": 5})
    assert network.graph.types["y"].shape == (2, 3, 5, 8)
    assert dict(network.source.options) == {"dimension.H": "5"}
    assert load_source(network.source).graph.hash == network.graph.hash
    whole = load(path, shapes={"x": [2, 3, 5, 8]})
    assert whole.source.batch == 2
    assert load_source(whole.source).graph.hash == whole.graph.hash == network.graph.hash
    with pytest.raises(ModelError, match="'H'"):
        load(path, batch=2)


def test_inputs_without_a_common_batch_are_loaded_again_as_declared(tmp_path: Path) -> None:
    nodes = [helper.make_node("Concat", ["x", "y"], ["z"], axis=0)]
    path = save(tmp_path / "m.onnx", nodes, {"x": [2, 3], "y": [4, 3]}, "z")
    network = load(path)
    assert network.graph.types["z"].shape == (6, 3)
    assert load_source(network.source).graph.hash == network.graph.hash


def test_mistakes(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", [helper.make_node("Relu", ["x"], ["y"])], {"x": [1, 3]}, "y")
    with pytest.raises(OptionError, match="are for models of the zoo"):
        load(path, graphs=tmp_path)
    (tmp_path / "text.onnx").write_text("hello")
    with pytest.raises(ModelError, match=r"text\.onnx"):
        load(tmp_path / "text.onnx")
    weight = helper.make_tensor("w", TensorProto.FLOAT, [2], [1.0, 2.0])
    constant = [helper.make_node("Constant", [], ["w"], value=weight), helper.make_node("Relu", ["w"], ["y"])]
    with pytest.raises(ModelError, match="computes nothing"):
        load(save(tmp_path / "constant.onnx", constant, {"x": [1]}, "y"))
