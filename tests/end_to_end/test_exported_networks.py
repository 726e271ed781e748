"""Exported networks and the light models of the onnx wheel: imported, rewritten, scheduled, executed, on devices of all generations."""

from collections import Counter
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import numpy as np
import onnx
import pytest
from checked_execution import execute
from command_line import printed, printed_everywhere, printed_json, refused
from exported_networks import NETWORKS, Writer, assert_equal_outputs
from onnx import TensorProto
from onnx_of_op import import_onnx, run_onnxruntime
from seeded_weights import LIGHT_MODELS, write_seeded
from test_optimize import check_comparison

import iossim
from iossim import api
from iossim.api import compare, optimize, search_options
from iossim.backends.numpy_reference.backend import evaluate_graph
from iossim.base.errors import OptionError
from iossim.execution.lower import lower_schedule
from iossim.execution.memory import check_happens_before, plan_memory
from iossim.ir.builder import GraphBuilder
from iossim.ir.constants import AbsentConstant
from iossim.ir.graph import Graph
from iossim.ir.network import Network
from iossim.ir.op import Array
from iossim.ir.ops.functions import Unary
from iossim.models.catalogue import zoo_models
from iossim.models.load import load
from iossim.models.onnx.export import check_exportable, export_graph, write_onnx
from iossim.models.passes.pipeline import canonicalise
from iossim.transforms.rewriting.scheduled import Rewriting

#: Attention heads and pyramids make wide blocks, which take long to search without pruning.
PRUNED = search_options("general", 3, 4)
DEVICES = ("v100-sxm2", "t4", "a100-sxm-40gb")


def written(name: str, folder: Path) -> Path:
    path = folder / f"{name}.onnx"
    path.write_bytes(NETWORKS[name][0]().SerializeToString())
    return path


def made_inputs(network: Network) -> dict[str, Array]:
    """Noise, and small whole numbers: word ids and masks."""
    random = np.random.default_rng(0)
    found: dict[str, Array] = {}
    for name in network.graph.inputs:
        wanted = network.graph.types[name]
        floats = random.standard_normal(wanted.shape)
        whole = random.integers(0, 2, wanted.shape)
        found[name] = (floats if wanted.dtype.is_floating else whole).astype(wanted.dtype.numpy)
    return found


@pytest.mark.parametrize("name", NETWORKS)
def test_a_scheduled_network_computes_what_onnxruntime_does(name: str, tmp_path: Path) -> None:
    path = written(name, tmp_path)
    network = load(path, dimensions=NETWORKS[name][1], strict=True)
    inputs = made_inputs(network)
    expected = run_onnxruntime(str(path), inputs)
    schedule = optimize(network, "v100-sxm2", options=PRUNED)
    sequential = optimize(network, "v100-sxm2", scheduler="sequential")
    assert schedule.latency_us <= sequential.latency_us * (1 + 1e-12)  # summed in another order
    plan = plan_memory(lower_schedule(schedule, network, in_place=True))
    assert_equal_outputs(execute(plan, network, inputs), expected, network.graph.outputs)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_goes_back_to_onnx(name: str, tmp_path: Path) -> None:
    path = written(name, tmp_path)
    dimensions = NETWORKS[name][1]
    graph = canonicalise(import_onnx(path, dimensions=dimensions))
    model = export_graph(graph)
    inputs = made_inputs(load(path, dimensions=dimensions))
    made = dict(zip(graph.outputs, run_onnxruntime(model, inputs), strict=True))
    assert_equal_outputs(made, run_onnxruntime(str(path), inputs), graph.outputs)
    again = tmp_path / "again.onnx"
    again.write_bytes(model.SerializeToString())
    assert canonicalise(import_onnx(again)).hash == graph.hash


def test_a_layer_of_a_language_model_has_the_units_of_an_engine(tmp_path: Path) -> None:
    """Rotary positions are one unit, keys repeated for two heads and the selected scores part of the attention."""
    kinds = Counter(unit.kind for unit in load(written("language_model", tmp_path)).units)
    products = {"Matmul": 3, "Matmul-Add": 2, "Matmul-Swish": 1, "Matmul-Mul": 1}
    assert kinds == {"Rms-Norm": 2, "Gather-Mul-Mul-Mul-Add": 2, "Attention": 1, **products}


def test_branches_of_a_detection_head_run_side_by_side(tmp_path: Path) -> None:
    network = load(written("detection_head", tmp_path))
    assert optimize(network, "v100-sxm2", options=PRUNED).streams > 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "device"),
    list(zip(sorted(path.stem for path in LIGHT_MODELS.glob("*.onnx")), cycle(DEVICES), strict=False)),
)
def test_light_models_scheduled_for_a_device_and_exported(name: str, device: str, tmp_path: Path) -> None:
    """Each of three devices has every third model: what a plan computes hangs on its schedule alone."""
    path = write_seeded(LIGHT_MODELS / f"{name}.onnx", tmp_path / f"{name}.onnx")
    network = load(path)
    inputs = made_inputs(network)
    expected = run_onnxruntime(str(path), inputs)
    assert expected[0].std() > 0.01 * np.abs(expected[0]).max()  # the weights tell the classes apart
    plan = plan_memory(lower_schedule(optimize(network, device), network, in_place=True))
    assert_equal_outputs(execute(plan, network, inputs), expected, network.graph.outputs)
    (exported,) = write_onnx(network.graph, tmp_path / "exported.onnx")
    made = dict(zip(network.graph.outputs, run_onnxruntime(str(exported), inputs), strict=True))
    assert_equal_outputs(made, expected, network.graph.outputs)
    assert import_onnx(exported).hash == network.graph.hash


def with_unknown_operator(path: Path) -> Path:
    w = Writer()
    gram = w.node("Einsum", w.node("Relu", "x"), "x", equation="ncc,mdd->nm")
    path.write_bytes(w.model({"x": (TensorProto.FLOAT, ("n", 3, 3))}, [w.node("Sigmoid", gram)]).SerializeToString())
    return path


def test_unknown_operators_are_told_and_refused(tmp_path: Path) -> None:
    path = with_unknown_operator(tmp_path / "m.onnx")
    told = "Priced as memory traffic, since iossim does not know what they compute: Einsum."
    for command in ("models show", "optimize -d t4", "compare -d t4"):
        arguments = [*command.split(), str(path), "--dim", "n=4"]
        assert told in " ".join(printed(arguments).split()), command
        assert "does not know: Einsum; leave out --strict" in refused([*arguments, "--strict"])
    assert printed_json(["models", "show", str(path), "--dim", "n=4", "--json"])["foreign_ops"] == {"Einsum": 1}
    compared = printed_json(["compare", "-d", "t4", str(path), "--dim", "n=4", "--json"])
    assert all(told in found["remarks"] for found in compared["schedules"])
    assert told in printed_json(["optimize", "-d", "t4", str(path), "--dim", "n=4", "--json"])["remarks"]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (["--dim", "n"], "--dim 'n' is not a size; write NAME=8"),
        (["--dim", "n=-1"], "is not a size"),
        (["--dim", "n=0"], "computes nothing"),
        (["--dim", "n=4", "--dim", "n=5"], "--dim names 'n' 2 times; give it once"),
        (["--dim", "m=4"], "has no open dimension 'm'; known: n"),
    ],
)
def test_dimensions_that_cannot_be(given: list[str], reason: str, tmp_path: Path) -> None:
    path = with_unknown_operator(tmp_path / "m.onnx")
    assert reason in refused(["models", "show", str(path), *given])


ZOO = [zoo.name for zoo in zoo_models()]
#: Networks that take a second or less to build, write, read and schedule.
QUICK = ("squeezenet", "ios_sample", "resnet18", "bert_layer", "shufflenet_v1", "moe_layer")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in ZOO]
)
def test_a_network_of_the_zoo_and_its_export_are_one(name: str, tmp_path: Path) -> None:
    """The same units in the same blocks, and so the same best schedule."""
    network = load(name)
    path, *_ = write_onnx(network.graph, tmp_path / f"{name}.onnx", name=name, network=network)
    again = load(path)
    for own, read in zip(network.units, again.units, strict=True):
        for field in ("name", "kind", "nodes", "inputs", "outputs"):
            assert getattr(own, field) == getattr(read, field)
    assert again.blocks == network.blocks
    assert again.reading == ()
    for device in ("t4", "a100-sxm-40gb"):
        best_us = [
            compare(each, device, schedulers=["sequential", "greedy"], choose_joins=True).best.latency_us
            for each in (network, again)
        ]
        assert best_us[0] == best_us[1]


def test_an_activation_of_several_nodes_is_one_op_of_its_unit(tmp_path: Path) -> None:
    """Before operator set 24 a swish is written as two nodes."""
    b = GraphBuilder("net")
    network = b.network([b.add(Unary("swish", (1.0,)), b.input("x", (2, 3)))])
    path, *_ = write_onnx(network.graph, tmp_path / "swish.onnx", opset=20, name="net", network=network)
    again = load(path)
    assert (again.graph.hash, again.reading) == (network.graph.hash, ())
    assert [unit.nodes for unit in again.units] == [unit.nodes for unit in network.units]


LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


@pytest.mark.parametrize(
    ("model", "device", "dtype"), [("light_squeezenet", "h200-sxm", "int8"), ("light_inception_v1", "k80", "fp32")]
)
def test_light_models(model: str, device: str, dtype: str) -> None:
    comparison = printed_json(["compare", str(LIGHT / f"{model}.onnx"), "-d", device, "--dtype", dtype, "--json"])
    check_comparison(comparison)
    assert comparison["model"] == model


def test_branches_are_worth_something() -> None:
    """Inception gains from scheduling; VGG is a chain, in which there is nothing to schedule."""
    inception, vgg = (
        printed_json(["compare", str(LIGHT / f"light_{name}.onnx"), "-d", "v100-sxm2", "--json"])["schedules"]
        for name in ("inception_v1", "vgg19")
    )
    assert inception[-1]["speedup"] > 1.1
    assert vgg[-1]["speedup"] == pytest.approx(1.0)
    text = printed(["compare", str(LIGHT / "light_vgg19.onnx"), "-d", "v100-sxm2"])
    assert "Best: no scheduler is faster than sequential" in text


def test_batch_of_an_onnx_file() -> None:
    path = LIGHT / "light_squeezenet.onnx"
    four = printed_json(["compare", str(path), "-d", "t4", "--batch", "4", "--json"])
    assert four["batch"] == 4
    shaped = printed_json(["models", "show", str(path), "--batch", "4", "--json"])
    assert [shape[0] for shape in shaped["inputs"].values()] == [4]


@pytest.mark.parametrize(
    ("model", "merges"),
    [
        ("light_squeezenet", True),
        ("light_resnet50", False),
        ("light_inception_v1", True),
        pytest.param("light_vgg19", False, marks=pytest.mark.slow),
    ],
)
def test_a_scheduled_plan_computes_what_onnxruntime_does(model: str, merges: bool, tmp_path: Path) -> None:
    """On the simulated V100, and under random prices, which make stages that no device would ask for."""
    path = write_seeded(LIGHT_MODELS / f"{model}.onnx", tmp_path / "seeded.onnx", seed=3)
    network = iossim.load(path)
    (name,) = network.graph.inputs
    generator = np.random.default_rng(4)
    image = generator.standard_normal(network.graph.types[name].shape, dtype=np.float32)
    (expected,) = run_onnxruntime(str(path), {name: image})
    merged = []
    for prices in (iossim.cost_model("simulator", "v100-sxm2"), iossim.cost_model("random:5")):
        schedule = iossim.optimize(network, None, cost_model=prices)
        merged += [stage for stage in schedule.stages if stage.strategy == "merge"]
        for engine in ("paper", "graph"):
            plan = lower_schedule(schedule, network, engine)
            check_happens_before(plan)
            (output,) = execute(plan, network, {name: image}, 6).values()
            assert np.abs(output - expected).max() <= 1e-4 * np.abs(expected).max()
    assert bool(merged) == merges


#: The smallest inputs that a network takes, or nearly so.
SHAPES = {
    "alexnet": (1, 3, 96, 96),
    "bert_layer": (1, 16, 128),
    "inception_v3": (1, 3, 75, 75),
    "mobilenet_v1": (1, 3, 64, 64),
    "nasnet_a": (1, 3, 64, 64),
    "randwire": (1, 3, 64, 64),
    "resnet50": (1, 3, 64, 64),
    "resnext50": (1, 3, 64, 64),
    "squeezenet": (1, 3, 64, 64),
    "vgg19": (1, 3, 32, 32),
}
#: Networks that no rule makes faster, searched as little as this.
UNCHANGED = {"alexnet", "bert_layer", "randwire", "vgg19"}


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_a_rewritten_network_computes_the_same(name: str, tmp_path: Path) -> None:
    network = iossim.load(name, shapes={"tokens" if name == "bert_layer" else "image": SHAPES[name]})
    task = api.task(network, "v100-sxm2", scheduler="sequential", rewrite="default", rewrite_budget="4")
    (found,) = task.change().outcomes
    assert isinstance(found, Rewriting)
    assert found.found.best.cost_us <= found.found.before_us
    assert bool(found.found.best.steps) is (name not in UNCHANGED)
    (value,) = network.graph.inputs
    given = {value: np.random.default_rng(7).standard_normal(SHAPES[name]).astype(np.float32)}
    paths = [tmp_path / "given.onnx", tmp_path / "rewritten.onnx"]
    for each, path in zip((network, found.network), paths, strict=True):
        write_onnx(each.graph, path)
    (expected,), (made,) = (run_onnxruntime(str(path), given) for path in paths)
    schedule = iossim.optimize(found.network, "v100-sxm2", scheduler="greedy")
    (planned,) = execute(lower_schedule(schedule, found.network, "graph"), found.network, given, 8).values()
    bound = 1e-4 * np.abs(expected).max()
    assert bound > 0
    assert np.abs(made - expected).max() <= bound
    assert np.abs(planned - expected).max() <= bound


@pytest.mark.slow
def test_every_process_finds_the_same() -> None:
    script = (
        "import iossim; from iossim import api; network = iossim.load('squeezenet'); "
        "task = api.task(network, 'v100-sxm2', scheduler='sequential', rewrite='default', rewrite_budget='4'); "
        "(found,) = task.change().outcomes; print(found.network.graph.hash, found.found.best.steps)"
    )
    assert "Step(" in printed_everywhere(script)


def test_the_network_as_given(tmp_path: Path) -> None:
    made = tmp_path / "made.onnx"
    printed(f"optimize ios_sample -d v100-sxm2 --rewrite --onnx {made}")
    network, rewritten = load("ios_sample"), import_onnx(made)
    inputs = {
        value: np.random.default_rng(2).standard_normal(network.graph.types[value].shape).astype(np.float32)
        for value in network.graph.inputs
    }
    expected, found = evaluate_graph(network.graph, inputs), evaluate_graph(rewritten, inputs)
    assert rewritten.hash != network.graph.hash
    for name in network.graph.outputs:
        assert np.abs(expected[name] - found[name]).max() <= 1e-4 * np.abs(expected[name]).max()
    printed(f"optimize ios_sample -d v100-sxm2 --onnx {made}")
    assert import_onnx(made).hash == network.graph.hash


def test_what_cannot_be_written_is_refused_before_the_search(tmp_path: Path) -> None:
    line = "optimize ios_sample -d v100-sxm2 --rewrite --onnx"
    refused(f"{line} {tmp_path}/none/m.onnx", "is no folder; choose another file")
    refused(f"{line} {tmp_path}/m.onnx --dtype int8", "give --dtype fp32, fp16 or bf16")
    network = load("ios_sample")
    graph = network.graph
    absent = {name: AbsentConstant(constant.type) for name, constant in graph.constants.items()}
    inputs = {name: graph.types[name] for name in graph.inputs}
    without = replace(network, graph=Graph.create(inputs, graph.outputs, graph.nodes, absent))
    with pytest.raises(OptionError, match="ios_sample was read without its weights; give the model's own file"):
        check_exportable(without, tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []
