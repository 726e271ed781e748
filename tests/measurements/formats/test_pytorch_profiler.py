"""Traces of the PyTorch profiler, as PyTorch 2 writes them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from iossim.ir.types import Precision
from iossim.measurements.formats import formats
from iossim.measurements.measurement import Extent, Measurement, MeasurementError, MeasurementSet
from iossim.measurements.measurement_set import read_measurements
from iossim.measurements.operator_kinds import parse_description

X, W = [1, 64, 56, 56], [32, 64, 3, 3]
CONV_INPUTS = ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"]
CUDNN_INPUTS = ["", "", "[1, 1]", "[1, 1]", "[1, 1]", "1", "True", "False", "False"]
CONV = parse_description("conv batch=1 in_channels=64 out_channels=32 in_size=56 kernel=3 stride=1 padding=1")


class Trace:
    """A trace in the making: operators nest, each launch is a kernel on the GPU 100 us later."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": 1}]
        self.now_us = 1000.0
        self.ids = 0

    def operator(self, name: str, dims: list[Any] | None = None, *inside: Any, **arguments: Any) -> None:
        """An operator around others, and around kernels, which are (name, duration)."""
        self.ids += 1
        own, begin_us = self.ids, self.now_us
        event: dict[str, Any] = {"ph": "X", "cat": "cpu_op", "name": name, "pid": 7, "tid": 7, "ts": begin_us}
        event["args"] = {"External id": own, **arguments}
        if dims is not None:
            event["args"] |= {"Input Dims": dims, "Input type": arguments.get("Input type", ["float"] * len(dims))}
        self.events.append(event)
        self.now_us += 1
        for each in inside:
            if callable(each):
                each()
            else:
                self.kernel(own, *each)
        self.now_us += 1
        event["dur"] = self.now_us - begin_us

    def kernel(self, launcher: int, name: str, duration_us: float, linked: bool = True) -> None:
        """A launch inside an operator, and its kernel; not ``linked``: only the correlation says whose it is."""
        self.ids += 1
        correlation = {"correlation": self.ids}
        link = {"External id": launcher} if linked else {}
        self.now_us += 1
        launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 7, "tid": 7, "dur": 0.5}
        self.events.append({**launch, "ts": self.now_us, "args": correlation})
        self.events.append(
            {
                "ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 20, "ts": self.now_us + 100, "dur": duration_us,
                "args": {**link, **correlation, "grid": [7, 2, 1], "block": [128, 1, 1], "registers per thread": 90},
            }
        )  # fmt: skip

    def conv(
        self, *kernels: Any, inputs: list[str] = CONV_INPUTS, cudnn_inputs: list[str] | None = CUDNN_INPUTS
    ) -> None:
        """What conv2d without a bias records."""
        concrete = {} if cudnn_inputs is None else {"Concrete Inputs": cudnn_inputs}
        outer = {} if cudnn_inputs is None else {"Concrete Inputs": inputs}
        inner = lambda: self.operator("aten::cudnn_convolution", [X, W, [], [], []], *kernels, **concrete)  # noqa: E731
        self.operator("aten::conv2d", [X, W], lambda: self.operator("aten::_convolution", [X, W], inner, **outer))

    def write(self, path: Path, **fields: Any) -> Path:
        text = json.dumps({"schemaVersion": 1, "deviceProperties": [], **fields, "traceEvents": self.events})
        path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
        return path

    def read(self, path: Path, device: str | None = "t4", **fields: Any) -> MeasurementSet:
        return read_measurements(self.write(path, **fields), device, fewest=0)


@pytest.fixture
def trace() -> Trace:
    return Trace()


def only(measured: MeasurementSet) -> Measurement:
    assert len(measured.measurements) == 1
    return measured.measurements[0]


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz", "trace.pt.trace.json"])
def test_a_convolution(trace: Trace, tmp_path: Path, name: str) -> None:
    for extra_us in (0.0, 1.0, 3.0):
        trace.conv(("winograd", 20.0 + extra_us), ("output", 5.0))
    measured = trace.read(tmp_path / name)
    measurement = only(measured)
    assert measurement.operator == CONV
    assert measurement.latency_us == 26.0
    assert measurement.spread_us == pytest.approx(2.4)
    assert measurement.samples == 3
    assert measurement.kernels == ("winograd", "output")
    assert measurement.grid == Extent(7, 2, 1)
    assert measurement.block == Extent(128, 1, 1)
    assert not measured.header.includes_gaps
    assert not measured.header.includes_host_overhead
    assert not measured.notes
    head = json.dumps({"traceEvents": trace.events})[:4096]
    assert [known.title for known in formats() if known.recognises(tmp_path / name, head)] == ["PyTorch profiler trace"]


def test_calls_that_searched_for_an_algorithm_do_not_count(trace: Trace, tmp_path: Path) -> None:
    trace.conv(*(("candidate", 100.0 + index) for index in range(8)))
    for _ in range(3):
        trace.conv(("winner", 20.0))
    assert only(trace.read(tmp_path / "t.json")).latency_us == 20.0


def test_kernels_linked_by_correlation_alone(trace: Trace, tmp_path: Path) -> None:
    trace.conv(("winograd", 20.0, False))
    measurement = only(trace.read(tmp_path / "t.json"))
    assert (measurement.operator, measurement.latency_us) == (CONV, 20.0)


def test_parameters_of_an_operator_around(trace: Trace, tmp_path: Path) -> None:
    trace.conv(("winograd", 20.0), cudnn_inputs=["", "", "", ""])
    assert only(trace.read(tmp_path / "t.json")).operator == CONV


def test_parameters_that_are_not_recorded(trace: Trace, tmp_path: Path) -> None:
    trace.conv(("winograd", 20.0), cudnn_inputs=None)
    measured = trace.read(tmp_path / "t.json")
    assert not measured.measurements
    assert "stride and padding are not recorded" in measured.notes[0]


def test_transposed_convolution_is_left_out(trace: Trace, tmp_path: Path) -> None:
    inputs = [*CONV_INPUTS[:6], "True", *CONV_INPUTS[7:]]
    inner = lambda: trace.operator("aten::cudnn_convolution_transpose", [X, W], ("kernel", 5.0))  # noqa: E731
    trace.operator("aten::_convolution", [X, W], inner, **{"Concrete Inputs": inputs})
    measured = trace.read(tmp_path / "t.json")
    assert not measured.measurements
    assert "transposed" in measured.notes[0]


def test_bias_is_no_part_of_the_convolution(trace: Trace, tmp_path: Path) -> None:
    concrete = {"Concrete Inputs": CUDNN_INPUTS}

    def inside() -> None:
        trace.operator("aten::cudnn_convolution", [X, W], ("winograd", 20.0), **concrete)
        trace.operator("aten::add_", [[1, 32, 56, 56], [1, 32, 1, 1]], ("elementwise", 4.0))

    trace.operator("aten::_convolution", [X, W], inside, **{"Concrete Inputs": CONV_INPUTS})
    measured = trace.read(tmp_path / "t.json")
    assert only(measured).latency_us == 20.0
    assert "broadcasts" in measured.notes[0]


def test_other_operators(trace: Trace, tmp_path: Path) -> None:
    trace.operator("aten::add_", [X, X], ("elementwise", 4.0))
    trace.operator("aten::relu", [X], lambda: trace.operator("aten::clamp_min", [X], ("elementwise", 3.0)))
    dense = lambda: trace.operator("aten::addmm", [[100], [8, 512], [512, 100]], ("sgemm", 7.0))  # noqa: E731
    trace.operator("aten::linear", [[8, 512], [100, 512], [100]], dense)
    trace.operator("aten::mm", [[64, 32], [32, 16]], ("sgemm", 6.0), **{"Input Strides": [[32, 1], [1, 32]]})
    pool = {"Concrete Inputs": ["", "[3, 3]", "[2, 2]", "[1, 1]", "[1, 1]", "False"]}
    trace.operator("aten::max_pool2d_with_indices", [X], ("pool", 9.0), **pool)
    pool = {"Concrete Inputs": ["", "[2]", "[]", "[0]", "False", "True", ""]}
    trace.operator("aten::avg_pool2d", [X], ("pool", 8.0), **pool)
    mean = lambda: trace.operator("aten::mean", [X], ("reduce", 5.0))  # noqa: E731
    trace.operator("aten::adaptive_avg_pool2d", [X], mean, **{"Concrete Inputs": ["", "[1, 1]"]})
    trace.operator("aten::batch_norm", [X], ("bn", 5.0))
    measured = trace.read(tmp_path / "t.json")
    expected = {
        "add rows=64 cols=3136": 4.0,
        "relu rows=64 cols=3136": 3.0,
        "linear batch=1 m=8 n=512 k=100": 7.0,
        "gemm m=64 n=16 k=32 trans_a=N trans_b=T": 6.0,
        "max_pool batch=1 channels=64 in_size=56 kernel=3 stride=2 padding=1": 9.0,
        "average_pool batch=1 channels=64 in_size=56 kernel=2 stride=2 padding=0": 8.0,
        "global_average_pool batch=1 channels=64 in_size=56": 5.0,
    }
    assert {row.operator: row.latency_us for row in measured.measurements} == {
        parse_description(text): latency_us for text, latency_us in expected.items()
    }
    assert measured.notes[0].endswith("aten::batch_norm (1)")


def test_precisions(trace: Trace, tmp_path: Path) -> None:
    trace.conv(("ampere_tf32_s1688gemm", 20.0))
    trace.operator("aten::relu", [[4, 4]], ("e", 3.0), **{"Input type": ["c10::Half"]})
    assert [row.operator.precision for row in trace.read(tmp_path / "t.json").measurements] == [
        Precision.TF32,
        Precision.FP16,
    ]


def test_device_of_the_driver(trace: Trace, tmp_path: Path) -> None:
    trace.conv(("k", 20.0))
    properties = [{"id": 0, "name": "Tesla V100-SXM2-16GB"}]
    measured = trace.read(tmp_path / "t.json", None, deviceProperties=properties, cuda_runtime_version=12010)
    assert measured.device == "v100-sxm2"
    assert measured.header.libraries == {"cuda": "12.1"}
    properties = [{"id": 0, "name": "NVIDIA Titan Z"}]
    assert trace.read(tmp_path / "t.json", None, deviceProperties=properties).device == "titan-z"
    assert trace.read(tmp_path / "t.json", "t4", deviceProperties=properties).device == "titan-z"


def refusal(path: Path) -> str:
    with pytest.raises(MeasurementError) as caught:
        read_measurements(path, "t4")
    assert path.name in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_refusals(trace: Trace, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    trace.operator("aten::relu", [[4, 4]])
    assert "no GPU kernels" in refusal(trace.write(path))
    trace.conv(("k", 20.0))
    assert "usable rows" in refusal(trace.write(path))
    whole = path.read_text()
    path.write_text(whole[: len(whole) // 2])
    assert "cut short" in refusal(path)
    path.write_text('{"traceEvents": 3}')
    assert "traceEvents" in refusal(path)
    for event in trace.events:
        event.get("args", {}).pop("Input Dims", None)
    assert "record_shapes=True" in refusal(trace.write(path))


def test_durations_that_are_no_numbers(trace: Trace, tmp_path: Path) -> None:
    for _ in range(5):
        trace.conv(("k", float("nan")))
    assert "5 of 5 rows are not usable" in refusal(trace.write(tmp_path / "t.json"))


def test_values_of_the_wrong_type_link_nothing(trace: Trace, tmp_path: Path) -> None:
    trace.conv(("k", 20.0))
    trace.events[0] |= {"ph": "X", "cat": "cpu_op", "pid": {}, "ts": None, "args": {"External id": [1]}}
    trace.events += [{"ph": "X", "cat": "kernel", "dur": 5.0, "args": {"correlation": {}}}, {"ph": "X", "args": 3}]
    measured = trace.read(tmp_path / "t.json")
    assert only(measured).latency_us == 20.0
    assert "no recorded operator (1)" in measured.notes[0]
