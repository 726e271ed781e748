"""Measurement sets as files: what is written is read back; what is wrong is one line, or dropped and noted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from operators import conv, measurement_sets

from iossim.measurements.formats import formats
from iossim.measurements.measurement import Header, Measurement, MeasurementError, MeasurementSet
from iossim.measurements.measurement_set import read_measurements, write_measurements
from iossim.measurements.operator_kinds import parse_description

SUFFIXES = ("jsonl", "csv")


def small_set(count: int = 40) -> MeasurementSet:
    rows = (parse_description(f"add rows={10 * index} cols=64") for index in range(1, count + 1))
    return MeasurementSet(
        Header(device="t4", data_set="lab"),
        tuple(Measurement(operator, 3.0 + index / 10, index) for index, operator in enumerate(rows)),
    )


def refusal(path: Path, device: str | None = None) -> str:
    """The one line that says why a file is refused."""
    with pytest.raises(MeasurementError) as caught:
        read_measurements(path, device)
    line = str(caught.value)
    assert path.name in line
    assert "\n" not in line
    return line


@pytest.mark.parametrize("suffix", SUFFIXES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(measured=measurement_sets())
def test_round_trip(suffix: str, measured: MeasurementSet, tmp_path: Path) -> None:
    path = tmp_path / f"set.{suffix}"
    write_measurements(measured, path)
    assert read_measurements(path, fewest=0) == measured
    head = path.read_text()[:4096]
    assert [known.title for known in formats() if known.recognises(path, head)] == [
        "iossim measurements as " + {"jsonl": "JSON lines", "csv": "CSV"}[suffix]
    ]


def test_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match="nowhere"):
        write_measurements(small_set(), tmp_path / "nowhere" / "set.csv")
    measured = MeasurementSet(Header(device="t4", data_set="x"), (Measurement(conv(), 1.0, kernels=("a;b",)),))
    with pytest.raises(MeasurementError, match="'a;b'"):
        write_measurements(measured, tmp_path / "set.csv")
    assert not list(tmp_path.iterdir())


Edit = Callable[[list[str]], list[str]]


def edited(tmp_path: Path, suffix: str, edit: Edit) -> Path:
    """A written set after an edit of its lines."""
    path = tmp_path / f"set.{suffix}"
    write_measurements(small_set(), path)
    path.write_text("\n".join(edit(path.read_text().splitlines())) + "\n")
    return path


def latency(line: str, text: str) -> str:
    """A line with its latency replaced: the only number with a point."""
    if line.startswith("{"):
        return json.dumps({**json.loads(line), "latency_us": json.loads(text)})
    return ",".join(text if "." in cell else cell for cell in line.split(","))


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    ("text", "reason"),
    [("NaN", "not a number"), ("Infinity", "not finite"), ("-3.5", "not positive"), ("0", "positive")],
)
def test_a_bad_row_is_dropped_and_noted(tmp_path: Path, suffix: str, text: str, reason: str) -> None:
    path = edited(tmp_path, suffix, lambda lines: [*lines[:-3], latency(lines[-3], text), *lines[-2:]])
    measured = read_measurements(path)
    assert len(measured.measurements) == 39
    line = len(path.read_text().splitlines()) - 2
    assert measured.notes == (f"{path}: 1 of 40 rows dropped: latency_us is {reason} (first: line {line})",) or (
        reason == "positive" and "not positive" in measured.notes[0]
    )


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_many_bad_rows_are_a_refusal(tmp_path: Path, suffix: str) -> None:
    path = edited(tmp_path, suffix, lambda lines: [*lines[:-5], *(latency(line, "NaN") for line in lines[-5:])])
    line = refusal(path)
    assert "5 of 40 rows" in line
    assert "latency_us is not a number" in line
    assert "10%" in line


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_cut_short(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"set.{suffix}"
    write_measurements(small_set(), path)
    whole = path.read_bytes()
    for size in (len(whole) - 5, len(whole) * 3 // 4, len(whole) // 2 + 1):
        path.write_bytes(whole[:size])
        assert "cut short" in refusal(path)
    path.write_text("\n".join(whole.decode().splitlines()[:-7]) + "\n")
    assert "the header says 40 rows, the file has 33" in refusal(path)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_too_few(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"set.{suffix}"
    write_measurements(small_set(3), path)
    assert "3 usable rows" in refusal(path)
    assert len(read_measurements(path, fewest=3).measurements) == 3


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"us"', '"ms"', ["time_unit", "'us'"]),
        ('"fp32"', '"fp33"', ["precision"]),
        ("date", "dat", ["dat"]),
        ("resolution_us", "rows", ["rows"]),
        ("version", "versions", ["versions"]),
    ],
)
def test_header_that_is_not_valid(tmp_path: Path, suffix: str, old: str, new: str, words: list[str]) -> None:
    path = tmp_path / f"set.{suffix}"
    write_measurements(small_set(), path)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    line = refusal(path)
    assert all(word in line for word in ("header", *words))


def test_newer_version(tmp_path: Path) -> None:
    path = edited(tmp_path, "jsonl", lambda lines: [lines[0].replace('"version":1', '"version":2'), *lines[1:]])
    assert "update iossim" in refusal(path)


def test_device(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    write_measurements(small_set(), path)
    assert read_measurements(path, "t4").device == "t4"
    # What the file says counts; calibration refuses it for another.
    assert read_measurements(path, "p4").device == "t4"


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_other_kind_of_operator(tmp_path: Path, suffix: str) -> None:
    path = edited(tmp_path, suffix, lambda lines: [line.replace("add", "linear") for line in lines])
    line = refusal(path)
    assert "linear needs the column batch" in line


def test_no_measurements_at_all(tmp_path: Path) -> None:
    path = tmp_path / "set.txt"
    path.write_text("")
    assert "empty" in refusal(path)
    path.write_text("Once upon a time\n")
    assert "format" in refusal(path)
    path.write_bytes(bytes(range(256)))
    assert "not text" in refusal(path)
    path.write_bytes(b"\x1f\x8b\x08\x00abc")
    assert "gzip" in refusal(path)
    assert "a folder" in refusal(tmp_path)
    assert "No such file" in refusal(tmp_path / "nothing.csv")
