"""``iossim deploy``: what is written, printed and refused, and said of what was measured."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import printed, printed_json, refused
from hypothesis import given
from hypothesis import strategies as st
from random_networks import merged_stages, random_inputs, random_network, random_schedule

import iossim
from iossim.api import search_options
from iossim.backends.numpy_reference.backend import evaluate_graph
from iossim.base.user_files import write_atomically
from iossim.cli.main import main
from iossim.deploy.deploying import outputs_sentence, verdict
from iossim.deploy.deployment import DEFAULT, SEQUENTIAL, STREAMS, DeploymentCheck
from iossim.deploy.runtime import deployed_graph
from iossim.execution.backend import Samples
from iossim.execution.measured_run import Difference, MeasuredRow, ratio_of
from iossim.schedule.streams import as_streams

CPU = Path(__file__).resolve().parents[2] / "examples" / "cpu.yaml"
QUICK = "--rounds 2 --warm-up 0"


@pytest.fixture(scope="module", autouse=True)
def _has_onnxruntime() -> None:
    pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """Printed output of a checked deployment, and its folder."""
    out = tmp_path_factory.mktemp("checked") / "out"
    return printed_json(f"deploy ios_sample --device {CPU} --scheduler greedy {QUICK} --out {out} --json"), out


def test_a_model_is_scheduled_written_and_checked(checked: tuple[Any, Path]) -> None:
    document, out = checked
    check = document["check"]
    assert check["equal"] is True
    assert [row["name"] for row in check["rows"]] == [
        "model, default",
        "model, ORT_PARALLEL",
        "deployed, intra-op threads",
        "deployed, one thread",
        "deployed, streams",
    ]
    assert all(len(row["times_us"]) == 2 for row in check["rows"])
    assert [row["predicted_us"] is not None for row in check["rows"]] == [False, False, False, True, True]
    assert check["best"] in [row["name"] for row in check["rows"]]
    files = {path.name for path in out.iterdir()}
    assert files == {"model.onnx", "model.onnx.weights", "partition.json", "run.py", "README.md"}
    partition = json.loads((out / "partition.json").read_text())
    assert partition["streams"] == document["streams"]
    assert partition["devices"] == ["0", "0"]
    page = (out / "README.md").read_text()
    assert "`python run.py` runs it; copy" in page
    assert page.startswith("# ios_sample on ONNX Runtime, 2 streams\n")
    assert "Fastest: " in page


def test_kernels_that_a_schedule_names_for_its_device_are_left_to_the_runtime(tmp_path: Path) -> None:
    chosen = search_options(company=True)
    found = iossim.optimize("ios_sample", "t4", cost_model="simulator:backend", options=chosen)
    assert any(stage.variants for stage in found.stages)
    found.save(tmp_path / "schedule.json")
    told = printed_json(f"deploy {tmp_path}/schedule.json --device {CPU} --no-check --out {tmp_path}/out --json")
    assert all(us > 0 for us in told["predicted_us"].values())


def test_a_saved_schedule(tmp_path: Path) -> None:
    printed(f"optimize ios_sample --device {CPU} --out {tmp_path} --no-plot --no-trace")
    text = printed(f"deploy {tmp_path}/schedule.json --device {CPU} --no-check --streams 1 --out {tmp_path}/out")
    assert "by stream" in text
    assert "\nNot run. Predicted: " in (tmp_path / "out" / "README.md").read_text()
    assert text.splitlines()[1].startswith("Not run. Predicted: ")
    assert len(json.loads((tmp_path / "out" / "partition.json").read_text())["streams"]) == 1
    said = refused(f"deploy {tmp_path}/schedule.json --no-check --out {tmp_path}/out")
    assert "the schedule is for example-cpu, which is no known device; give its profile, --device FILE.yaml" in said


def test_predictions_without_a_check(checked: tuple[Any, Path], tmp_path: Path) -> None:
    """They are those that a check shows; on two cores streams wait for a turn at every notification."""
    alone = printed_json(f"deploy ios_sample --device {CPU} --scheduler greedy --no-check --out {tmp_path}/out --json")
    assert alone["check"] is None
    rows = {row["name"]: row["predicted_us"] for row in checked[0]["check"]["rows"] if row["predicted_us"] is not None}
    assert alone["predicted_us"] == checked[0]["predicted_us"] == rows
    assert alone["predicted_us"]["deployed, streams"] > alone["predicted_us"]["deployed, one thread"] > 0


def test_merges_that_cost_the_runtime_its_fusions_are_not_made(tmp_path: Path) -> None:
    """The search has the prices of what judges it, in which parts of a merged convolution are copied out of it."""
    given = f"--device {CPU} --no-check --out {tmp_path}/out --json"
    found = {
        scheduler: printed_json(f"deploy squeezenet --units model --scheduler {scheduler} {given}")
        for scheduler in ("sequential", "ios-both")
    }
    assert [len(each["streams"]) for each in found.values()] == [1, 1]
    assert len(found["ios-both"]["streams"][0]) == len(found["sequential"]["streams"][0])
    assert min(found["ios-both"]["predicted_us"].values()) <= min(found["sequential"]["predicted_us"].values())
    asked = f"--units model --scheduler ios-merge --device {CPU} --engine paper"
    printed(f"optimize squeezenet {asked} --out {tmp_path}")
    merged = printed_json(f"deploy {tmp_path}/schedule.json {given}")
    assert len(merged["streams"][0]) > len(found["sequential"]["streams"][0])
    assert min(merged["predicted_us"].values()) > min(found["sequential"]["predicted_us"].values())


def test_a_batch_that_the_file_leaves_open_is_open_in_what_is_deployed(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    path = tmp_path / "open.onnx"
    text = "(float[N,8] x) => (float[N,8] y) { y = Relu(x) }"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> open {text}'), path)
    said = printed(f"deploy {path} --device {CPU} {QUICK} --out {tmp_path}/out")
    assert "The deployed model takes x Nx8; it is scheduled for x 1x8." in said
    page = (tmp_path / "out" / "README.md").read_text()
    assert page.index("runs it, `python run.py NAME=4x3x224x224` at") < page.index("The deployed model takes x Nx8;")
    document = printed_json(f"deploy {path} --device {CPU} {QUICK} --out {tmp_path}/out --json")
    assert document["shapes"] == {"x": ["N", 8]}
    assert document["check"]["output_errors"]["deployed, one thread, x 2x8"] == 0
    fixed = text.replace("y = Relu(x)", "s = Shape(x) ones = ConstantOfShape(s) y = Sub(x, ones)")
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> open {fixed}'), path)
    said = " ".join(printed(f"deploy {path} --device {CPU} --no-check --out {tmp_path}/out").split())
    assert "takes x 1x8 alone: the constant 'ones' is another at another size. Deploy it again" in said


def test_another_batch(tmp_path: Path) -> None:
    line = f"deploy ios_sample --device {CPU} --no-check --out {tmp_path}/out"
    document = printed_json(f"{line} --batch 4 --json")
    assert document["batch"] == 4
    assert {shape[0] for shape in document["shapes"].values()} == {4}
    printed(f"optimize ios_sample --device {CPU} --out {tmp_path} --no-plot --no-trace")
    saved = printed_json(f"{line.replace('ios_sample', f'{tmp_path}/schedule.json')} --batch 2 --json")
    assert {shape[0] for shape in saved["shapes"].values()} == {2}


def test_a_network_that_takes_no_time(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    path = tmp_path / "no_time.onnx"
    text = "(float[1,4] x) => (float[2,2] y) <int64[2] shape = {2,2}> { y = Reshape(x, shape) }"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> no_time {text}'), path)
    assert printed_json(f"deploy {path} --device {CPU} {QUICK} --out {tmp_path}/out --json")["check"]["equal"]


def test_nothing_of_a_former_deployment_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """But files that are not of a deployment do, and so do those of a folder that has none."""
    out = tmp_path / "out"
    out.mkdir()
    for name in ("model.onnx.weights", "notes.txt"):
        (out / name).write_text("mine")
    onnx = pytest.importorskip("onnx")
    path = tmp_path / "small.onnx"
    text = "(float[1,8] x) => (float[1,8] y) { y = Relu(x) }"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> small {text}'), path)
    small = f"deploy {path} --device {CPU} --no-check --out {out}"
    printed(small)
    assert (out / "model.onnx.weights").read_text() == "mine"
    printed(f"deploy ios_sample --device {CPU} --scheduler greedy --no-check --out {out}")
    assert main(small.split()) == 0
    assert f"removed {out}/model.onnx.weights" in capsys.readouterr().err
    names = {path.name for path in out.iterdir()}
    assert names == {"README.md", "model.onnx", "notes.txt", "partition.json", "run.py"}


def test_streams_that_a_search_found(tmp_path: Path) -> None:
    """From a file and at once: the same streams, and one where one is asked for."""
    printed(f"optimize squeezenet --units fused --device {CPU} --scheduler ios-streams --out {tmp_path}")
    saved = json.loads((tmp_path / "schedule.json").read_text())
    assert len(saved["streams"]) == 2
    given = f"--device {CPU} --no-check --out {tmp_path}/out --json"
    document = printed_json(f"deploy {tmp_path}/schedule.json --streams 2 {given}")
    assert document["stages"] is None
    assert len(document["streams"]) == 2
    assert document["predicted_us"].keys() == {"deployed, one thread", "deployed, streams"}
    one = printed_json(f"deploy {tmp_path}/schedule.json --streams 1 {given}")
    assert len(one["streams"]) == 1
    assert one["predicted_us"].keys() == {"deployed, one thread"}
    line = f"deploy squeezenet --engine paper --scheduler ios-streams --units fused --streams 2 {given}"
    searched = printed_json(line)
    assert searched["streams"] == document["streams"]
    said = refused(f"deploy {tmp_path}/schedule.json --runtime tensorrt")
    assert "--runtime tensorrt needs the stages of a schedule" in said


def test_outputs_that_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 1, and nothing is written."""
    from iossim.deploy import check

    monkeypatch.setattr(check, "largest_difference", lambda found, expected: Difference(relative=0.5))
    line = f"deploy ios_sample --device {CPU} --scheduler greedy {QUICK} --out {tmp_path}/out"
    assert main(line.split()) == 1
    assert "Outputs DIFFER" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


def test_tensorrt_takes_no_schedule(tmp_path: Path) -> None:
    line = "deploy ios_sample --runtime tensorrt --device v100-sxm2 --scheduler greedy"
    document = printed_json(f"{line} --json")
    widest = max(len(one["groups"]) for one in document["side_by_side"])
    assert document["max_aux_streams"] == widest - 1 > 0
    text = printed(line)
    assert f"--maxAuxStreams={widest - 1} " in text
    for one in document["side_by_side"]:
        assert f"stage {one['stage']}" in text
    narrow = printed(line.replace("greedy", "sequential"))
    assert "--maxAuxStreams=0 " in narrow
    assert "no concurrent groups" in narrow
    # The schedule of an interrupted search is deployed whole.
    iossim.optimize("ios_sample", "v100-sxm2").model_copy(update={"complete": False}).save(tmp_path / "cut.json")
    assert "--maxAuxStreams=" in printed(f"deploy {tmp_path}/cut.json --runtime tensorrt")


def test_layers_of_tensorrt_have_the_names_of_the_file(tmp_path: Path) -> None:
    """Nodes of exporters have other names in a network, where those of modules are known."""
    onnx = pytest.importorskip("onnx")
    path = tmp_path / "model.onnx"
    printed(f"models export ios_sample --out {path}")
    model = onnx.load(str(path), load_external_data=False)
    for number, node in enumerate(model.graph.node):
        node.name = f"node_{number}"
        node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=f"['', 'part{number}', 'node_{number}']")
    path.write_bytes(model.SerializeToString())
    document = printed_json(f"deploy {path} --runtime tensorrt --device v100-sxm2 --scheduler greedy --json")
    names = {name for one in document["side_by_side"] for group in one["groups"] for name in group}
    assert not names & {node.name for node in iossim.load(path).graph.nodes}
    assert names <= {f"node_{number}" for number in range(len(model.graph.node))}


def test_a_schedule_that_is_not_valid(tmp_path: Path) -> None:
    path = tmp_path / "schedule.json"
    write_atomically(path, '{"graph_hash": "x"}')
    assert "is not valid" in refused(f"deploy {path} --out {tmp_path}/out")


def check_of(cores: int, error: float = 0.0, **times_us: float) -> DeploymentCheck:
    names = {"default": DEFAULT, "sequential": SEQUENTIAL, "streams": STREAMS}
    samples = {
        names[name]: Samples(tuple(time + noise for noise in (-1.0, 0.0, 1.0))) for name, time in times_us.items()
    }
    first = next(iter(samples.values()))
    rows = tuple(MeasuredRow(name, found, ratio_of(first, found)) for name, found in samples.items())
    return DeploymentCheck(rows, cores, {SEQUENTIAL: 0.0, STREAMS: error}, 1e-4)


def test_streams_that_lose_where_cores_lack() -> None:
    said = verdict(check_of(2, default=3000, sequential=2000, streams=4000), 2)
    assert said.startswith(
        "Fastest: 'deployed, one thread', 2.000 ms. Streams take 2.00 times as long (they need 3 cores"
    )
    assert "cores" not in verdict(check_of(3, default=3000, sequential=2000, streams=4000), 2)


@pytest.mark.parametrize(
    ("predicted_us", "told"),
    [(4500.0, "That was predicted: 1.50 times as long as one thread, and measured 2.00."),
     (1500.0, "The prediction was wrong: 0.50 times as long as one thread, and measured 2.00.")],
)  # fmt: skip
def test_whether_it_was_predicted_that_streams_lose(predicted_us: float, told: str) -> None:
    check = check_of(2, default=3000, sequential=2000, streams=4000)
    predicted = {SEQUENTIAL: 3000.0, STREAMS: predicted_us}
    rows = tuple(replace(row, predicted_us=predicted.get(row.name)) for row in check.rows)
    assert verdict(replace(check, rows=rows), 2).endswith(told)


def test_streams_that_win_or_tie() -> None:
    assert (
        verdict(check_of(4, default=3000, sequential=2000, streams=1000), 2)
        == "Fastest: 'deployed, streams', 1.000 ms."
    )
    tie = verdict(check_of(4, default=3000, sequential=1000, streams=1001), 2)
    assert tie == "Fastest: 'deployed, one thread', 1.000 ms, a tie with 'deployed, streams'."
    assert verdict(check_of(4, default=3000, sequential=1000), 1).endswith("The schedule has a single stream.")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (0.0, "bit for bit"),
        (1e-6, "Outputs equal: those of 'deployed, streams' are off by 1.0e-06"),
        (0.5, "Outputs DIFFER"),
    ],
)
def test_outputs(error: float, told: str) -> None:
    check = check_of(2, error, default=3.0, sequential=2.0, streams=4.0)
    assert told in outputs_sentence(check)
    assert check.equal == (error <= 1e-4)


@given(st.integers(0, 10_000))
def test_merged_convolutions_are_stacked(seed: int) -> None:
    network = random_network(seed)
    saved = random_schedule(network, seed)
    streams = as_streams(saved, network, 2)
    deployed = deployed_graph(network, streams)
    inputs = random_inputs(network, seed)
    found = evaluate_graph(deployed.graph, inputs)
    for name, expected in evaluate_graph(network.graph, inputs).items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-4, atol=1e-4)
    splits = [node for node in deployed.graph.nodes if node.name.endswith(".split")]
    assert len(splits) == merged_stages(saved)
    stream_of_unit = {unit: number for number, own in enumerate(streams.streams) for one in own for unit in one.units}
    for node in deployed.graph.nodes:
        for value in node.outputs:
            maker = network.unit_of_value.get(value)
            if maker is not None:
                assert deployed.stream_of[value] == stream_of_unit[network.units[maker].name]
            else:
                assert deployed.stream_of[value] in range(len(streams.streams))
