"""Files of profilers that no reader accepts: their descriptions, and the export to use instead."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from pathlib import Path

from iossim.base.numbers import read_json
from iossim.measurements.measurement import SCHEMA

_NSYS = "export the kernels with nsys stats --report cuda_gpu_trace --format csv REPORT.nsys-rep"
_NCU = "profile with ncu --csv --page raw --clock-control none"
_TRTEXEC = "'iossim profile-report' reads what trtexec --exportProfile=FILE writes"
_TRACE_NAME = "a trace of PyTorch's profiler or of ONNX Runtime, whose events are no operators of tables"
_TRACE = "export it with profiler.export_chrome_trace('trace.json')"
MATCH = "'iossim profile-report MODEL FILE --measurements OUT.jsonl' makes measurements of it"

_PROTOBUF = "a binary protobuf, as traces of Perfetto and XLA are", f"{_TRACE}, or {_NSYS}"
#: Initial bytes or file name suffixes of non-text files; Perfetto's traces are packets of field 1.
_BINARY: Mapping[bytes | str, tuple[str, str]] = {
    ".nsys-rep": ("a report of Nsight Systems", _NSYS),
    ".qdrep": ("a report of Nsight Systems", _NSYS),
    ".ncu-rep": ("a report of Nsight Compute", "print it with ncu --import REPORT.ncu-rep --csv --page raw"),
    b"SQLite format 3\0": ("a SQLite database, as Nsight Systems exports one", _NSYS),
    b"PK\x03\x04": ("a zip archive", "unpack it"),
    ".pftrace": _PROTOBUF,
    b"\n": _PROTOBUF,
}
#: Columns of Nsight Systems' reports, by report; the first report with all its columns present counts.
_REPORTS: Mapping[str, tuple[str, ...]] = {
    "cuda_gpu_sum": ("Total Time", "Category", "Operation"),
    "cuda_gpu_mem_time_sum": ("Total Time", "Operation"),
    "cuda_gpu_mem_size_sum": ("Total", "Count", "Operation"),
    "nvtx_sum": ("Total Time", "Range"),
    "nvtx_kern_sum": ("NVTX Range", "Kern Inst"),
    "cuda_kern_exec_sum": ("QCount",),
    "cuda_kern_exec_trace": ("API Start", "Kernel Start"),
    "nvtx_pushpop_trace": ("DurChild",),
    "cuda_api_trace": ("Start", "Duration", "CorrID"),
    "cuda_api_sum": ("Total Time", "Num Calls"),
    "cuda_gpu_kern_sum": ("Total Time", "Instances"),
}
_REPORT_AS_TEXT = re.compile(r"\*\* .*\((\w+)\):")
#: Keys of JSON objects that identify a document; the first match counts.
_JSON: Mapping[tuple[str, ...], tuple[str, str]] = {
    ("traceEvents",): (_TRACE_NAME, MATCH),
    ("ph", "name"): (_TRACE_NAME, MATCH),
    ("computeMs", "latencyMs"): ("trtexec's --exportTimes, which has the times of whole runs", _TRTEXEC),
    ("name", "dimensions", "values"): ("trtexec's --exportOutput, which has values of tensors", _TRTEXEC),
    ("name", "averageMs"): ("trtexec's --exportProfile, which has no kernels", MATCH),
    ("Layers",): ("trtexec's --exportLayerInfo, which has no times", _TRTEXEC),
    ("format_version", "stages"): ("a schedule of iossim", "give a recording"),
}


def binary_export(path: Path, data: bytes) -> str:
    """The name of a binary file's format, with the remedy; empty for an unknown one."""
    for mark, told in _BINARY.items():
        if path.name.endswith(mark) if isinstance(mark, str) else data.startswith(mark):
            return "; ".join(told)
    return ""


def text_export(text: str, expected: str) -> str:
    """The name of a text format that no reader accepts, with the remedy; empty for an unknown one.

    ``expected`` is the remedy for JSON that is neither a profile nor a known document.
    """
    begin = text.lstrip()[:1]
    if begin in ("{", "["):
        return _json_export(text, expected)
    lines = text.splitlines()[:200]
    for line in lines:
        if told := _REPORT_AS_TEXT.search(line):
            return f"a report of Nsight Systems as text ({told[1]}); {_NSYS}"
        columns = {re.sub(r"\s*\(.*\)", "", cell.strip()) for cell in next(csv.reader([line]), [])}
        if {"Duration", "GrdX"} <= columns:
            return f"a trace of Nsight Systems, which names no operators; {MATCH}"
        report = next((name for name, needed in _REPORTS.items() if columns.issuperset(needed)), None)
        if report:
            return f"Nsight Systems' report {report}, which does not have each kernel's start and grid; {_NSYS}"
        if {"ID", "Kernel Name"} <= columns:
            return f"a profile of Nsight Compute, of kernels and not of operators; {MATCH}"
        if {"Address", "Source"} <= columns:
            return f"Nsight Compute's page of sources; {_NCU}"
    if any(line.startswith("==PROF==") for line in lines):
        return f"Nsight Compute's output as text; {_NCU}"
    if any("NVPROF is profiling" in line or "nvprof" in line for line in lines):
        return f"a profile of nvprof; record with Nsight Systems, and {_NSYS}"
    if any("Self CPU %" in line for line in lines):
        return f"a table that PyTorch's profiler printed; {_TRACE}"
    return ""


def _json_export(text: str, expected: str) -> str:
    if f'"{SCHEMA}' in text[:4096]:
        return "a set of measurements; 'iossim calibrate' and 'iossim validate' read it"
    try:
        document = read_json(text)
    except ValueError as error:
        return f"JSON that is not whole ({error}); record it again, or {expected}"
    several = document if isinstance(document, list) else [document]
    keys = {key for one in several if isinstance(one, dict) for key in one}
    found = next((told for needed, told in _JSON.items() if keys.issuperset(needed)), None)
    if found:
        return "; ".join(found)
    named = f"with the keys {', '.join(sorted(map(str, keys))[:5])}" if keys else "without any objects"
    return f"JSON {named}; {expected}"
