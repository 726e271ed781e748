"""Profiles of runtimes beside predictions: who is matched with whom, by name and by order."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from command_line import printed, printed_json, refused
from hypothesis import given
from hypothesis import strategies as st

import iossim
from iossim.cli.main import main
from iossim.cost.measured.stage_plans import step_operators
from iossim.hardware.lowering.unit import unit_steps
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Block, Network, make_unit
from iossim.ir.ops.matmul import MatMul
from iossim.ir.ops.nary import Add
from iossim.measurements.measurement_set import read_measurements
from iossim.measurements.operator_kinds import read_record
from iossim.measurements.profilers.layer_times import TimedLayer, layer_times
from iossim.measurements.text_files import CsvError
from iossim.tasks.profile_match import LEFT_OUT, aligned, by_order, gains, layer_class, matched, op_class

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


def classes_of(network: Network, unit: int) -> list[str]:
    """What the ops of a unit do that a library has kernels for, or that it is element-wise."""
    found = [op_class(network.graph, node) for node in network.unit_nodes(network.units[unit])]
    return [one for one in found if one not in ("view", "elementwise")] or ["elementwise"]


@given(st.lists(st.integers(0, 2), min_size=len(NETWORK.units), max_size=len(NETWORK.units)))
def test_in_order_each_unit_finds_its_kernels(joined: list[int]) -> None:
    """A kernel of its class for each unit, and some that are element-wise behind."""
    layers: list[TimedLayer] = []
    expected: list[int] = []
    for unit, more in enumerate(joined):
        own = classes_of(NETWORK, unit)
        made = kernels_of([*own, *["elementwise"] * (0 if own == ["elementwise"] else more)])
        layers += made
        expected += [unit] * len(made)
    found = by_order(NETWORK, layers, range(len(NETWORK.units)))
    products = [place for place, layer in enumerate(layers) if layer.name == KERNELS["product"]]
    assert [found[place] for place in products] == [expected[place] for place in products]
    told = [unit for unit in found if unit is not None]
    assert told == sorted(told)
    assert len(told) == len(layers)


CLASSES = st.sampled_from(["product", "window", "norm", "move", "elementwise", "batch norm"])


def score(layers: list[str], ops: list[str], places: list[int | None]) -> float:
    """What an alignment is worth; minus infinity for one that is not in order."""
    total, last = 0.0, -1
    for layer, place in zip(layers, places, strict=True):
        if place is None:
            continue
        first, more = gains(layer, ops)
        total += float("-inf") if place < last else float((more if place == last else first)[place])
        last = place
    return total - LEFT_OUT * sum(op == "product" and place not in places for place, op in enumerate(ops))


@given(st.lists(CLASSES, max_size=4), st.lists(CLASSES, max_size=4))
def test_the_alignment_is_the_best_there_is(layers: list[str], ops: list[str]) -> None:
    places: list[int | None] = [None, *range(len(ops))]
    best = max(score(layers, ops, list(each)) for each in itertools.product(places, repeat=len(layers)))
    assert score(layers, ops, aligned(layers, ops)) == pytest.approx(best)


def test_a_unit_is_where_its_product_is_not_where_it_ends() -> None:
    """A branch's convolution runs before that of the shortcut, though the sum that it is fused with runs behind."""
    build = GraphBuilder("g")
    x = build.input("x", (1, 8, 4, 4))
    branch, shortcut = build.conv(x, 8, 3, padding=1), build.conv(x, 8)
    y = build.add(Add(), branch, shortcut)
    graph = build.graph([y])
    units = (make_unit(graph, "shortcut", "Conv", [1]), make_unit(graph, "branch", "Conv-Add", [0, 2]))
    network = Network("g", graph, units, (Block("all", (0, 1)),))
    assert by_order(network, kernels_of(["product", "product", "elementwise"]), range(2)) == [1, 0, 1]


def test_what_a_runtime_fused_is_of_the_unit_that_no_name_told() -> None:
    first, *others = range(len(NETWORK.units))
    names = [TimedLayer(NETWORK.units[unit].name, "", 5.0) for unit in others]
    assert matched(NETWORK, [TimedLayer("fused_1", "FusedConv", 1.0), *names]) == [first, *others]
    assert matched(NETWORK, [TimedLayer("odd", "Reshape", 1.0), *names]) == [None, *others]


def test_nodes_that_a_network_renames_are_found_by_their_values() -> None:
    value = NETWORK.units[3].outputs[0]
    for added in ("/MatMulAddFusion", "/MatMulScaleFusion//MatmulTransposeFusion/"):
        layers = [TimedLayer(f"node_MatMul_9{added}", "Gemm", 1.0)]
        assert matched(NETWORK, layers, {"node_MatMul_9": ("gone", value)}) == [3]


def test_no_layers_and_no_likeness() -> None:
    assert by_order(NETWORK, [], range(len(NETWORK.units))) == []
    sample = iossim.load("ios_sample")
    assert by_order(sample, kernels_of(["norm"]), range(len(sample.units))) == [None]


def test_batch_norms_are_of_the_convolution_before() -> None:
    """Its weights have them here; PyTorch runs them."""
    network = iossim.load("ios_sample")
    products = [unit for unit in range(len(network.units)) if "product" in classes_of(network, unit)]
    layers = [
        TimedLayer(name, "", 1.0) for _ in products for name in ("aten::conv2d", "aten::batch_norm", "aten::relu_")
    ]
    assert by_order(network, layers, range(len(network.units))) == [unit for unit in products for _ in range(3)]


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
    assert "On average 1.00 layers ran at a time." in text
    assert "is it of this model?" not in text
    assert len(printed(capsys, f"{line} --all").splitlines()) > len(text.splitlines())


def test_a_profile_of_another_model(profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, f"profile-report alexnet {profile} --device v100-sxm2")
    assert "are of nodes of alexnet, so order decided; is it of this model?" in " ".join(text.split())


def test_units_of_one_layer_are_what_calibrate_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A convolution and its activation in one node are the convolution; what is in two nodes is left out."""
    first, *others = NETWORK.units
    run = [(NETWORK.graph.nodes[unit.nodes[-1]].name, 10.0 + place) for place, unit in enumerate(others, 1)]
    both = [(NETWORK.graph.nodes[node].name, 7.0) for node in first.nodes]
    assert len(both) == 2
    profile, out = tmp_path / "profile.json", tmp_path / "measured.jsonl"
    profile.write_text(onnxruntime_profile([*both, *run]))
    assert main(["profile-report", "squeezenet", str(profile), "--device", "t4", "--measurements", str(out)]) == 0
    told = capsys.readouterr()
    assert "units left out" in told.out
    assert f"wrote {out}" in told.err
    found = read_measurements(out)
    assert found.device == "t4"
    assert not found.header.includes_gaps
    expected = {10.0 + place for place, unit in enumerate(others, 1) if unit.kind == "Conv-Relu"}
    assert {row.latency_us for row in found.measurements if row.operator.kind == "conv"} == expected
    assert found.measurements[0].operator.inputs[0] == NETWORK.graph.types[NETWORK.units[1].inputs[0]]


def test_a_product_with_a_weight_and_its_bias_is_one_of_two_matrices() -> None:
    build = GraphBuilder("g")
    x, weight, bias = build.input("x", (2, 4, 8)), build.constant("w", (8, 16)), build.constant("b", (16,))
    with build.unit("linear", "Matmul-Bias"):
        y = build.add(Add(), build.add(MatMul(), x, weight), bias)
    network = build.network([y])
    (record,) = step_operators(unit_steps(network, network.units[0])) or []
    operator = read_record(record, network.precision)
    assert operator.kind == "gemm"
    assert sorted(value.shape for value in operator.inputs[:2]) == [(8, 8), (8, 16)]


def test_mistakes_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "nowhere" in refused(capsys, "profile-report squeezenet nowhere.json --device t4")
    path = tmp_path / "no.json"
    path.write_text("{}")
    assert "its format is not known" in refused(capsys, f"profile-report squeezenet {path} --device t4")
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


def trace_with_grids(kernels: Sequence[str]) -> str:
    """As PyTorch's profiler writes two equal runs on a GPU."""
    events = [
        {
            "ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": 9000 * run + 10 * place, "dur": 5 + run,
            "args": {"device": 0, "context": 1, "stream": 7, "grid": [8, 1, 1], "block": [128, 1, 1]},
        }
        for run in range(2)
        for place, name in enumerate(kernels)
    ]  # fmt: skip
    return json.dumps({"deviceProperties": [], "traceEvents": events})


def test_a_network_on_a_gpu_is_matched_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each op a kernel, as eager PyTorch has it, but for the ops that launch nothing."""
    graph = NETWORK.graph
    classes = [op_class(graph, node) for node in graph.nodes]
    path = tmp_path / "trace.json"
    path.write_text(trace_with_grids([KERNELS[one] for one in classes if one != "view"]))
    found = printed_json(capsys, f"profile-report squeezenet {path} --device h100-sxm --runs 2 --json")
    assert found["matched_share"] == pytest.approx(1.0)
    units = {row["unit"]: row["layers"] for row in found["units"]}
    for unit in NETWORK.units:
        own = [op_class(graph, node) for node in NETWORK.unit_nodes(unit)]
        assert units[unit.name] == [KERNELS[one] for one in own if one != "view"]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float>", "product"),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT", "product"),
        ("void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64>>", "product"),
        ("triton_poi_fused_convolution_relu_2", "elementwise"),
        ("triton_per_fused_native_layer_norm_0", "norm"),
        ("void at::native::reduce_kernel<512, 1>", "norm"),
    ],
)
def test_what_a_kernel_does_by_its_name(name: str, told: str) -> None:
    assert layer_class(TimedLayer(name, "", 1.0)) == told


def test_kernels_of_a_trace_with_grids() -> None:
    """Of two equal runs the medians of the second."""
    text = trace_with_grids([KERNELS["product"], KERNELS["elementwise"]])
    times = layer_times(text, 2)
    assert (times.source, [one.duration_us for one in times.layers]) == ("PyTorch, kernels", [6, 6])
    assert times.overlap == pytest.approx(1.0)
