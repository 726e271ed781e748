"""Loading by name or file: what is refused, options, and ONNX files by the generic policy, batch and dtype bound."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.backend.test
import pytest
from onnx import TensorProto, helper
from onnx_models import write_onnx

from iossim.api import optimize
from iossim.base.errors import IossimError, ModelError, OptionError
from iossim.ir.network import ModelSource, Network
from iossim.ir.types import DType, Precision
from iossim.models.load import load, load_source, source_of
from iossim.models.options import LoadOptions
from iossim.report.search_words import optimality
from iossim.schedule.problem import ScheduleProblem


def same(one: Network, other: Network) -> bool:
    return (
        one.graph.hash == other.graph.hash
        and one.units == other.units
        and one.blocks == other.blocks
        and one.precision == other.precision
        and one.source == other.source
        and one.notes == other.notes
    )


@pytest.fixture
def graphs(tmp_path: Path) -> Path:
    """Four small edge lists: chains of 2, 3, 4 and 5 nodes."""
    folder = tmp_path / "graphs"
    folder.mkdir()
    for count in range(2, 6):
        edges = [f"{node} {node + 1}" for node in range(count - 1)]
        (folder / f"chain-{count}.txt").write_text("\n".join([str(count), str(count - 1), *edges]))
    return folder


@pytest.mark.parametrize(
    "options",
    [
        {"model": "squeezenet"},
        {"model": "resnet18", "batch": 3, "dtype": "fp16"},
        {"model": "inception_v3", "units": "none", "max_block": 10},
        {"model": "randwire", "seed": 4},
        {"model": "resnet18", "shapes": {"image": [2, 3, 64, 96]}},
    ],
)
def test_a_source_loads_the_same_network_again(options: dict[str, Any]) -> None:
    network = load(**options)
    assert network.source.model == options["model"]
    assert same(load_source(network.source), network)


def test_a_source_keeps_the_folder_of_graphs(graphs: Path) -> None:
    network = load("randwire", graphs=graphs)
    assert [len(block.units) for block in network.blocks] == [1, 3, 4, 5, 6, 3]
    assert dict(network.source.options) == {"graphs": str(graphs)}
    assert same(load_source(network.source), network)


def test_a_source_states_only_what_is_not_default() -> None:
    assert load("squeezenet").source == ModelSource("squeezenet", 1)
    source = load("squeezenet", batch=2, dtype="tf32", units="fused", max_block=5, seed=3).source
    assert source.batch == 2
    assert dict(source.options) == {"dtype": "tf32", "units": "fused", "max_block": "5", "seed": "3"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "squeezenett"}, "unknown model 'squeezenett'; did you mean 'squeezenet'"),
        ({"model": "nothing.onnx"}, "model file 'nothing.onnx' does not exist"),
        ({"model": "some/where"}, "model file 'some/where' does not exist"),
        ({"model": Path("squeezenet")}, "model file 'squeezenet' does not exist"),
        ({"model": "x" * 5000}, "unknown model 'xxx"),
        ({"model": Path("x" * 5000)}, "does not exist"),
        ({"model": "x" * 5000 + ".onnx"}, "does not exist"),
        ({"model": None}, "model None is no name"),
        ({"model": "squeezenet", "batch": 0}, "batch 0"),
        ({"model": "squeezenet", "batch": 1.5}, "batch 1.5 is not possible: give a whole number"),
        ({"model": "squeezenet", "batch": "2"}, "batch '2' is not possible"),
        ({"model": "squeezenet", "dtype": 16}, "unknown dtype 16"),
        ({"model": "squeezenet", "max_block": "5"}, "at most '5' units"),
        ({"model": "squeezenet", "dtype": "fp61"}, "unknown dtype 'fp61'; did you mean 'fp16'"),
        ({"model": "squeezenet", "units": "conv_relu"}, "unknown unit policy 'conv_relu'; did you mean 'conv-relu'"),
        ({"model": "squeezenet", "max_block": 0}, "at most 0 units"),
        ({"model": "squeezenet", "graphs": "x"}, "is not made from graphs; only these are: randwire"),
        ({"model": "squeezenet", "dimensions": {"N": 2}}, "no symbolic dimensions"),
        ({"model": "gpt2", "dimensions": {"pats": 2}}, "no dimension 'pats'; did you mean 'past'"),
        ({"model": "gpt2", "dimensions": {"past": -1}}, "dimension 'past' of model 'gpt2' is -1"),
        ({"model": "gpt2", "dimensions": {"tokens": 0}}, "dimension 'tokens' of model 'gpt2' is 0"),
        (
            {"model": "gpt2", "dimensions": {"tokens": 2}, "shapes": {"tokens": (1, 3, 768)}},
            "dimension 'tokens' and the shape of input 'tokens' disagree",
        ),
        ({"model": "squeezenet", "shapes": {"x": (1, 3, 8, 8)}}, "its input is 'image'"),
        ({"model": "squeezenet", "shapes": {"image": (3, 224, 224)}}, "shape 3x224x224"),
        ({"model": "squeezenet", "batch": 2, "shapes": {"image": (1, 3, 224, 224)}}, "no other batch"),
        ({"model": "squeezenet", "shapes": {"image": (1, 3, 8, 8)}}, "too small for its kernel"),
        ({"model": "randwire", "graphs": "missing"}, "no folder 'missing' of edge lists"),
    ],
)
def test_mistakes_are_one_line_that_names_them(options: dict[str, Any], message: str) -> None:
    with pytest.raises(IossimError) as caught:
        load(**options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_is_no_model_file(tmp_path: Path) -> None:
    folder = tmp_path / "model.onnx"
    folder.mkdir()
    with pytest.raises(ModelError, match="is a folder"):
        load(folder)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((("colour", "red"),), "unknown option 'colour'"),
        ((("seed", "one"),), "'seed' is 'one'"),
        ((("shape.image", "1x3xwide"),), "'shape.image' is 'wide'"),
        ((("dtype", "fp23"),), "unknown dtype 'fp23'"),
    ],
)
def test_a_source_that_was_tampered_with(options: tuple[tuple[str, str], ...], message: str) -> None:
    with pytest.raises((ModelError, OptionError), match=message):
        load_source(ModelSource("squeezenet", 1, options))


#: An option each that is not its default, and its text in a source.
WRITTEN: dict[str, tuple[Any, dict[str, str]]] = {
    "dtype": (Precision.FP16, {"dtype": "fp16"}),
    "graphs": ("some/folder", {"graphs": "some/folder"}),
    "units": ("conv-relu", {"units": "conv-relu"}),
    "max_block": (7, {"max_block": "7"}),
    "seed": (3, {"seed": "3"}),
    "passes": (("one", "two"), {"passes": "one,two"}),
    "shapes": ({"x": (1, 2), "a.b": (3,)}, {"shape.a.b": "3", "shape.x": "1x2"}),
    "dimensions": ({"N": 4}, {"dimension.N": "4"}),
    "batch": (5, {}),
    "training": (True, {"training": "True"}),
    "block": ("stem", {"block": "stem"}),
}
#: Options that a source does not keep: how strictly the model is read, and what stays in memory.
NOT_KEPT = {"strict", "example_inputs", "onnx_file"}


@pytest.fixture(scope="module")
def network() -> Network:
    return load("ios_sample")


def test_every_option_is_kept_or_named_here() -> None:
    assert {field.name for field in fields(LoadOptions)} == WRITTEN.keys() | NOT_KEPT


@pytest.mark.parametrize("name", sorted(WRITTEN))
def test_an_option_is_read_back_as_it_was(name: str, network: Network) -> None:
    value, texts = WRITTEN[name]
    options = LoadOptions(**{name: value})
    source = options.source(replace(network, precision=options.precision))
    assert dict(source.options) == texts
    assert LoadOptions.of_source(source) == replace(options, dtype=options.precision, batch=options.batch or 1)


def test_defaults_have_no_text(network: Network) -> None:
    assert LoadOptions().source(network) == ModelSource("ios_sample", 1)


@pytest.mark.parametrize("option", ["shape", "seed.x", "colour", "strict"])
def test_what_is_no_kept_option_is_refused(option: str) -> None:
    with pytest.raises(ModelError, match=f"unknown option '{option}'"):
        LoadOptions.of_source(ModelSource("squeezenet", 1, ((option, "1"),)))


@pytest.mark.parametrize(
    ("model", "source"),
    [
        ("squeezenet", "zoo"),
        ("no/model", "zoo"),
        ("model.onnx", "onnx_file"),
        (Path("model"), "onnx_file"),
        (__file__, "onnx_file"),
        ("schedule.json", "ios_file"),
        (Path("schedule.JSON"), "ios_file"),
        (object(), "torch_module"),
        ("torch:Module", "torch_module"),
    ],
)
def test_the_type_and_name_of_a_model_say_its_source(model: Any, source: str) -> None:
    assert source_of(model) == source


LIGHT = Path(onnx.backend.test.__file__).parent / "data" / "light"


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
    path = tmp_path / "half.onnx"
    write_onnx(path, nodes, {"x": (outside, [2, 8])}, {"w": weight}, output={"y": (outside, [2, 4])})
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
    path = write_onnx(
        tmp_path / "m.onnx", [helper.make_node("Relu", ["x"], ["y"])], {"x": ["N", 3, "H", 8]}, output="y"
    )
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
    path = write_onnx(tmp_path / "m.onnx", nodes, {"x": [2, 3], "y": [4, 3]}, output="z")
    network = load(path)
    assert network.graph.types["z"].shape == (6, 3)
    assert load_source(network.source).graph.hash == network.graph.hash


def test_mistakes(tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "m.onnx", [helper.make_node("Relu", ["x"], ["y"])], {"x": [1, 3]}, output="y")
    with pytest.raises(OptionError, match="are for models of the zoo"):
        load(path, graphs=tmp_path)
    (tmp_path / "text.onnx").write_text("hello")
    with pytest.raises(ModelError, match=r"text\.onnx"):
        load(tmp_path / "text.onnx")
    weight = helper.make_tensor("w", TensorProto.FLOAT, [2], [1.0, 2.0])
    constant = [helper.make_node("Constant", [], ["w"], value=weight), helper.make_node("Relu", ["w"], ["y"])]
    with pytest.raises(ModelError, match="computes nothing"):
        load(write_onnx(tmp_path / "constant.onnx", constant, {"x": [1]}, output="y"))
