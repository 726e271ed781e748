"""CSV of Nsight Compute: a kernel a row, and a metric a row."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

import pytest

from iossim.ir.types import Precision
from iossim.measurements.formats import formats
from iossim.measurements.measurement import Extent, MeasurementError, MeasurementSet
from iossim.measurements.measurement_set import read_measurements
from iossim.measurements.operator_kinds import describe, parse_description
from iossim.measurements.profilers.kernels import side_by_side
from iossim.measurements.profilers.nsight_compute import profile
from iossim.measurements.text_files import CsvError

RANGES = "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
IDENTITY = ["ID", "Process ID", "Process Name", "Host Name", RANGES, "Kernel Name", "Context", "Stream"]
EXTENTS = ["Block Size", "Grid Size", "Device", "CC"]
CONV = "conv batch=1 in_channels=64 out_channels=32 in_size=56 kernel=3 stride=1 padding=1"
RELU = "relu rows=64 cols=100"

#: The range's name, the kernel's, the duration as printed.
Kernels = Sequence[tuple[str, str, str]]


def nvtx(*names: str) -> str:
    return "1  " + "  ".join(f'"<default domain>:{name}:none:none:none:none:none:none"' for name in names)


def raw_page(kernels: Kernels, unit: str = "ns") -> str:
    rows = [[*IDENTITY, *EXTENTS, "gpu__time_duration.sum", "launch__registers_per_thread"]]
    rows.append([""] * len([*IDENTITY, *EXTENTS]) + [unit, "register/thread"])
    rows += [
        [
            str(index),
            "42",
            "python",
            "127.0.0.1",
            ranges,
            name,
            "1",
            "7",
            "(128, 1, 1)",
            "(7, 2, 1)",
            "0",
            "7.0",
            us,
            "90",
        ]
        for index, (ranges, name, us) in enumerate(kernels)
    ]
    return as_csv(rows)


def details_page(kernels: Kernels, unit: str = "usecond", metric: str = "gpu__time_duration.sum") -> str:
    rows = [[*IDENTITY, *EXTENTS, "Section Name", "Metric Name", "Metric Unit", "Metric Value"]]
    for index, (ranges, name, us) in enumerate(kernels):
        first = [
            str(index),
            "42",
            "python",
            "127.0.0.1",
            ranges,
            name,
            "1",
            "7",
            "(128, 1, 1)",
            "(7, 2, 1)",
            "0",
            "7.0",
        ]
        rows.append([*first, "Launch Statistics", "Registers Per Thread", "register/thread", "90"])
        rows.append([*first, "Command line profiler metrics", metric, unit, us])
    return as_csv(rows)


def as_csv(rows: list[list[str]]) -> str:
    stream = io.StringIO()
    csv.writer(stream, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
    return "==PROF== Connected to process 42 (/usr/bin/python3)\nsome output\n" + stream.getvalue()


def read(path: Path, text: str) -> MeasurementSet:
    path.write_text(text)
    assert [known.title for known in formats() if known.recognises(path, text)] == ["CSV of Nsight Compute"]
    return read_measurements(path, "t4", fewest=0)


KERNELS = [
    (nvtx("step", CONV), "winograd", "20,000"),
    (nvtx("step", CONV), "output", "5000.5"),
    (nvtx("step", CONV), "winograd", "22,000"),
    (nvtx("step", CONV), "output", "5000.5"),
    (nvtx(RELU), "elementwise", "3,000"),
    (nvtx("something else"), "memset", "1,000"),
]


def test_raw_page(tmp_path: Path) -> None:
    measured = read(tmp_path / "ncu.csv", raw_page(KERNELS))
    conv, relu = measured.measurements
    assert conv.operator == parse_description(CONV)
    assert conv.latency_us == pytest.approx(26.0005)
    assert conv.samples == 2
    assert conv.kernels == ("winograd", "output")
    assert (conv.grid, conv.block) == (Extent(7, 2, 1), Extent(128, 1, 1))
    assert (relu.operator, relu.latency_us) == (parse_description(RELU), 3.0)
    assert not measured.header.includes_gaps
    assert "1 of 6 kernels left out" in measured.notes[0]


@pytest.mark.parametrize(("unit", "factor"), [("ns", 1e-3), ("usecond", 1.0), ("ms", 1e3), ("second", 1e6)])
@pytest.mark.parametrize("metric", ["gpu__time_duration.sum", "Duration"])
def test_a_metric_a_row(tmp_path: Path, unit: str, factor: float, metric: str) -> None:
    measured = read(tmp_path / "ncu.csv", details_page(KERNELS, unit, metric))
    assert measured.measurements[0].latency_us == pytest.approx(26000.5 * factor)
    assert measured.measurements[1].latency_us == pytest.approx(3000 * factor)


def test_names_of_ranges(tmp_path: Path) -> None:
    named = [describe(parse_description(CONV)), f"layer 3: {RELU}", "conv2d" + CONV[4:], RELU + " precision=fp16"]
    measured = read(tmp_path / "ncu.csv", raw_page([(nvtx(name), "k", "5") for name in named]))
    assert [row.operator for row in measured.measurements] == [
        parse_description(CONV),
        parse_description(RELU),
        parse_description(RELU, Precision.FP16),
    ]


def refusal(path: Path, text: str) -> str:
    path.write_text(text)
    with pytest.raises(MeasurementError) as caught:
        read_measurements(path, "t4")
    assert path.name in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_refusals(tmp_path: Path) -> None:
    path = tmp_path / "ncu.csv"
    whole = raw_page(KERNELS)
    assert "--nvtx" in refusal(path, whole.replace(RANGES, "Other"))
    assert "cut short" in refusal(path, whole[:-40])
    assert "gpu__time_duration.sum" in refusal(path, whole.replace("gpu__time_duration.sum", "dram__bytes.sum"))
    assert "Metric Value" in refusal(path, details_page(KERNELS).replace("Metric Value", "Value"))
    assert "no metric" in refusal(path, details_page(KERNELS, metric="DRAM Frequency"))
    assert "the unit of 'gpu__time_duration.sum' is 'cycle'" in refusal(path, raw_page(KERNELS, "cycle"))
    assert "no kernels" in refusal(path, as_csv([[*IDENTITY, "gpu__time_duration.sum"]]))
    assert "usable rows" in refusal(path, whole)
    assert "LC_ALL=C" in refusal(path, raw_page([(nvtx(RELU), "k", "65,77")]))
    assert "not a positive number" in refusal(path, raw_page([(nvtx(RELU), "k", "nan")]))
    assert "names no operator" in refusal(path, raw_page([(nvtx("relu rows=64"), "k", "5")]))


def test_one_reader_for_both_uses(tmp_path: Path) -> None:
    """Both pages give the same kernels to run side by side; what only those need may be wrong in what is calibrated to."""
    pages = raw_page(KERNELS), details_page(KERNELS, "ns")
    wide, long = (side_by_side(profile(page)).rows for page in pages)
    columns = ("name", "blocks", "threads", "stream", "alone_us")
    assert [[row.cells[name] for name in columns] for row in wide] == [
        [row.cells[name] for name in columns] for row in long
    ]
    assert [row.cells["alone_us"] for row in wide] == ["20", "5.0005", "22", "5.0005", "3", "1"]
    wrong = raw_page(KERNELS).replace('"90"', '"ninety"', 1)
    assert len(read(tmp_path / "ncu.csv", wrong).measurements) == 2
    with pytest.raises(CsvError, match="launch__registers_per_thread: 'ninety' is not a number"):
        side_by_side(profile(wrong))
