"""Profiles of runtimes beside predictions: formats, repetitions, what a profile states, and the command."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import printed, printed_json, refused
from hypothesis import given
from hypothesis import strategies as st
from onnx_models import write_onnx

import iossim
from iossim.cli.main import main
from iossim.measurements.measurement_set import read_measurements
from iossim.measurements.profilers.kernels import repetitions
from iossim.measurements.profilers.layer_times import layer_times
from iossim.measurements.text_files import CsvError
from iossim.profiles.profile_match import op_class
from iossim.profiles.profile_report import profile_report, recording

NETWORK = iossim.load("squeezenet")
CPU = str(Path(__file__).resolve().parents[2] / "examples" / "cpu.yaml")


def node_event(name: str, start: float, duration: float, kind: str = "Conv", thread: int = 1) -> dict[str, Any]:
    return {
        "cat": "Node", "ph": "X", "pid": 1, "tid": thread, "ts": start, "dur": duration, "name": f"{name}_kernel_time",
        "args": {"op_name": kind, "provider": "CPUExecutionProvider"},
    }  # fmt: skip


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


def test_nodes_in_the_body_of_a_loop_are_in_its_time() -> None:
    """Two runs, not as many as the body ran, and no time twice."""
    events = []
    for at in (0, 100):
        body = [node_event("product", at + 12 + 10 * turn, 9, "MatMul") for turn in range(3)]
        events += [node_event("first", at, 10), *body, node_event("loop", at + 10, 40, "Loop")]
    times = layer_times(json.dumps(events))
    assert [(one.name, one.duration_us) for one in times.layers] == [("first", 10), ("loop", 40)]
    assert (times.runs, times.total_us) == (2, 50)


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


def trace(events: list[dict[str, Any]], **more: Any) -> str:
    """Trace of PyTorch's profiler."""
    return json.dumps({"traceEvents": events, **more})


def test_operators_of_pytorch_are_the_outer_ones() -> None:
    events = [operator("aten::conv2d", 0, 10), operator("aten::convolution", 1, 8), operator("aten::relu", 11, 2)]
    assert [(one.name, one.duration_us) for one in layer_times(trace(events)).layers] == [
        ("aten::conv2d", 10),
        ("aten::relu", 2),
    ]


@given(st.lists(st.sampled_from("ab"), min_size=1, max_size=12))
def test_repetitions(names: list[str]) -> None:
    counts = [count for count in range(1, len(names) + 1) if names == names[: len(names) // count] * count]
    assert repetitions(names) == max(counts)


def run_of_two_streams(run: int, late: bool) -> list[dict[str, Any]]:
    """Stream 7 runs two kernels of 100 us, and stream 8 one of 120 beside them, from 30 on or, if ``late``, from 110.

    Together they take 320 us in 200, or in 230.
    """
    spans = [("first", 7, 0, 100), ("second", 7, 100, 100), ("beside", 8, 110 if late else 30, 120)]
    return [
        {
            "ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": 9000 * run + start, "dur": took,
            "args": {"device": 0, "context": 1, "stream": stream, "grid": [8, 1, 1], "block": [128, 1, 1]},
        }
        for name, stream, start, took in spans
    ]  # fmt: skip


def test_totals_of_kernels_of_two_streams() -> None:
    times = layer_times(trace(run_of_two_streams(0, late=False)))
    assert [layer.name for layer in times.layers] == ["first", "beside", "second"]
    assert (times.total_us, times.wall_us) == (320, 200)
    assert times.overlap == pytest.approx(320 / 200)
    # The streams of the second run are ordered otherwise: runs are equal by stream.
    both = [event for run in range(2) for event in run_of_two_streams(run, late=run == 1)]
    times = layer_times(trace(both), 2)
    assert [layer.name for layer in times.layers] == ["first", "second", "beside"]
    assert (times.total_us, times.wall_us, times.runs) == (320, 230, 2)
    assert times.overlap == pytest.approx(320 / 230)


SYSTEMS_HEADER = (
    "Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),DymSMem (MB),Bytes (MB),"
    "Throughput (MBps),SrcMemKd,DstMemKd,Device,Ctx,Strm,Name"
)


def systems_table(runs: int) -> str:
    rows = [
        f"{1000 * (3 * run + place)},500,1,8,1,1,128,1,1,32,0,0,,,,,GPU (0),1,7,{name}"
        for run in range(runs)
        for place, name in enumerate(("conv", "relu", "gemm"))
    ]
    return "\n".join([SYSTEMS_HEADER, *rows]) + "\n"


@pytest.mark.parametrize("kind", ["operators", "kernels", "streams", "systems"])
def test_a_repetition_is_not_taken_for_one_run(kind: str, tmp_path: Path) -> None:
    """Totals would be three times too high, unless the network ran once and is a repetition itself."""

    def text(runs: int) -> str:
        if kind == "systems":
            return systems_table(runs)
        if kind == "streams":
            return trace([one for run in range(runs) for one in run_of_two_streams(run, run == 1)])
        names = ("aten::conv2d", "aten::relu", "aten::linear")
        if kind == "kernels":
            events = [run_of_two_streams(run, False)[place] for run in range(runs) for place in (0, 1, 2)]
        else:
            events = [operator(name, 100 * run + 10 * at, 5) for run in range(runs) for at, name in enumerate(names)]
        return trace(events)

    assert len(layer_times(text(1)).layers) == 3
    with pytest.raises(CsvError, match="its 9 rows are 3 times the same 3"):
        layer_times(text(3))
    assert len(layer_times(text(3), 3).layers) == 3
    assert len(layer_times(text(3), 1).layers) == 9
    path = tmp_path / "profile"
    path.write_text(text(3))
    said = refused(f"profile-report squeezenet {path} --device v100-sxm2")
    assert "give --runs 3, or 1 if the network ran once and repeats itself" in said


@pytest.mark.parametrize(("before", "runs"), [(1, 3), (1, 1), (0, 1)])
def test_runs_and_something_else_are_told(before: int, runs: int, tmp_path: Path) -> None:
    """A trace that also holds how its inputs were made is no repetition, but has the products of all runs."""
    names = {"product": "aten::conv2d", "window": "aten::max_pool2d", "norm": "aten::softmax", "move": "aten::cat"}
    classes = [op_class(NETWORK.graph, node) for node in NETWORK.graph.nodes]
    run = [names.get(one, "aten::relu") for one in classes if one != "view"]
    rows = ["aten::randn"] * before + run * runs
    path = tmp_path / "trace.json"
    path.write_text(trace([operator(name, 10 * at, 5) for at, name in enumerate(rows)]))
    text = " ".join(printed(f"profile-report squeezenet {path} --device t4").split())
    assert ("3.0 times as many products ran in" in text) == (runs == 3)
    assert ("if it ran several times, record equal runs alone, and give --runs" in text) == (runs == 3)


def test_layers_beside_others_are_told(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(trace(run_of_two_streams(0, late=False)))
    document = printed_json(f"profile-report ios_sample {path} --device t4 --json")
    assert (document["measured_us"], document["wall_us"], document["overlap"]) == (320, 200, pytest.approx(1.6))
    assert any("concurrent layers took longer than alone" in remark for remark in document["remarks"])
    text = printed(f"profile-report ios_sample {path} --device t4")
    said = "run took 0.200 ms from its first layer to its last; on average 1.60 layers ran concurrently."
    assert said in " ".join(text.split())


def test_steps_of_pytorch_are_runs() -> None:
    names = ("aten::conv2d", "aten::relu")
    events = [operator(name, 100 * run + 10 * at, 5 + run) for run in range(3) for at, name in enumerate(names)]
    steps = [
        {"ph": "X", "cat": category, "name": f"ProfilerStep#{2 + run}", "pid": 1, "tid": 2, "ts": 100 * run, "dur": 90}
        for run in range(3)
        for category in ("user_annotation", "gpu_user_annotation")
    ]
    times = layer_times(trace(events + steps))
    assert (times.runs, [one.duration_us for one in times.layers]) == (3, [6.5, 6.5])
    with pytest.raises(CsvError, match="its 5 rows are not 3 equal runs") as refusal:
        layer_times(trace(events[1:] + steps))
    assert refusal.value.remedy == "say with `runs` how often the network ran, if not once a ProfilerStep#"
    assert len(layer_times(trace(events[1:] + steps), 1).layers) == 5


@pytest.mark.parametrize(
    ("runs", "reason"),
    [(3, "4 rows are not 3 equal runs"), (4, "are not of the same kernels"), (0, "not 0 equal runs")],
)
def test_runs_that_are_not_equal(runs: int, reason: str) -> None:
    text = trace([operator(name, 10 * place, 5) for place, name in enumerate(("aten::conv2d", "aten::relu") * 2)])
    assert len(layer_times(text, 2).layers) == 2
    with pytest.raises(CsvError, match=reason):
        layer_times(text, runs)


@pytest.mark.parametrize(
    "text", ["", "a,b\n1,2\n", "[]", "{", '{"traceEvents": []}', '[{"cat": "Node", "name": "x_kernel_time"}]']
)
def test_no_profile(text: str) -> None:
    with pytest.raises(CsvError):
        layer_times(text)


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "profile.json"
    run = [(NETWORK.graph.nodes[unit.nodes[-1]].name, 1e4 + place) for place, unit in enumerate(NETWORK.units)]
    path.write_text(onnxruntime_profile([*run, ("nobody", 5.0)]))
    return path


def test_the_command(profile: Path) -> None:
    line = f"profile-report squeezenet {profile} --device v100-sxm2"
    document = printed_json(f"{line} --json")
    assert document["unmatched"] == ["nobody"]
    assert document["matched_share"] == pytest.approx(1 - 5 / document["measured_us"])
    units = document["units"]
    assert len(units) == len(NETWORK.units)
    assert sum(unit["predicted_us"] for unit in units) == pytest.approx(document["predicted_us"])
    assert document["possible_speedup"] >= 1
    text = printed(line)
    assert "more with smaller errors: --all" in text
    assert document["wall_us"] == document["measured_us"]
    assert "from its first layer to its last; on average 1.00 layers ran concurrently." in " ".join(text.split())
    assert "is it of this model?" not in text
    assert "concurrent layers took longer" not in text
    assert len(printed(f"{line} --all").splitlines()) > len(text.splitlines())


@pytest.mark.parametrize("scheduler", ["ios-both", "ios-streams"])
def test_the_recorded_run_is_drawn_below_the_schedule_that_ran(scheduler: str, tmp_path: Path) -> None:
    """Layers keep their recorded times; two that ran concurrently have a lane each; what is of no unit is drawn, too."""
    network = iossim.load("ios_sample")
    find = iossim.optimize_streams if scheduler == "ios-streams" else iossim.optimize
    ran = find(network, "t4", scheduler=scheduler)
    ran.save(tmp_path / "schedule.json")
    named = [network.graph.nodes[unit.nodes[-1]].name for unit in network.units]
    times = {name: (100.0 * place, 90.0) for place, name in enumerate(named)} | {"nobody": (700.0, 5.0)}
    times[named[1]] = (50.0, 120.0)
    events = [node_event(name, *when, thread=1 + (name == named[1])) for name, when in times.items()]
    (tmp_path / "profile.json").write_text(json.dumps(events))
    out = tmp_path / "out"
    schedule, profile = str(tmp_path / "schedule.json"), str(tmp_path / "profile.json")
    assert main(["profile-report", schedule, profile, "-d", "t4", "--out", str(out)]) == 0
    page = (out / "index.html").read_text()
    data = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
    drawn = {name: (lane, start, end, units) for _, lane, start, end, name, units in data["recorded"]["kernels"]}
    begin = min(start for _, _, start, _, _, _ in data["kernels"])
    for place, name in enumerate(named):
        start, took = times[name]
        assert drawn[name] == (place == 1, pytest.approx(start + begin), pytest.approx(start + took + begin), [place])
    assert drawn["nobody"][3] == []
    assert data["recorded"]["title"] == "recorded by ONNX Runtime, one run: 0.705 ms"
    assert f"{ran.latency_us / 1e3:.3f} ms simulated" in page
    picture = (out / "timeline.svg").read_text()
    assert all(f">{title}<" in picture for title in ("simulated", "recorded"))


def test_layers_without_starts_are_drawn_one_after_another() -> None:
    layers = [{"name": unit.name, "averageMs": 0.01 * (place + 1)} for place, unit in enumerate(NETWORK.units[:3])]
    times = layer_times(json.dumps([{"count": 1}, *layers]))
    report = profile_report(NETWORK, times, iossim.cost_model("simulator", "t4"), 1.0)
    errors_us = [abs(row.error_us) for row in report.by_error if row.error_us is not None]
    assert errors_us == sorted(errors_us, reverse=True)
    assert [row.measured_us is None for row in report.by_error] == [False] * 3 + [True] * (len(NETWORK.units) - 3)
    found = recording(NETWORK, report, 4.0)
    assert [(one.start_us, one.end_us) for one in found.spans] == [(4, 14), (14, 34), (34, 64)]
    assert found.title.endswith("0.060 ms; starts are not recorded, layers follow one another")
    # By their own rounded starts some began before the one ahead ended, and went to a second lane.
    layers = [{"name": unit.name, "averageMs": 0.001 * (7 + place % 5) / 3} for place, unit in enumerate(NETWORK.units)]
    times = layer_times(json.dumps([{"count": 1}, *layers]))
    whole = profile_report(NETWORK, times, iossim.cost_model("simulator", "t4"), 1.0)
    assert {one.stream for one in recording(NETWORK, whole, 0.0).spans} == {0}


def test_a_profile_of_another_model(profile: Path) -> None:
    text = printed(f"profile-report alexnet {profile} --device v100-sxm2")
    assert "are of nodes of alexnet, so order decided; is it of this model?" in " ".join(text.split())


def test_units_of_one_layer_are_what_calibrate_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A convolution and its activation in one node are the convolution; what is in two nodes is left out."""
    first, *others = NETWORK.units
    run = [(NETWORK.graph.nodes[unit.nodes[-1]].name, 1e4 + place) for place, unit in enumerate(others, 1)]
    both = [(NETWORK.graph.nodes[node].name, 7e3) for node in first.nodes]
    assert len(both) == 2
    profile, out = tmp_path / "profile.json", tmp_path / "measured.jsonl"
    profile.write_text(onnxruntime_profile([*both, *run]))
    assert main(["profile-report", "squeezenet", str(profile), "--device", CPU, "--measurements", str(out)]) == 0
    told = capsys.readouterr()
    assert "units left out" in told.out
    assert f"wrote {out}" in told.err
    found = read_measurements(out)
    assert found.device == "example-cpu"
    assert not found.header.includes_gaps
    expected = {1e4 + place for place, unit in enumerate(others, 1) if unit.kind == "Conv-Relu"}
    assert {row.latency_us for row in found.measurements if row.operator.kind == "conv"} == expected
    assert found.measurements[0].operator.inputs[0] == NETWORK.graph.types[NETWORK.units[1].inputs[0]]


def stated_profile(*batches: int, size: int = 64, dtype: str = "float", provider: str = "CPUExecutionProvider") -> str:
    """ONNX Runtime's profile of two convolutions: a run at each batch."""
    events = []
    for run, batch in enumerate(batches):
        for place, (name, channels) in enumerate((("first", 16), ("second", 32))):
            event = node_event(name, 1e5 * run + 4e4 * place, 3e4)
            shape = [{dtype: [batch, channels, size, size]}]
            event["args"] |= {"provider": provider, "output_type_shape": shape, "input_type_shape": shape}
            events.append(event)
    return json.dumps(events)


@pytest.fixture
def two_convolutions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model that leaves its batch open, in the folder that the test runs in."""
    monkeypatch.chdir(tmp_path)
    weights = {"v": np.ones((16, 3, 1, 1), np.float32), "w": np.ones((32, 16, 1, 1), np.float32)}
    nodes, ends = "[first] a = Conv (x, v); [second] y = Conv (a, w)", {"y": ["batch", 32, 64, 64]}
    write_onnx(Path("m.onnx"), nodes, {"x": ["batch", 3, 64, 64]}, weights, output=ends, opset=17)
    return tmp_path


def test_the_batch_of_a_profile_is_the_networks(two_convolutions: Path) -> None:
    Path("p.json.gz").write_bytes(gzip.compress(stated_profile(8, 8).encode()))
    command = f"profile-report m.onnx p.json.gz -d {CPU}"
    document = printed_json(f"{command} --measurements out.jsonl --json")
    assert "the batch is 8, at which p.json.gz was recorded" in document["remarks"]
    measured = read_measurements(Path("out.jsonl"), fewest=1).measurements
    assert [row.operator.inputs[0].shape[0] for row in measured] == [8, 8]
    assert "recorded at batch 8, and not at 2; give --batch 8" in refused(f"{command} -b 2")
    assert not any("batch" in remark for remark in printed_json(f"{command} -b 8 --json")["remarks"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (stated_profile(1, size=96), "'first' ran at 1x16x96x96, which nothing in m has"),
        (stated_profile(1, dtype="float16"), "its products ran in fp16, and not in fp32; give --dtype fp16"),
        (stated_profile(1, 2), "its runs are of several shapes, as those of 'first'"),
    ],
)
def test_other_shapes_and_precisions_are_refused(text: str, words: str, two_convolutions: Path) -> None:
    Path("p.json").write_text(text)
    assert words in refused(f"profile-report m.onnx p.json -d {CPU} --measurements out.jsonl")
    assert not Path("out.jsonl").exists()


def test_shapes_of_operators_that_launched_kernels(two_convolutions: Path) -> None:
    """A trace of PyTorch names its GPU, which is the default, and its operators' shapes."""
    events = [
        operator("aten::conv2d", 40 * place, 30)
        | {"args": {"Input Dims": [[4, channels, 64, 64], []], "Input type": ["float", ""]}}
        for place, channels in enumerate((3, 16))
    ]
    events += run_of_two_streams(0, late=False)[:2]
    Path("t.json").write_text(trace(events, deviceProperties=[{"id": 0, "name": "Tesla T4"}]))
    document = printed_json("profile-report m.onnx t.json --json")
    assert document["device"] == "t4"
    assert "the batch is 4, at which t.json was recorded" in document["remarks"]
    other = printed_json("profile-report m.onnx t.json -d p4 --json")
    assert "t.json was recorded on t4, and the predictions are for p4" in other["remarks"]
    line = refused("profile-report m.onnx t.json -d p4 --measurements out.jsonl")
    assert "recorded on t4, not on p4; give that one as --device" in line


def test_a_profile_of_a_cpu_makes_no_rows_of_a_gpu(two_convolutions: Path) -> None:
    Path("p.json").write_text(stated_profile(1))
    remarks = printed_json("profile-report m.onnx p.json -d t4 --json")["remarks"]
    assert any("was recorded on a CPU, and the predictions are for t4" in remark for remark in remarks)
    assert "recorded on a CPU, not on t4" in refused("profile-report m.onnx p.json -d t4 --measurements out.jsonl")
    Path("p.json").write_text(stated_profile(1, provider="CUDAExecutionProvider"))
    assert "recorded on a GPU, not on example-cpu" in refused(
        f"profile-report m.onnx p.json -d {CPU} --measurements out.jsonl"
    )


def test_what_is_faster_than_the_peak_names_the_precision(tmp_path: Path) -> None:
    """TF32, which TensorRT takes by default: squeezenet at batch 64 at three times fp32's peak."""
    network = iossim.load("squeezenet", batch=64)
    flops = [sum(network.graph.work(node).flops for node in network.unit_nodes(unit)) for unit in network.units]
    times_ms = [
        1e-3 * count / 60e6 if "Conv" in unit.kind else 5 for unit, count in zip(network.units, flops, strict=True)
    ]
    rows = [
        {"name": network.graph.nodes[unit.nodes[-1]].name, "averageMs": time_ms}
        for unit, time_ms in zip(network.units, times_ms, strict=True)
    ]
    path, out = tmp_path / "trt.json", tmp_path / "out.jsonl"
    path.write_text(json.dumps([{"count": 10}, *rows]))
    command = f"profile-report squeezenet {path} -d a100-sxm-40gb -b 64"
    said = " ".join(printed(command).split())
    assert "more units are faster than fp32's peak of a100-sxm-40gb" in said
    assert "try --dtype tf32" in said
    assert "try --dtype tf32" in refused(f"{command} --measurements {out}")
    assert not out.exists()


@pytest.mark.parametrize("value", ["-5", "Infinity", "NaN", "1e300", "9" * 400, "9" * 5000, "true", "null"])
@pytest.mark.parametrize("kind", ["nodes", "layers", "operators", "kernels"])
def test_times_that_cannot_be(kind: str, value: str, tmp_path: Path) -> None:
    texts = {
        "nodes": onnxruntime_profile([("a", 8.25)]),
        "layers": json.dumps([{"name": "a", "averageMs": 8.25}]),
        "operators": json.dumps([operator("aten::conv2d", 0, 8.25)]),
        "kernels": json.dumps([{**run_of_two_streams(0, late=False)[0], "dur": 8.25}]),
    }
    path = tmp_path / "p.json"
    path.write_text(texts[kind].replace("8.25", value))
    assert "record it again" in refused(f"profile-report squeezenet {path} -d t4")
    assert "p.json" in refused(f"corun {path} -d t4")
    assert "p.json" in refused(f"calibrate {path} -d t4")


def test_profiles_that_are_nested_too_deeply(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    for text in ("[" * 100_000, '{"traceEvents": ' + "[" * 100_000):
        path.write_text(text)
        for command in ("profile-report squeezenet", "corun", "calibrate"):
            assert "nested too deeply" in refused(f"{command} {path} -d t4")


def test_mistakes_of_the_command(tmp_path: Path) -> None:
    assert "nowhere" in refused("profile-report squeezenet nowhere.json --device t4")
    path = tmp_path / "no.json"
    command = f"profile-report squeezenet {path} --device t4"
    path.write_text("{}")
    assert "JSON without any objects; give ONNX Runtime's profile" in refused(command)
    path.write_text(onnxruntime_profile([("a", 1)]))
    assert "needs prices of kernels" in refused(f"{command} --cost-model random:1")
