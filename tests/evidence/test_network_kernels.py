"""Operators of networks by Nsight Compute: a small table."""

from __future__ import annotations

from pathlib import Path

import pytest

from evidence.data.data_sets import read_measurements
from evidence.data.formats import formats
from iossim.hardware.lowering.kernel import Issue, Libraries
from iossim.ir.types import Precision
from iossim.measurements.measurement import MeasurementError
from iossim.measurements.operator_kinds import parse_description

COLUMNS = (
    "device,network,index,batch,dtype,op,kernel_name,in_c,in_h,in_w,out_c,kernel,stride,pad,groups,out_h,out_w,"
    "sms_needed,roofline_profile,duration_ns\n"
)
BOARD = "V100-16GB (GCP n1)"
ROWS = [
    "net,0,4,fp32,conv,Conv,3,32,32,8,3,2,1,1,16,16,4,compute,26688",
    "net,1,4,fp32,batch norm (inference),BatchNorm,8,16,16,8,,,,,16,16,32,memory,23328",
    "net,2,4,fp32,relu6,kernel,8,16,16,8,,,,,16,16,196,unknown,14687",
    "net,3,4,fp32,depthwise conv,,8,16,16,8,3,1,1,8,16,16,784,memory,40639",
    "net,4,4,fp32,max pool,,8,16,16,8,3,2,1,1,8,8,784,memory,9000",
    "net,5,4,fp32,residual add,,8,16,16,8,,,,,16,16,784,memory,5000",
]


def table(folder: Path, rows: list[str]) -> Path:
    path = folder / "network_ops.csv"
    path.write_text(COLUMNS + "".join(f"{BOARD},{row}\n" for row in rows))
    return path


def test_rows_are_operators_from_flushed_caches(tmp_path: Path) -> None:
    path = table(tmp_path, ROWS)
    found = read_measurements(path)
    assert (found.device, found.header.called, found.header.includes_gaps) == ("v100-sxm2", Libraries.CURRENT, False)
    convolution = "conv batch=4 in_channels={} out_channels=8 in_size={} kernel=3 stride={} padding=1"
    assert [one.operator for one in found.measurements] == [
        parse_description(text)
        for text in (
            convolution.format(3, 32, 2),
            "relu rows=32 cols=256",
            convolution.format(8, 16, 1) + " groups=8",
            "max_pool batch=4 channels=8 in_size=16 kernel=3 stride=2 padding=1",
            "add rows=32 cols=256",
        )
    ]
    assert [one.latency_us for one in found.measurements] == pytest.approx([26.688, 14.687, 40.639, 9.0, 5.0])
    assert all(one.operator.precision is Precision.FP32 for one in found.measurements)
    assert (found.header.issue, found.header.clock_ghz) == (Issue.PROFILER, 1.29)
    assert found.notes == (f"{path}: 1 rows left out: batch norm (inference) has no columns",)


def test_it_is_of_one_format(tmp_path: Path) -> None:
    path = table(tmp_path, ROWS)
    assert [one.title for one in formats() if one.recognises(path, path.read_text())] == [
        "table of operators of networks by Nsight Compute, with durations in ns"
    ]


def test_unknown_operators_are_named(tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match="op 'upsample' of fp32 is unknown"):
        read_measurements(table(tmp_path, [*ROWS, ROWS[0].replace(",conv,", ",upsample,")]))


def test_a_table_of_several_boards_is_refused(tmp_path: Path) -> None:
    path = table(tmp_path, ROWS)
    path.write_text(path.read_text() + f"K80,{ROWS[0]}\n")
    with pytest.raises(MeasurementError, match="of 2 devices; split the table"):
        read_measurements(path)
