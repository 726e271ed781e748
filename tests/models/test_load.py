"""Loading by name or file: what is refused, options, and ONNX files by the generic policy, batch and dtype bound."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx_models import write_onnx
from seeded_weights import LIGHT_MODELS

from iossim.api import optimize
from iossim.backends.numpy_reference.backend import evaluate_graph
from iossim.base.errors import IossimError, ModelError, OptionError
from iossim.hardware.lowering.unit import unit_steps
from iossim.ir.network import ModelSource, Network
from iossim.ir.types import DType, Precision
from iossim.models.load import load, load_source, source_of
from iossim.models.options import LoadOptions
from iossim.models.source_options import options_of
from iossim.report.search_words import optimality
from iossim.schedule.problem import ScheduleProblem


def assert_loaded_again(network: Network) -> None:
    again = load_source(network.source)
    assert again.graph.hash == network.graph.hash
    for name in ("units", "blocks", "precision", "source", "notes"):
        assert getattr(again, name) == getattr(network, name), name


LIGHT = LIGHT_MODELS / "light_squeezenet.onnx"


@pytest.mark.parametrize(
    "options",
    [
        {"model": "squeezenet"},
        {"model": "resnet18", "batch": 3, "dtype": "fp16"},
        {"model": "inception_v3", "units": "none", "max_block": 10},
        {"model": "randwire", "seed": 4},
        {"model": "resnet18", "shapes": {"image": [2, 3, 64, 96]}},
        {"model": LIGHT},
        {"model": LIGHT, "batch": 2, "units": "none", "max_block": 3},
        {"model": LIGHT, "dtype": "int8"},
    ],
)
def test_a_source_loads_the_same_network_again(options: dict[str, Any]) -> None:
    network = load(**options)
    assert network.source.model == str(options["model"])
    assert_loaded_again(network)


def test_a_source_keeps_the_folder_of_graphs(tmp_path: Path) -> None:
    """Four small edge lists: chains of 2, 3, 4 and 5 nodes."""
    for count in range(2, 6):
        edges = [f"{node} {node + 1}" for node in range(count - 1)]
        (tmp_path / f"chain-{count}.txt").write_text("\n".join([str(count), str(count - 1), *edges]))
    network = load("randwire", graphs=tmp_path)
    assert [len(block.units) for block in network.blocks] == [1, 3, 4, 5, 6, 3]
    assert dict(network.source.options) == {"graphs": str(tmp_path)}
    assert_loaded_again(network)
    (tmp_path / "chain-3.txt").unlink()
    with pytest.raises(ModelError, match=r"3 edge lists.*needs 4"):
        load("randwire", graphs=tmp_path)


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
        ({"model": None}, "`model` of load cannot be None; give a value of type str, Path or nn.Module"),
        ({"model": "squeezenet", "batch": 0}, "batch 0"),
        ({"model": "squeezenet", "batch": 1.5}, "`batch` of load cannot be 1.5; give a value of type int or None"),
        ({"model": "squeezenet", "batch": "2"}, "`batch` of load cannot be '2'"),
        ({"model": "squeezenet", "dtype": 16}, "`dtype` of load cannot be 16; give a value of type str or None"),
        ({"model": "squeezenet", "max_block": "5"}, "`max_block` of load cannot be '5'"),
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


@pytest.mark.parametrize(
    ("option", "text", "message"),
    [
        *((name, "1", f"unknown option '{name}'") for name in ("shape", "seed.x", "colour", "strict")),
        ("seed", "one", "'seed' is 'one'"),
        ("shape.image", "1x3xwide", "'shape.image' is '1x3xwide'"),
        ("dtype", "fp23", "unknown dtype 'fp23'"),
    ],
)
def test_a_source_that_was_tampered_with(option: str, text: str, message: str) -> None:
    with pytest.raises((ModelError, OptionError), match=message):
        load_source(ModelSource("squeezenet", 1, ((option, text),)))


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
    "static_part": (True, {"static_part": "True"}),
}
#: Options that a source does not keep: how strictly the model is read, and what stays in memory.
NOT_KEPT = {"strict", "example_inputs", "onnx_file"}


@pytest.fixture(scope="module")
def network() -> Network:
    return load("ios_sample")


@pytest.mark.parametrize("name", sorted({field.name for field in fields(LoadOptions)} - NOT_KEPT))
def test_an_option_is_read_back_as_it_was(name: str, network: Network) -> None:
    value, texts = WRITTEN[name]
    options = LoadOptions(**{name: value})
    source = options.source(replace(network, precision=options.precision))
    assert dict(source.options) == texts
    assert options_of(source) == replace(options, dtype=options.precision, batch=options.batch or 1)


def test_defaults_have_no_text(network: Network) -> None:
    assert LoadOptions().source(network) == ModelSource("ios_sample", 1)


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
    nodes = f"a = Cast <to={code}> (x); b = MatMul(a, w); y = Cast <to={outside}> (b)"
    declared = {"x": (outside, [2, 8])}, {"w": weight}
    path = write_onnx(tmp_path / "half.onnx", nodes, *declared, output={"y": (outside, [2, 4])})
    network, asked = load(path), load(path, dtype="fp32")
    assert network.precision == load_source(network.source).precision == precision
    assert asked.precision == load_source(asked.source).precision == "fp32"
    assert network.notes == asked.notes == ()
    is_half = precision != "fp32"
    remarked = stored == "DOUBLE" or (is_half and keeps_io)
    assert (bool(network.remarks), bool(asked.remarks)) == (remarked, stored != "FLOAT")
    # The casts around a network of 16 bits are units of it; another precision leaves nothing to cast.
    inside = DType.FLOAT32 if is_half and keeps_io else DType(precision)
    assert {network.graph.types[name].dtype for name in "xy"} == {inside}
    assert network.graph.hash == load_source(network.source).graph.hash
    assert {value.dtype for value in asked.graph.types.values()} == {DType.FLOAT32}
    found = optimize(asked, "v100-sxm2")
    assert found.proven
    assert str(optimality(found)).startswith("Provably optimal")


def test_a_model_of_two_types_computes_in_both(tmp_path: Path) -> None:
    """Products in fp32 among others in fp16: priced as such, and larger than any number of fp16."""
    code, eye = TensorProto.FLOAT16, np.eye(8, dtype=np.float32)
    weights = {"large": 300 * eye, "small": eye / 300, **dict.fromkeys(("v", "w"), eye.astype(np.float16))}
    nodes = "a = MatMul(x, v); b = Cast <to=1> (a); c = MatMul(b, large); d = MatMul(c, small)"
    nodes += f"; e = Cast <to={code}> (d); y = MatMul(e, w)"
    path = write_onnx(tmp_path / "m.onnx", nodes, {"x": (code, [2, 8])}, weights, output={"y": (code, [2, 8])})
    network, other = load(path, dtype="fp16"), load(path, dtype="bf16")
    assert network.reading == ("Of its 6 ops the model has 3 in fp32, the rest in fp16.",)
    x = {"x": np.full((2, 8), 300, np.float16)}
    np.testing.assert_allclose(evaluate_graph(network.graph, x)["y"], x["x"], rtol=1e-3)
    precisions = [step.precision for unit in network.units for step in unit_steps(network, unit)]
    assert precisions == [Precision.FP16, Precision.FP32, Precision.FP32, Precision.FP16]
    assert {step.precision for unit in other.units for step in unit_steps(other, unit)} == {Precision.BF16}


def test_squeezenet_is_cut_at_its_fire_modules(tmp_path: Path) -> None:
    """Any existing file is taken for a model, whatever its name."""
    path = shutil.copy(LIGHT, tmp_path / "model")
    network = load(str(path))
    assert network.name == "model"
    assert network.graph.hash == load(LIGHT).graph.hash
    assert Counter(unit.kind for unit in network.units) == {"Conv-Relu": 26, "Concat": 8, "Pool": 4, "Softmax": 1}
    # Of a fire module the squeeze is a block, the two expansions and their concat another.
    assert Counter(len(block.units) for block in network.blocks) == {1: 15, 3: 8}


def test_resnet_has_something_to_run_side_by_side_where_it_changes_its_shape() -> None:
    """Elsewhere the residual is the input itself, and all the rest a chain."""
    network = load(LIGHT_MODELS / "light_resnet50.onnx", batch=4, dtype="fp16")
    assert Counter(len(block.units) for block in network.blocks) == {1: 41, 4: 4}
    types = network.graph.types
    assert types[network.graph.outputs[0]].shape == (4, 1000)
    assert {types[name].dtype for name in network.graph.inputs} == {DType.FLOAT16}
    for block in network.blocks:
        assert len(ScheduleProblem.of_block(network, block)) == len(block.units)


def test_symbolic_dimensions_are_bound_and_kept(tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "m.onnx", "y = Relu(x)", {"x": ["N", 3, "H", 8]})
    network, whole = load(path, batch=2, dimensions={"H": 5}), load(path, shapes={"x": [2, 3, 5, 8]})
    assert network.graph.types["y"].shape == whole.graph.types["y"].shape == (2, 3, 5, 8)
    assert dict(network.source.options) == {"dimension.H": "5"}
    assert whole.source.batch == 2
    for each in (network, whole):
        assert_loaded_again(each)
    with pytest.raises(ModelError, match="'H'"):
        load(path, batch=2)


def test_inputs_without_a_common_batch_are_loaded_again_as_declared(tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "m.onnx", "z = Concat <axis=0> (x, y)", {"x": [2, 3], "y": [4, 3]}, output="z")
    network = load(path)
    assert network.graph.types["z"].shape == (6, 3)
    assert_loaded_again(network)


def test_mistakes(tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "m.onnx", "y = Relu(x)", {"x": [1, 3]})
    with pytest.raises(OptionError, match="are for models of the zoo"):
        load(path, graphs=tmp_path)
    (tmp_path / "text.onnx").write_text("hello")
    with pytest.raises(ModelError, match=r"text\.onnx"):
        load(tmp_path / "text.onnx")
    (tmp_path / "folder.onnx").mkdir()
    with pytest.raises(ModelError, match="is a folder"):
        load(tmp_path / "folder.onnx")
    constant = "w = Constant <value = float[2] {1.0, 2.0}> (); y = Relu(w)"
    with pytest.raises(ModelError, match="computes nothing"):
        load(write_onnx(tmp_path / "constant.onnx", constant, {"x": [1]}))
