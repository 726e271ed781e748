"""Columns of tables, to operators and back; recordings, which device they are of, and files that no reader takes."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from case_files import cases
from command_line import refused
from hypothesis import given
from operators import conv, describe, operators, parse_description

from iossim.base.errors import GraphError
from iossim.hardware.load import device
from iossim.hardware.lowering.target import step_candidates
from iossim.hardware.names import device_names
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.matmul import Gemm
from iossim.ir.types import DType, Precision, TensorType
from iossim.measurements.kinds import RecordError
from iossim.measurements.measurement import ALIASES, MeasurementError, Operator, device_of, device_of_product
from iossim.measurements.operator_kinds import KINDS, OperatorReader, missing_columns, read_record, record_of

CASES = cases(__file__, "mistakes.yaml")


@given(operators())
def test_round_trip(operator: Operator) -> None:
    assert read_record(record_of(operator)) == operator
    assert parse_description(describe(operator)) == operator
    text = {name: str(value) for name, value in record_of(operator).items()}
    assert read_record(text) == operator


def test_square_and_other_spellings_are_the_same() -> None:
    square = {"batch": 2, "in_channels": 8, "out_channels": 4, "kernel": 3, "in_size": 9, "stride": 2, "padding": 1}
    wide: dict[str, Any] = {"batch": "2", "in_channels": "8.0", "out_channels": "4", "in_h": 9.0, "in_w": " 9"}
    wide |= {f"{name}_{axis}": size for name, size in {"kernel": 3, "stride": 2, "pad": 1}.items() for axis in "hw"}
    assert read_record({"op": "conv"} | square) == read_record({"op": "conv2d"} | wide)


def test_height_is_the_first_axis() -> None:
    operator = parse_description(
        "conv2d in_w=700 in_h=161 in_channels=1 batch=4 out_channels=32 kernel_w=20 kernel_h=5 pad_w=0 pad_h=0 "
        "stride_w=2 stride_h=1"
    )
    assert operator.inputs[0].shape == (4, 1, 161, 700)
    assert operator.inputs[1].shape == (32, 1, 5, 20)
    assert operator.outputs[0].shape == (4, 32, 157, 341)


def test_inner_sizes_of_products() -> None:
    dense = parse_description("linear batch=3 m=10 n=20 k=30")
    assert [value.shape for value in dense.inputs] == [(30, 20), (30, 20)]
    assert dense.outputs[0].shape == (30, 30)
    product = parse_description("gemm m=10 n=20 k=30 trans_a=T trans_b=N")
    # By columns, a is stored as [k, m] and read as [m, k] by rows; b as [k, n], which by rows is [n, k].
    assert [value.shape for value in product.inputs] == [(20, 30), (10, 30)]
    assert product.op == Gemm(trans_b=True)
    assert parse_description("layer_norm rows=10 cols=20").weights == (1, 2)


@pytest.mark.parametrize("case", CASES["records"])
def test_records_that_name_no_operator(case: str) -> None:
    text, word = CASES["records"][case]
    with pytest.raises(RecordError, match=word):
        parse_description(text)


@pytest.mark.parametrize("value", [True, None, 1.5, [3], float("nan")])
def test_values_that_are_no_sizes(value: object) -> None:
    with pytest.raises(RecordError, match="rows"):
        read_record({"op": "add", "rows": value, "cols": 2})


def test_missing_columns() -> None:
    assert missing_columns(KINDS["linear"], ["m", "n", "k"]) == ["batch"]
    given = ["batch", "in_channels", "out_channels", "in_size", "kernel", "stride"]
    assert missing_columns(KINDS["conv"], given) == ["pad_h (or padding)", "pad_w (or padding)"]
    with pytest.raises(RecordError, match="linear needs the column batch"):
        read_record({"op": "linear", "m": 1, "n": 2, "k": 3, "batch": ""})


def test_padding_that_differs_before_and_after_has_no_columns() -> None:
    operator = parse_description("conv batch=1 in_channels=5 out_channels=4 kernel=3 in_size=9 stride=1 padding=1")
    lopsided = replace(operator, op=replace(operator.op, pads=(0, 0, 1, 1)))  # type: ignore[call-arg]
    with pytest.raises(RecordError, match="padding"):
        record_of(lopsided)


def test_equal_shapes_are_one_object() -> None:
    reader = OperatorReader("relu")
    row = {"rows": "3", "cols": "4"}
    assert reader(row) is reader({**row, "note": ""})
    assert reader({**row, "dtype": "fp16"}).precision is Precision.FP16


V100 = device("v100-sxm2")


def test_step_of_a_convolution() -> None:
    operator = conv()
    step = operator.step()
    assert [operand.type.shape for operand in step.operands] == [(1, 64, 56, 48), (32, 64, 3, 5)]
    assert [operand.is_weight for operand in step.operands] == [False, True]
    assert step.outputs[0].shape == (1, 32, 56, 24)
    assert step.flops == operator.flops == 2 * 32 * 56 * 24 * 64 * 15
    assert operator.bytes == 4 * (64 * 56 * 48 + 32 * 64 * 15 + 32 * 56 * 24)


@given(operators())
def test_every_operator_is_lowered(operator: Operator) -> None:
    assert step_candidates(operator.step(), V100)


def test_key_is_readable_and_counts_neither_precision_nor_the_name_of_the_table() -> None:
    assert conv().key == "conv(strides=(1, 2),pads=(1, 2, 1, 2),dilations=(1, 1),groups=1) 1x64x56x48 32x64x3x5"
    half = replace(conv(), precision=Precision.FP16)
    assert half.key == conv().key
    assert half != conv()
    dense = parse_description("linear batch=4 m=8 n=100 k=30")
    product = parse_description("gemm m=30 n=32 k=100 trans_a=T trans_b=N")
    assert dense.key == product.key
    assert dense.kind != product.kind


def test_hash_never_changes() -> None:
    """The split of published figures hangs on it."""
    assert conv().shape_hash == "e8d820af96d505c1d9d2ccc03b56da5171d2d57c4fe6153f44e0900c817e58c8"


def test_split_by_hash() -> None:
    shapes = [parse_description(f"add rows={rows} cols={cols}") for rows in range(1, 51) for cols in range(1, 41)]
    held_out = [operator for operator in shapes if operator.is_held_out()]
    assert 0.27 < len(held_out) / len(shapes) < 0.33
    assert all(operator.is_held_out(0.5) for operator in held_out)
    assert not any(operator.is_held_out(0.0) for operator in shapes)
    assert all(operator.is_held_out(1.0) for operator in shapes)


def test_kernel_larger_than_its_image() -> None:
    with pytest.raises(GraphError, match="does not fit"):
        Operator("conv", Conv(), (TensorType((1, 1, 2, 2), DType.FLOAT32), TensorType((1, 1, 3, 3))), (1,))


GPU_TRACE = "--report cuda_gpu_trace"
PROFILE = "trtexec --exportProfile"
#: Contents by the name of the file, and what is said of them.
EXPORTS: dict[str, tuple[str | bytes, str, str]] = {
    "kern_sum.csv": ("Time (%),Total Time (ns),Instances,Avg (ns),Name\n60,1,2,3,a\n", "cuda_gpu_kern_sum", GPU_TRACE),
    "gpukernsum.csv": ("made by nsys\n\nTime(%),Total Time (ns),Instances,Average,Name\n1,1,2,3,a\n", "cuda_gpu_kern_sum", GPU_TRACE),
    "api_sum.csv": ("Time (%),Total Time (ns),Num Calls,Avg (ns),Name\n60,1,2,3,a\n", "cuda_api_sum", GPU_TRACE),
    "api_trace.csv": ("Start (ns),Duration (ns),Name,Result,CorrID,Pid\n1,2,a,0,3,4\n", "cuda_api_trace", GPU_TRACE),
    "mem.csv": ("Time (%),Total Time (ns),Count,Avg (ns),Operation\n60,1,2,3,a\n", "cuda_gpu_mem_time_sum", GPU_TRACE),
    "nvtx.csv": ("Time (%),Total Time (ns),Instances,Avg (ns),Style,Range\n60,1,2,3,a,b\n", "nvtx_sum", GPU_TRACE),
    "stats.txt": (" ** CUDA GPU Trace (cuda_gpu_trace):\n\n Start (ns)  Duration (ns)\n", "as text (cuda_gpu_trace)", "--format csv"),
    "rep.sqlite": (b"SQLite format 3\0" + bytes(64), "a SQLite database", GPU_TRACE),
    "rep.nsys-rep": (bytes(64), "a report of Nsight Systems", GPU_TRACE),
    "rep.ncu-rep": (bytes(64), "a report of Nsight Compute", "--csv --page raw"),
    "ncu.txt": ("==PROF== Connected to process 1\n  a (8, 1, 1)x(32, 1, 1)\n", "Nsight Compute's output as text", "--csv --page raw"),
    "source.csv": ('"#","Address","Source","Samples"\n"1","0x0","MOV","3"\n', "page of sources", "--page raw"),
    "t.pftrace": (b"\n\x05\x08\x01\x12\0\xff", "a binary protobuf", "export_chrome_trace"),
    "times.json": (json.dumps([{"computeMs": 1.9, "latencyMs": 2.0}]), "trtexec's --exportTimes", PROFILE),
    "output.json": (json.dumps([{"name": "y", "dimensions": "1x2", "values": [1, 2]}]), "trtexec's --exportOutput", PROFILE),
    "layers.json": (json.dumps({"Layers": ["a"], "Bindings": ["x"]}), "trtexec's --exportLayerInfo", PROFILE),
    "other.json": (json.dumps([{"a": 1, "b": 2}]), "JSON with the keys a, b", "profile"),
    "averages.txt": ("-----\n  Name  Self CPU %  Self CPU\n", "a table that PyTorch's profiler printed", "export_chrome_trace"),
}  # fmt: skip


@pytest.mark.parametrize("name", EXPORTS)
@pytest.mark.parametrize("command", ["corun", "profile-report squeezenet", "calibrate"])
def test_other_exports(name: str, command: str, tmp_path: Path) -> None:
    contents, what, remedy = EXPORTS[name]
    path = tmp_path / name
    path.write_bytes(contents.encode() if isinstance(contents, str) else contents)
    refused(f"{command} {path} --device t4", name, what, remedy)


@pytest.mark.parametrize(
    ("contents", "command", "words"),
    [
        (json.dumps([{"name": "a", "averageMs": 1}]), "corun", "trtexec's --exportProfile"),
        (json.dumps([{"cat": "Node", "ph": "X", "name": "a_kernel_time", "dur": 1}]), "corun", "it is ONNX Runtime's profile"),
        (json.dumps([{"cat": "Node", "ph": "X", "name": "a_kernel_time", "dur": 1}]), "calibrate", "'iossim profile-report MODEL FILE"),
        (json.dumps({"traceEvents": [{"ph": "X"}], "schemaVersion": 1}), "calibrate", "a trace of PyTorch's profiler"),
        ('"ID","Kernel Name","gpu__time_duration.sum"\n"","","us"\n"0","a","1"\n', "calibrate", "a profile of Nsight Compute"),
        ("Start (ns),Duration (ns),GrdX,BlkX\n1,2,3,4\n", "calibrate", "which names no operators"),
    ],
)  # fmt: skip
def test_what_profile_report_reads(contents: str, command: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(contents)
    remedy = "'iossim profile-report MODEL FILE --measurements OUT.jsonl' makes measurements of it"
    refused(f"{command} {path} --device t4", words, remedy)


@pytest.mark.parametrize(
    ("product", "name"),
    [
        ("Tesla K80", "k80"),
        ("Tesla V100-PCIE-32GB", "v100-pcie-32gb"),
        ("NVIDIA GeForce RTX 2080 Ti", "rtx-2080-ti"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm-40gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("NVIDIA GeForce GTX TITAN X", "titan-x"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
    ],
)
def test_names_of_drivers(product: str, name: str) -> None:
    assert device_of_product(product) == name
    assert name in device_names()


def test_aliases_are_of_devices_that_ship() -> None:
    assert set(ALIASES.values()) <= set(device_names())


def test_who_says_it() -> None:
    path = Path("table.csv")
    assert device_of(path, "t4", None) == "t4"
    assert device_of(path, None, "t4") == "t4"
    assert device_of(path, "v100-dgx1", "v100-sxm2") == "v100-sxm2"
    assert device_of(path, "my-gpu", "t4") == "my-gpu"
    assert device_of(path, "v100-dgx1", "t4") == "v100-sxm2"
    with pytest.raises(MeasurementError, match="`device`"):
        device_of(path, None, None)
