"""Recordings: which device they are of, and files of profilers that no reader takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import refused

from iossim.hardware.names import device_names
from iossim.measurements.measurement import ALIASES, MeasurementError, device_of, device_of_product

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
    line = refused(f"{command} {path} --device t4")
    for words in (name, what, remedy):
        assert words in line


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
    line = refused(f"{command} {path} --device t4")
    assert words in line
    assert "'iossim profile-report MODEL FILE --measurements OUT.jsonl' makes measurements of it" in line


@pytest.mark.parametrize(
    ("product", "name"),
    [
        ("Tesla K80", "k80"),
        ("Tesla V100-SXM2-16GB", "v100-sxm2"),
        ("Tesla V100-PCIE-32GB", "v100-pcie-32gb"),
        ("Tesla T4", "t4"),
        ("NVIDIA GeForce RTX 2080 Ti", "rtx-2080-ti"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm-40gb"),
        ("NVIDIA A100-PCIE-40GB", "a100-pcie-40gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80gb"),
        ("Tesla P100-SXM2-16GB", "p100-sxm2"),
        ("NVIDIA GeForce GTX TITAN X", "titan-x"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H200", "h200-sxm"),
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
