"""Profiles of runtimes beside predictions: who is matched with whom, by name and by order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import printed, printed_json, refused
from hypothesis import given
from hypothesis import strategies as st

import iossim
from iossim.measurements.profilers.layer_times import TimedLayer, layer_times
from iossim.measurements.text_files import CsvError
from iossim.tasks.profile_match import by_order, matched, unit_class

NETWORK = iossim.load("squeezenet")
#: What a library calls kernels of each class.
KERNELS = {
    "product": "sm80_xmma_fprop_implicit_gemm_f32",
    "window": "cudnn::max_pooling_fw_4d_kernel",
    "norm": "softmax_warp_forward",
    "move": "CatArrayBatchedCopy",
    "elementwise": "vectorized_elementwise_kernel",
}


def node_event(name: str, start: float, duration: float, kind: str = "Conv") -> dict[str, Any]:
    args = {"op_name": kind, "provider": "CPUExecutionProvider"}
    return {
        "cat": "Node",
        "ph": "X",
        "pid": 1,
        "tid": 1,
        "ts": start,
        "dur": duration,
        "name": f"{name}_kernel_time",
        "args": args,
    }


def onnxruntime_profile(*runs: list[tuple[str, float]], kind: str = "Conv") -> str:
    events: list[dict[str, Any]] = [{"cat": "Session", "ph": "X", "ts": 0, "dur": 9, "name": "model_run", "args": {}}]
    for number, run in enumerate(runs):
        at = 1000.0 * number
        for name, duration in run:
            events.append(node_event(name, at, duration, kind))
            at += duration
    return json.dumps(events)


def test_nodes_of_onnxruntime() -> None:
    """The first run is left out of the medians, and layers are in the order of the last."""
    times = layer_times(onnxruntime_profile([("a", 90), ("b", 5)], [("a", 10), ("b", 5)], [("a", 12), ("b", 7)]))
    assert (times.source, times.runs) == ("ONNX Runtime", 3)
    assert [(one.name, one.kind, one.duration_us) for one in times.layers] == [("a", "Conv", 11.0), ("b", "Conv", 6.0)]
    assert times.overlap == pytest.approx(1.0)
    assert layer_times(onnxruntime_profile([("a", 90)])).total_us == 90


def test_overlap_of_two_streams() -> None:
    events = [node_event("a", 0, 10), node_event("b", 5, 10), node_event("c", 20, 5)]
    times = layer_times(json.dumps(events))
    assert times.overlap == pytest.approx(25 / 20)


def test_layers_of_tensorrt() -> None:
    document = [
        {"count": 20},
        {"name": "conv1 + relu1", "timeMs": 2.0, "averageMs": 0.1, "medianMs": 0.09, "percentage": 1.0},
    ]
    times = layer_times(json.dumps(document))
    assert (times.source, times.runs, times.overlap) == ("TensorRT", 20, None)
    assert [(one.name, one.duration_us) for one in times.layers] == [("conv1 + relu1", pytest.approx(90.0))]


def operator(name: str, start: float, duration: float) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 2, "ts": start, "dur": duration, "args": {}}


def test_operators_of_pytorch_are_the_outer_ones() -> None:
    events = [operator("aten::conv2d", 0, 10), operator("aten::convolution", 1, 8), operator("aten::relu", 11, 2)]
    times = layer_times(json.dumps({"traceEvents": events}))
    assert [(one.name, one.duration_us) for one in times.layers] == [("aten::conv2d", 10), ("aten::relu", 2)]


def test_runs_that_are_not_equal() -> None:
    events = [operator(name, 10 * place, 5) for place, name in enumerate(("aten::conv2d", "aten::relu") * 2)]
    text = json.dumps({"traceEvents": events})
    assert len(layer_times(text, 2).layers) == 2
    for runs, reason in (
        (3, "4 rows are not 3 equal runs"),
        (4, "are not of the same kernels"),
        (0, "not 0 equal runs"),
    ):
        with pytest.raises(CsvError, match=reason):
            layer_times(text, runs)


@pytest.mark.parametrize(
    "text", ["", "a,b\n1,2\n", "[]", "{", '{"traceEvents": []}', '[{"cat": "Node", "name": "x_kernel_time"}]']
)
def test_no_profile(text: str) -> None:
    with pytest.raises(CsvError):
        layer_times(text)


def test_names_of_values_nodes_and_fused_layers() -> None:
    graph = NETWORK.graph
    convolution = next(unit for unit in NETWORK.units if unit.kind == "Conv-Relu")
    number = NETWORK.unit_index[convolution.name]
    first, last = (graph.nodes[convolution.nodes[place]] for place in (0, -1))
    names = [
        last.outputs[0],
        f"{last.outputs[0]}_nchwc",
        first.name,
        f"{first.name} + {last.name}",
        f"{first.name}_token_7",
    ]
    assert matched(NETWORK, [TimedLayer(name, "", 1.0) for name in names]) == [number] * len(names)
    layers = [
        TimedLayer("ReorderInput", "ReorderInput", 1.0),
        TimedLayer(first.name, "", 5.0),
        TimedLayer("other", "", 1.0),
    ]
    assert matched(NETWORK, layers) == [number, number, None]
    ranged = TimedLayer("some_kernel", "", 1.0, ranges=(first.name,))
    assert matched(NETWORK, [ranged]) == [number]


def kernels_of(classes: list[str]) -> list[TimedLayer]:
    return [TimedLayer(KERNELS[one], "", 1.0) for one in classes]


@given(st.lists(st.integers(0, 2), min_size=len(NETWORK.units), max_size=len(NETWORK.units)))
def test_in_order_each_unit_finds_its_kernels(joined: list[int]) -> None:
    """A kernel of its class for each unit, and some that are element-wise behind."""
    layers: list[TimedLayer] = []
    expected: list[int] = []
    for unit, more in enumerate(joined):
        own = unit_class(NETWORK, unit)
        made = kernels_of([own, *["elementwise"] * (0 if own == "elementwise" else more)])
        layers += made
        expected += [unit] * len(made)
    found = by_order(NETWORK, layers)
    products = [
        place
        for place, unit in enumerate(expected)
        if unit_class(NETWORK, unit) == "product" and layers[place].name == KERNELS["product"]
    ]
    assert [found[place] for place in products] == [expected[place] for place in products]
    told = [unit for unit in found if unit is not None]
    assert told == sorted(told)
    assert len(told) == len(layers)


def test_no_layers_and_no_likeness() -> None:
    assert by_order(NETWORK, []) == []
    sample = iossim.load("ios_sample")
    assert "norm" not in {unit_class(sample, unit) for unit in range(len(sample.units))}
    assert by_order(sample, kernels_of(["norm"])) == [None]


def test_batch_norms_are_of_the_convolution_before() -> None:
    """Its weights have them here; PyTorch runs them."""
    network = iossim.load("ios_sample")
    products = [unit for unit in range(len(network.units)) if unit_class(network, unit) == "product"]
    layers = [
        TimedLayer(name, "", 1.0) for _ in products for name in ("aten::conv2d", "aten::batch_norm", "aten::relu_")
    ]
    assert by_order(network, layers) == [unit for unit in products for _ in range(3)]


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "profile.json"
    run = [(NETWORK.graph.nodes[unit.nodes[-1]].name, 10.0 + place) for place, unit in enumerate(NETWORK.units)]
    path.write_text(onnxruntime_profile([*run, ("nobody", 5.0)]))
    return path


def test_the_command(profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = f"profile-report squeezenet {profile} --device v100-sxm2"
    document = printed_json(capsys, f"{line} --json")
    assert document["unmatched"] == ["nobody"]
    assert document["matched_share"] == pytest.approx(1 - 5 / document["measured_us"])
    units = document["units"]
    assert len(units) == len(NETWORK.units)
    assert sum(unit["predicted_us"] for unit in units) == pytest.approx(document["predicted_us"])
    errors = [abs(unit["predicted_us"] - unit["measured_us"]) for unit in units]
    assert errors == sorted(errors, reverse=True)
    assert document["possible_speedup"] >= 1
    text = printed(capsys, line)
    assert "more units with smaller errors: --all" in text
    assert len(printed(capsys, f"{line} --all").splitlines()) > len(text.splitlines())


def test_mistakes_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "nowhere" in refused(capsys, "profile-report squeezenet nowhere.json --device t4")
    path = tmp_path / "no.json"
    path.write_text("{}")
    assert "is no profile that is known" in refused(capsys, f"profile-report squeezenet {path} --device t4")
    path.write_text(onnxruntime_profile([("a", 1)]))
    said = refused(capsys, f"profile-report squeezenet {path} --device t4 --cost-model random:1")
    assert "needs prices of kernels" in said


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).resolve().parents[2] / "examples" / "corun").glob("*.nsys.csv"))
)
def test_kernels_of_nsight_systems(path: Path) -> None:
    times = layer_times(path.read_text())
    assert times.source == "kernels"
    assert times.total_us > 0
    assert times.overlap is not None
    begins = [layer.span_us[0] for layer in times.layers if layer.span_us is not None]
    assert begins == sorted(begins)
    assert len(begins) == len(times.layers) > 1


def test_kernels_of_a_trace_with_grids() -> None:
    """As the profiler writes them of a GPU: two equal runs, the medians of the second."""
    events = [
        {
            "ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": 100 * run + 10 * place, "dur": 5 + run,
            "args": {"device": 0, "context": 1, "stream": 7, "grid": [8, 1, 1], "block": [128, 1, 1]},
        }
        for run in range(2)
        for place, name in enumerate((KERNELS["product"], KERNELS["elementwise"]))
    ]  # fmt: skip
    times = layer_times(json.dumps({"deviceProperties": [], "traceEvents": events}), 2)
    assert (times.source, [one.duration_us for one in times.layers]) == ("PyTorch, kernels", [6, 6])
    assert times.overlap == pytest.approx(1.0)
