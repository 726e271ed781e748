"""Measurement sets as files, tables without a header, and sets of the wrong unit or device: what is wrong is one line, or dropped."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from case_files import cases
from hypothesis import HealthCheck, given, settings
from operators import measurement_sets, operators, parse_description

from iossim.hardware.load import device
from iossim.ir.types import Precision
from iossim.measurements.formats import formats
from iossim.measurements.measurement import Extent, Header, Measurement, MeasurementError, MeasurementSet, Operator
from iossim.measurements.measurement_set import (
    check_plausible,
    fastest_arithmetic_us,
    fastest_possible_us,
    read_measurements,
    write_measurements,
)
from iossim.prediction.predict import predict

CASES = cases(__file__, "mistakes.yaml")


def small_set(count: int = 40) -> MeasurementSet:
    rows = (parse_description(f"add rows={10 * index} cols=64") for index in range(1, count + 1))
    return MeasurementSet(
        Header(device="t4", data_set="lab"),
        tuple(Measurement(operator, 3.0 + index / 10, index) for index, operator in enumerate(rows)),
    )


def refused(path: Path, *words: str, device: str | None = None) -> None:
    """A file is refused in one line, which names it and has these ``words``."""
    with pytest.raises(MeasurementError) as caught:
        read_measurements(path, device)
    line = str(caught.value)
    assert [word for word in (path.name, *words) if word not in line] == [], line


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(measured=measurement_sets())
def test_round_trip(measured: MeasurementSet, tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    write_measurements(measured, path)
    assert read_measurements(path, fewest=0) == measured
    head = path.read_text()[:4096]
    assert [known.title for known in formats() if known.recognises(path, head)] == ["iossim measurements as JSON lines"]


def test_a_format_that_is_not_known_is_refused_with_its_first_line(tmp_path: Path) -> None:
    (tmp_path / "set.csv").write_text("\nop;m;n;k\nlinear;1;2;3\n")
    refused(tmp_path / "set.csv", "'op;m;n;k' begins no format that is known; give one of: a table KIND.DEVICE.csv")


def test_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match="nowhere"):
        write_measurements(small_set(), tmp_path / "nowhere" / "set.jsonl")
    with pytest.raises(MeasurementError, match=r"set.csv: a set is written as JSON lines; name it .jsonl"):
        write_measurements(small_set(), tmp_path / "set.csv")
    assert not list(tmp_path.iterdir())


Edit = Callable[[list[str]], list[str]]


def edited(tmp_path: Path, edit: Edit) -> Path:
    """A written set after an edit of its lines."""
    path = tmp_path / "set.jsonl"
    write_measurements(small_set(), path)
    path.write_text("\n".join(edit(path.read_text().splitlines())) + "\n")
    return path


def latency(line: str, text: str) -> str:
    """A line with its latency replaced."""
    return json.dumps({**json.loads(line), "latency_us": json.loads(text)})


@pytest.mark.parametrize(
    ("text", "reason"),
    [("NaN", "not a number"), ("Infinity", "not finite"), ("-3.5", "not positive"), ("0", "positive")],
)
def test_a_bad_row_is_dropped_and_noted(tmp_path: Path, text: str, reason: str) -> None:
    path = edited(tmp_path, lambda lines: [*lines[:-3], latency(lines[-3], text), *lines[-2:]])
    measured = read_measurements(path)
    assert len(measured.measurements) == 39
    line = len(path.read_text().splitlines()) - 2
    assert measured.notes == (f"{path}: 1 of 40 rows dropped: latency_us is {reason} (first: line {line})",) or (
        reason == "positive" and "not positive" in measured.notes[0]
    )


def test_many_bad_rows_are_a_refusal(tmp_path: Path) -> None:
    path = edited(tmp_path, lambda lines: [*lines[:-5], *(latency(line, "NaN") for line in lines[-5:])])
    refused(path, "5 of 40 rows", "latency_us is not a number", "10%")


def test_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    write_measurements(small_set(), path)
    whole = path.read_bytes()
    for size in (len(whole) - 5, len(whole) * 3 // 4, len(whole) // 2 + 1):
        path.write_bytes(whole[:size])
        refused(path, "cut short")
    path.write_text("\n".join(whole.decode().splitlines()[:-7]) + "\n")
    refused(path, "the header says 40 rows, the file has 33")


def test_too_few(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    write_measurements(small_set(3), path)
    refused(path, "3 usable rows")
    assert len(read_measurements(path, fewest=3).measurements) == 3


@pytest.mark.parametrize(("old", "new", "words"), CASES["sets"])
def test_a_set_with_other_text_is_refused(tmp_path: Path, old: str, new: str, words: list[str]) -> None:
    path = tmp_path / "set.jsonl"
    write_measurements(small_set(), path)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    refused(path, *words)


def test_a_date_is_a_day() -> None:
    with pytest.raises(ValueError, match="day is out of range"):
        Header(device="t4", data_set="made", date="2026-02-30")


def test_no_measurements_at_all(tmp_path: Path) -> None:
    path = tmp_path / "set.txt"
    contents = {
        b"": "empty",
        b"Once upon a time\n": "format",
        bytes(range(256)): "not text",
        b"\x1f\x8b\x08\0abc": "gzip",
    }
    for data, word in contents.items():
        path.write_bytes(data)
        refused(path, word)
    refused(tmp_path, "a folder")
    refused(tmp_path / "nothing.csv", "No such file")


SHAPES = [
    *(f"conv batch={n} in_channels=64 out_channels=128 kernel=3 in_size=28 stride=1 padding=1" for n in range(1, 33)),
    *(f"gemm m={128 * n} n=512 k=1024 trans_a=N trans_b=T" for n in range(1, 33)),
    *(f"relu rows={n * n} cols=4096" for n in range(1, 33)),
]


@pytest.fixture(scope="module")
def v100_set() -> MeasurementSet:
    """What a V100 would take, and 60 us of host overhead."""
    shapes = [parse_description(text) for text in SHAPES]
    predictions = predict(shapes, device("v100-sxm2"))
    measurements = (
        Measurement(shape, 60.0 + prediction.gpu_time_us) for shape, prediction in zip(shapes, predictions, strict=True)
    )
    return MeasurementSet(Header(device="v100-sxm2", data_set="made"), tuple(measurements))


def test_plausible(v100_set: MeasurementSet) -> None:
    assert check_plausible(v100_set, device("v100-sxm2")) is v100_set
    # A GeForce board is faster by accumulating in fp16, which bf16 does not do.
    product, board = parse_description("linear batch=1 m=512 n=512 k=512"), device("rtx-3090")
    bound_us = {each: fastest_arithmetic_us(product, board, each) for each in (Precision.FP16, Precision.BF16)}
    assert bound_us[Precision.BF16] == pytest.approx(2 * bound_us[Precision.FP16], rel=0.01)


@pytest.mark.parametrize("factor", [1e-3, 1e-6, 1e3])
def test_wrong_unit(v100_set: MeasurementSet, factor: float) -> None:
    rows = tuple(replace(row, latency_us=row.latency_us * factor) for row in v100_set.measurements)
    with pytest.raises(MeasurementError, match="is the unit us") as caught:
        check_plausible(replace(v100_set, measurements=rows), device("v100-sxm2"))
    assert "'made'" in str(caught.value)


def test_much_slower_device(v100_set: MeasurementSet) -> None:
    with pytest.raises(MeasurementError, match="is this the device"):
        check_plausible(v100_set, device("k80"))


def test_one_impossible_row_is_dropped(v100_set: MeasurementSet) -> None:
    rows = list(v100_set.measurements)
    rows[40] = replace(rows[40], latency_us=0.01)
    checked = check_plausible(replace(v100_set, measurements=tuple(rows)), device("v100-sxm2"))
    assert len(checked.measurements) == len(rows) - 1
    assert rows[40] not in checked.measurements
    assert "1 of 96 rows dropped" in checked.notes[0]


@settings(max_examples=20)
@given(operators())
def test_no_prediction_is_impossible(operator: Operator) -> None:
    for name in ("v100-sxm2", "t4", "p100-pcie-16gb", "a100-pcie-80gb"):
        (prediction,) = predict([operator], device(name))
        assert prediction.gpu_time_us >= fastest_possible_us(operator, device(name))


CONV = "row,batch,in_channels,out_channels,kernel,in_size,stride,padding,latency_us,grid_x,grid_y,grid_z,block_x,block_y,block_z,kernels"
CONV_ROWS = [f"{row},2,{16 + row},64,3,14,1,1,{80 + row}.125,4,9,36,64,1,1,winograd_a;sgemm_64x64" for row in range(20)]
GEMM_ROWS = [f"{16 * row},64,128,N,T,{10 + row}.0" for row in range(1, 20)]


def written(path: Path, header: str, rows: list[str], end: str = "\n") -> Path:
    path.write_text("\n".join([header, *rows]) + end)
    return path


def test_recorded_through_a_framework(tmp_path: Path) -> None:
    measured = read_measurements(written(tmp_path / "conv.v100-pcie-32gb.csv", CONV, CONV_ROWS))
    assert measured.device == "v100-pcie-32gb"
    assert measured.header.includes_host_overhead
    assert measured.header.host_overhead_drifts
    assert measured.header.resolution_us == 0.001
    last = measured.measurements[-1]
    assert (last.row, last.latency_us) == (19, 99.125)
    assert last.kernels == ("winograd_a", "sgemm_64x64")
    assert (last.grid, last.block) == (Extent(4, 9, 36), Extent(64, 1, 1))
    assert last.operator.inputs[0].shape == (2, 35, 14, 14)


def test_called_directly(tmp_path: Path) -> None:
    measured = read_measurements(
        written(tmp_path / "gemm.v100-dgx1.csv", "m,n,k,trans_a,trans_b,latency_us", GEMM_ROWS)
    )
    assert measured.device == "v100-sxm2"
    assert not measured.header.includes_host_overhead
    assert measured.header.resolution_us == 1.0
    assert measured.kinds == ("gemm",)


def test_kind_and_device_need_not_be_in_the_name(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    rows = [f"{kind},{row},8,{row}.5" for row in range(1, 9) for kind in ("add", "relu")]
    assert read_measurements(written(path, "op,rows,cols,latency_us", rows), "t4").kinds == ("add", "relu")
    refused(path, "`device`")
    rows = [f"{row},8,{row}.5" for row in range(1, 9)]
    remedy = "name it KIND.DEVICE.csv, or add a column 'op'"
    refused(written(path, "rows,cols,latency_us", rows), remedy, device="t4")


def test_mislabelled(tmp_path: Path) -> None:
    refused(written(tmp_path / "linear.t4.csv", CONV, CONV_ROWS), "column m is missing", "conv")
    for column, other, words in (
        ("latency_us", "latency_ms", ("latency_us", "latency_ms")),
        ("in_channels", "channels", ("in_channels",)),
        ("padding", "stride", ("twice",)),
    ):
        refused(written(tmp_path / "conv.t4.csv", CONV.replace(column, other), CONV_ROWS), *words)
    assert read_measurements(written(tmp_path / "conv.t4.csv", CONV, CONV_ROWS), "p4").device == "t4"


def test_a_bare_table_that_is_cut_short(tmp_path: Path) -> None:
    path = written(tmp_path / "conv.t4.csv", CONV, [*CONV_ROWS[:-1], CONV_ROWS[-1][:20]], end="")
    refused(path, "cut short at line 21")
    path = written(tmp_path / "gemm.t4.csv", "m,n,k,trans_a,trans_b,latency_us", GEMM_ROWS[:15], end="")
    measured = read_measurements(path)
    assert len(measured.measurements) == 14
    assert "end of line" in measured.notes[0]


def test_rows_that_make_no_sense(tmp_path: Path) -> None:
    bad = CONV_ROWS[3].replace(",3,14,", ",30,14,")
    measured = read_measurements(written(tmp_path / "conv.t4.csv", CONV, [*CONV_ROWS[:3], bad, *CONV_ROWS[4:]]))
    assert len(measured.measurements) == 19
    assert "does not fit" in measured.notes[0]
    assert "line 5" in measured.notes[0]
    short = [*CONV_ROWS[:4], "1,2,3", *CONV_ROWS[5:]]
    measured = read_measurements(written(tmp_path / "conv.t4.csv", CONV, short))
    assert "16 cells" in measured.notes[0]


def test_every_reference_table_has_one_format(shared: Path) -> None:
    paths = sorted(shared.glob("data/kernels*/*.csv"))
    assert len(paths) == 20
    for path in paths:
        head = path.read_text()[:4096]
        assert sum(known.recognises(path, head) for known in formats()) == 1


@pytest.mark.parametrize(
    ("tables", "count"),
    [("kernels_direct/*.csv", 4), ("kernels/relu.*.csv", 4), pytest.param("kernels/*.csv", 16, marks=pytest.mark.slow)],
)
def test_reference_tables(shared: Path, tables: str, count: int) -> None:
    paths = sorted(shared.glob(f"data/{tables}"))
    assert len(paths) == count
    for path in paths:
        measured = read_measurements(path)
        assert not measured.notes
        assert len(measured.measurements) == len(path.read_text().splitlines()) - 1
        assert measured.header.includes_host_overhead == (path.parent.name == "kernels")
        assert check_plausible(measured, device(measured.device)) is measured


def test_grids_of_dense_layers_follow_their_outputs(shared: Path) -> None:
    """The inner size of ``linear`` is n: one product of m rows by k columns, in tiles that the kernels' names say."""
    measured = read_measurements(shared / "data/kernels/linear.v100-pcie-32gb.csv")
    fitting = 0
    for measurement in measured.measurements:
        tile = re.search(r"_(\d+)x(\d+)", measurement.kernels[0])
        rows, columns = measurement.operator.outputs[0].shape
        if tile and measurement.grid:
            fitting += (-(-columns // int(tile[1])), -(-rows // int(tile[2]))) == measurement.grid[:2]
    assert fitting >= len(measured.measurements) - 2
