"""What ONNX Runtime makes of a graph is told apart by units and streams, and what is deployed runs as it says; what a file
leaves open is open in it, and computes what the file does there, or is refused by name.
"""

import json
import runpy
import subprocess
import sys
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import onnx
import pytest
from cpus import cpu
from exported_networks import assert_equal_outputs, bert_encoder, decoder
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import parser
from random_networks import random_network, random_schedule

pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
import onnxruntime
from graph_builders import builder_with

import iossim
from iossim.deploy.deployment import (
    DEFAULT,
    SEQUENTIAL,
    STREAMS,
    Deployment,
    OpenDimensions,
    check_deployment,
    write_deployment,
)
from iossim.deploy.runtime import (
    DeployedGraph,
    OptimisedNode,
    check_version,
    open_session,
    optimised_nodes,
    provider_of,
    session_options,
    streams_of_nodes,
    with_runtime_units,
    write_optimised,
)
from iossim.execution.backend import BackendError, Timing
from iossim.execution.made_inputs import made_arrays
from iossim.ir.network import Network
from iossim.ir.ops.slice import Concat
from iossim.schedule.fit import fit
from iossim.schedule.schedule import Schedule
from iossim.schedule.streams import as_streams


def deployed(folder: Path, network: Network, saved: Schedule, most: int = 2) -> Deployment:
    streams = as_streams(saved, network, most)
    return write_deployment(folder, provider_of(cpu()), network, streams, OpenDimensions.of(network))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A deployed network of two streams."""
    network = iossim.load("ios_sample")
    path = tmp_path_factory.mktemp("deployed")
    found = deployed(path, network, iossim.optimize(network, cpu(), scheduler="greedy"))
    assert len(found.streams) == 2
    return path


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Path:
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


@settings(max_examples=8)
@given(st.integers(0, 10_000))
def test_streams_compute_what_the_model_does(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    """Whatever the schedule, merged stages and all."""
    network = random_network(seed)
    found = deployed(tmp_path_factory.mktemp("random"), network, random_schedule(network, seed), 3)
    check = check_deployment(found, network, Timing(rounds=1, warm_up=0), {SEQUENTIAL: 5.0})
    assert check.equal, check.errors
    names = [row.name for row in check.rows]
    assert (STREAMS in names) == (len(found.streams) > 1)
    assert [row.predicted_us for row in check.rows if row.predicted_us is not None] == [5.0]
    assert DEFAULT not in check.errors


def test_units_are_what_the_runtime_fuses(tmp_path: Path) -> None:
    """Each node of the runtime that works, and copies no layout, is a unit, in order with all others."""
    network = iossim.load("squeezenet", units="none")
    write_optimised(network.graph, tmp_path, provider_of(cpu()), "squeezenet")
    nodes = optimised_nodes(tmp_path / "model.onnx")
    fused = with_runtime_units(network, nodes)
    working = [node for node in nodes if not node.op_type.startswith("Reorder")]
    assert len(fused.units) == len(working) < len(network.units)
    found = iossim.optimize(fused, cpu(), scheduler="sequential")
    fit(found, fused)


def test_a_value_that_no_node_makes_is_in_the_unit_of_its_reader() -> None:
    network = iossim.load("ios_sample", units="none")
    last = network.graph.outputs
    whole = with_runtime_units(network, [OptimisedNode("all", "Fused", (), last)])
    graph = network.graph
    for unit in whole.units:
        ends = {name for place in unit.nodes for name in graph.nodes[place].outputs} & set(unit.outputs)
        assert len(ends) == 1
        (end,) = ends
        readers = {whole.unit_of_value[node.outputs[0]] for node in graph.consumers[end]}
        assert end in graph.returned or len(readers) > 1


def test_nodes_without_a_value_follow_their_readers() -> None:
    b, x = builder_with("chain", x=(1, 8, 4, 4))
    a = b.conv(x, 8, name="a")
    c = b.add(Concat(1), a, b.conv(a, 8, name="b"), name="c")
    graph = b.network([c]).graph
    values = {name: graph.nodes[graph.position[name]].outputs[0] for name in ("a", "b", "c")}
    nodes = [
        OptimisedNode("reorder", "ReorderInput", ("x",), ("blocked",)),
        OptimisedNode(f"{values['a']}_nchwc", "Conv", ("blocked",), ("inner",)),
        OptimisedNode("back", "ReorderOutput", ("inner",), (values["a"],)),
        OptimisedNode("b.conv", "Conv", (values["a"],), (values["b"],)),
        OptimisedNode("tail", "Cast", (values["b"],), ("cast",)),
        OptimisedNode("c", "Concat", ("inner", "cast"), ("blocked_too",)),
        OptimisedNode("alone", "Shape", ("y",), ("shape",)),
    ]
    of = {value: 1 for node in graph.nodes for value in node.outputs} | {values["a"]: 4, values["b"]: 2}
    found = streams_of_nodes(nodes, DeployedGraph(graph, of))
    assert found == [["alone"], ["tail", "c"], ["b.conv"], ["reorder", nodes[1].name, "back"]]


def test_the_program_runs_alone(folder: Path) -> None:
    ran = subprocess.run([sys.executable, "-I", str(folder / "run.py")], capture_output=True, text=True, check=True)
    model = onnx.load(str(folder / "model.onnx"), load_external_data=False)
    assert [line.split()[0] for line in ran.stdout.splitlines()[-len(model.graph.output) :]] == [
        output.name for output in model.graph.output
    ]


def test_each_stream_has_a_thread_besides_the_one_that_waits(folder: Path) -> None:
    """Of as many threads as streams one waits for all, and two streams run one after the other on the rest."""
    assert session_options(2).inter_op_num_threads == 3
    assert session_options(1).execution_mode == onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    assert "inter_op_num_threads = len(streams) + 1" in (folder / "run.py").read_text()


@pytest.mark.parametrize("name", ["model.onnx", "model.onnx.weights"])
def test_a_model_that_changed_or_is_gone(name: str, copied: Path) -> None:
    """One byte is enough; ONNX Runtime would run with other weights, and say nothing."""
    file, differs = copied / name, "differs from what partition.json was made for"
    kept = file.read_bytes()
    for changed in (bytes([kept[0] ^ 1]) + kept[1:], kept[:-1], b"", None):
        file.unlink() if changed is None else file.write_bytes(changed)
        refused_by_program(copied, f"{name} {differs}")


def test_a_node_twice_nowhere_and_unknown(copied: Path) -> None:
    path = copied / "partition.json"
    document = json.loads(path.read_text())
    first, second = document["streams"]
    for streams in ([first, [*second, first[0]]], [first[1:], second], [first, [*second, "nobody"]]):
        path.write_text(json.dumps({**document, "streams": streams}))
        refused_by_program(copied, "partition.json does not name each node once")
    path.write_text(json.dumps({**document, "provider": "NoExecutionProvider"}))
    refused_by_program(copied, "no NoExecutionProvider in this ONNX Runtime")
    path.write_text("{")
    refused_by_program(
        copied,
        "partition.json cannot be read: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
    )


@pytest.mark.parametrize(
    "change",
    [
        *[{key: value} for key in ("streams", "files_sha256", "shapes") for value in (None, 3, "x", [3], [[3]])],
        {"shapes": {"x": ["N"]}},
        {"streams": {}},
        {"provider": 3},
        {"provider": []},
        {"nodes_sha256": 3},
        {"files_sha256": {}},
        {"files_sha256": {"../model.onnx": "x"}},
    ],
    ids=str,
)
def test_a_partition_of_another_make(copied: Path, change: dict[str, Any]) -> None:
    """One line, whatever it holds; a file that it says nothing of counts as changed."""
    path = copied / "partition.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document | change))
    assert refused_by_program(copied)
    if list(change.values()) == [None]:  # and without it at all
        path.write_text(json.dumps({key: value for key, value in document.items() if key not in change}))
        assert refused_by_program(copied) == "partition.json is not as iossim deploy wrote it; deploy the model again"
    for whole in ({}, [], None, 3, "x") if "provider" in change else ():
        path.write_text(json.dumps(whole))
        assert refused_by_program(copied) == "partition.json is not as iossim deploy wrote it; deploy the model again"


def test_shapes_that_the_model_does_not_take(copied: Path) -> None:
    scheduled = json.loads((copied / "partition.json").read_text())["shapes"]
    ((name, shape),) = scheduled.items()
    own = f"{name} {'x'.join(map(str, shape))}"
    other = f"{name} {'x'.join(map(str, [4, *shape[1:]]))}"
    for argument in ("4", other.replace(" ", "=")):
        assert refused_by_program(copied, None, argument) == (
            f"the model takes {own}, not {other}; other sizes need a deployment of their own "
            "(iossim deploy --batch, --shape)"
        )
    for argument in ("4x3", "nobody=4", "four"):
        assert refused_by_program(copied, None, argument) == (
            f"{argument} is no batch, and no shape of an input; inputs: {own}"
        )


def refused_by_program(folder: Path, reason: str | None = None, *arguments: str) -> str:
    """The reason for which the program ends, which is to be this one, if one is given."""
    with pytest.MonkeyPatch.context() as patched, redirect_stderr(StringIO()) as errors:
        patched.setattr(sys, "argv", ["run.py", *arguments])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(folder / "run.py"), run_name="__main__")
    said = errors.getvalue().removeprefix("error: ").removesuffix("\n")
    assert (ended.value.code, errors.getvalue()) == (2, f"error: {reason or said}\n")
    assert "\n" not in said
    return said


def test_a_provider_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(BackendError, match=r"has no CUDAExecutionProvider, which v100-sxm2 needs, only CPU"):
        provider_of(iossim.device("v100-sxm2"))
    assert provider_of(cpu()).device_type == "0"


def test_an_old_onnx_runtime() -> None:
    check_version("1.14.0")
    check_version("2.0.1")
    for old in ("1.13.1", "0.5.0"):
        with pytest.raises(BackendError, match=rf"ONNX Runtime {old} takes no streams, which came with 1.14"):
            check_version(old)


def written(folder: Path, model: onnx.ModelProto | str) -> Path:
    """A model, or one of this input shape and these nodes."""
    if isinstance(model, str):
        model = parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> open (float[{model}')
    path = folder / "open.onnx"
    onnx.save(model, path)
    return path


def open_deployment(folder: Path, path: Path, scheduler: str = "sequential", **bound: int) -> Deployment:
    network = iossim.load(path, dimensions=bound)
    found = iossim.optimize(network, "v100-sxm2", scheduler=scheduler)
    made = folder / "deployed"
    made.mkdir()
    return write_deployment(
        made, provider_of(cpu()), network, as_streams(found, network, 2), OpenDimensions.of(network)
    )


def check_equal(read: Deployment, path: Path, **bound: int) -> None:
    """The deployed model beside its file, at other sizes."""
    graph = iossim.load(path, dimensions=bound).graph
    inputs = made_arrays(graph.inputs, graph.types)
    session = open_session(read.model, session_options(), read.provider, optimised=True)
    names = [each.name for each in session.get_outputs()]
    expected = onnxruntime.InferenceSession(str(path)).run(names, inputs)
    assert_equal_outputs(dict(zip(names, session.run(names, inputs), strict=True)), expected, names)


def test_exported_transformers_keep_open_what_they_can(tmp_path: Path) -> None:
    """Positions are picked for the length of the sequence, while what is kept of the past may be of any."""
    path = written(tmp_path, bert_encoder())
    read = open_deployment(tmp_path, path, batch=1, length=16)
    assert read.shapes == {"ids": ("batch", 16), "mask": ("batch", 16)}
    check_equal(read, path, batch=5, length=16)
    (tmp_path / "second").mkdir()
    path = written(tmp_path, decoder())
    read = open_deployment(tmp_path / "second", path, batch=1, past=4)
    assert read.shapes["token"] == ("batch", 1, 32)
    assert read.shapes["past.0.key"] == ("batch", 2, "past", 8)
    check_equal(read, path, batch=3, past=9)


def test_a_chosen_branch_keeps_its_batch_open(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """N,4] x, bool[1] first) => (float[N,4] y) {
            y = If (first) <
                then_branch = g () => (float[N,4] t) { t = Relu(x) },
                else_branch = h () => (float[N,4] t) { t = Neg(x) }
            >
        }""",
    )
    read = open_deployment(tmp_path, path, N=2, first=0)
    assert read.shapes == {"x": ("N", 4)}
    inputs = made_arrays(["x"], iossim.load(path, dimensions={"N": 3, "first": 0}).graph.types)
    session = open_session(read.model, session_options(), read.provider, optimised=True)
    assert (session.run(["y"], inputs)[0] == -inputs["x"]).all()


def test_merged_convolutions_keep_batch_and_image_open(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """N,1,H,W] x) => (float[N,4] y) <int64[4] size = {2,1,3,3}> {
            one = Constant <value = float[2,1,1,1] {1, 2}> ()
            three = ConstantOfShape <value = float[1] {3}> (size)
            a = Conv(x, one)
            b = Conv <pads = [1,1,1,1]> (x, three)
            cat = Concat <axis = 1> (a, b)
            pool = GlobalAveragePool(cat)
            y = Flatten(pool)
        }""",
    )
    read = open_deployment(tmp_path, path, "ios-merge", H=8, W=8)
    assert "Split" in {node.op_type for node in onnx.load(str(read.model), load_external_data=False).graph.node}
    assert read.shapes == {"x": ("N", 1, "H", "W")}
    check_equal(read, path, N=3, H=11, W=7)


#: Of a model, what is open of what is deployed at H = 8, and the reason where that is nothing.
FIXED = {
    # An even image is padded on one side, an odd one on both.
    """N,1,H,8] x) => (float[N,2,O,4] y) <int64[4] size = {2,1,3,3}> {
        three = ConstantOfShape <value = float[1] {3}> (size)
        y = Conv <auto_pad = "SAME_UPPER", strides = [2,2]> (x, three)
    }""": (("N", 1, 8, 8), ""),
    # One axis that was dropped before two that are open, and ones that are put back.
    """N,1,H,8] x) => (float[N,H,1,8] y) <int64[1] one = {1}, int64[1] two = {2}> {
        s = Squeeze(x, one)
        r = Relu(s)
        y = Unsqueeze(r, two)
    }""": (("N", 1, "H", 8), ""),
    """N,H] x) => (float[N,H] y) {
        shape = Shape(x)
        ones = ConstantOfShape <value = float[1] {1}> (shape)
        y = Sub(x, ones)
    }""": ((1, 8), "the constant 'ones' is another at another size"),
}


@pytest.mark.parametrize(("model", "kept", "reason"), [(model, *told) for model, told in FIXED.items()])
def test_what_depends_on_a_size_is_for_that_alone(
    tmp_path: Path, model: str, kept: tuple[int | str, ...], reason: str
) -> None:
    path = written(tmp_path, model)
    read = open_deployment(tmp_path, path, H=8)
    assert read.shapes == {"x": kept}
    assert read.opened.reason == reason
    assert (read.opened.shapes is None) == bool(reason)
    check_equal(read, path, N=3 if "N" in kept else 1, H=5 if "H" in kept else 8)


def test_a_network_of_no_file_is_for_its_own_batch(tmp_path: Path) -> None:
    network = iossim.load("ios_sample", batch=2)
    found = iossim.optimize(network, "v100-sxm2", scheduler="sequential")
    read = write_deployment(
        tmp_path, provider_of(cpu()), network, as_streams(found, network, 1), OpenDimensions.of(network)
    )
    assert read.shapes == {name: network.graph.types[name].shape for name in network.graph.inputs}
    assert read.opened.reason == ""
