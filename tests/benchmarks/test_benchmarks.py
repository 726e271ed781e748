"""Benchmarks that are kept as tables, and ``dataflow_sensitivity``, whose draws depend on seed and sample alone."""

import csv
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

import iossim
from benchmarks import dataflow_heuristic, dataflow_sensitivity, joint_picture, large_networks
from benchmarks.onnxruntime_streams import COLUMNS, cases, fork_join, row, times_us
from evidence.profiles.runtime_streams import ROWS
from iossim.hardware.edge import edge_device
from iossim.hardware.lowering.kernel import Issue
from iossim.measurements.measurement_set import read_measurements

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


def test_every_table_that_is_written_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    tables = import_module("benchmarks.result_tables")
    tables.main(names=True)
    assert set(capsys.readouterr().out.split()) <= {path.stem for path in tables.TABLES.glob("*.csv")}


def test_the_picture_of_joint_searches_is_of_the_kept_table() -> None:
    assert joint_picture.PICTURE.read_text(encoding="utf-8") == joint_picture.joint_gains()


@pytest.mark.torch
def test_every_benchmark_is_importable() -> None:
    pytest.importorskip("torch", reason="needs PyTorch; pip install 'iossim[torch]'")
    # In a process of its own: other tests have a module `conftest`, too.
    names = ", ".join(sorted(path.stem for path in FOLDER.glob("*.py")))
    code = f"import sys; sys.path.insert(0, {str(FOLDER)!r}); import {names}"
    subprocess.run([sys.executable, "-c", code], cwd=FOLDER.parent, check=True)


def test_a_network_is_compared_with_itself() -> None:
    network = iossim.load("ios_sample")
    found = import_module("substitutions").differences(network, network, "v100-sxm2")
    assert found.keys() == {"onnx", "plan"}
    assert max(found.values()) <= 1e-6


def test_every_number_is_scaled_by_a_factor_of_its_own() -> None:
    for name in ("c6678", "zcu102"):
        device = edge_device(name)
        by = dataflow_sensitivity.factors(device, 0, 7)
        assert by == dataflow_sensitivity.factors(device, 0, 7)
        assert by not in (dataflow_sensitivity.factors(device, 0, 8), dataflow_sensitivity.factors(device, 1, 7))
        assert by.keys() == device.numbers().keys()
        assert len(set(by.values())) == len(by)
        assert all(0.8 <= factor <= 1.2 for factor in by.values())
        scaled = dataflow_sensitivity.scaled(device, by)
        for where, value in scaled.numbers().items():
            wanted = device.numbers()[where] * by[where]
            unit = {int: 4 if where.endswith("line_bytes") else 1}.get(type(value), 0)
            assert abs(value - wanted) <= max(unit / 2, 1e-9 * wanted)
            assert not unit or value % unit == 0
        same = dataflow_sensitivity.scaled(device, dataflow_sensitivity.factors(device, 0, 0))
        assert same.numbers() == device.numbers()


def test_a_file_goes_on_and_tells_what_holds(tmp_path: Path) -> None:
    file = tmp_path / "samples.jsonl"

    def printed(samples: int) -> str:
        given = [str(file), "--samples", str(samples), "--alone", "ios_sample", "--together", "ios_sample"]
        done = CliRunner().invoke(dataflow_sensitivity.app, given, catch_exceptions=False)
        assert done.exit_code == 0
        return done.output

    assert "of 1 samples" in printed(1)
    first = file.read_text()
    text = printed(2)
    assert file.read_text().startswith(first)
    assert [each["sample"] for each in dataflow_sensitivity.read(file)] == [0, 1, 2]
    rows = {cells[1].strip(): cells[2].strip() for line in text.splitlines() if (cells := line.split("|"))[2:]}
    drawn = dataflow_sensitivity.read(file)
    holds = sum(each["together"]["ios_sample"]["mix"] > each["together"]["ios_sample"]["server"] for each in drawn[1:])
    assert rows["the ring is faster than the server"].strip("()") == str(holds)
    assert rows["the mix is never worse than a single mode"] == "2"


def test_what_does_not_hold_as_shipped_stands_in_brackets() -> None:
    conclusion = dataflow_sensitivity.Conclusion("x", lambda each: each["x"], above=1)
    found = [{"part": {"net": one}} for one in ({"x": 0.5}, {"x": 2.0}, {"x": 3.0}, {"x": 0.1}, {"fails": "too small"})]
    assert dataflow_sensitivity.cell(conclusion, found, "part", "net") == "(2)"
    assert dataflow_sensitivity.cell(conclusion, found[1:], "part", "net") == "1"
    assert list(dataflow_sensitivity.ranks([5.0, 1.0, 5.0])) == [0.5, -1.0, 0.5]


@pytest.mark.parametrize("seed", range(8))
def test_a_few_run_as_planned(seed: int) -> None:
    assert dataflow_heuristic.worst_error(seed) <= 1e-4


#: Units, and whether a block of them is wider than compiled code takes.
SIZES = {
    "pnasnet_5_large": (269, True),
    "hrnet_w18": (470, True),
    "inception_resnet_v2": (333, False),
    "clip": (267, True),
    "moe_64": (138, True),
    "nasnet_a_large": (374, True),
}


@pytest.mark.parametrize("name", [*large_networks.BUILDS, "nasnet_a_large"])
def test_networks_are_as_large_as_they_are_said_to_be(name: str) -> None:
    network = large_networks.network(name)
    units, is_wide = SIZES[name]
    assert len(network.units) == units
    assert not network.notes, "nothing is split"
    assert (max(len(block.units) for block in network.blocks) > 64) == is_wide


SCRIPT = FOLDER / "gpu_operators.py"


@pytest.mark.torch
def test_a_dry_run_leaves_sets_of_every_precision(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs PyTorch; pip install 'iossim[torch]'")
    subprocess.run([sys.executable, str(SCRIPT), "--out", str(tmp_path), "--dry-run"], check=True)
    products, attention = (
        read_measurements(tmp_path / f"{name}.jsonl", fewest=1) for name in ("products", "attention")
    )
    assert products.header.issue is attention.header.issue is Issue.GRAPH
    found = {(row.operator.kind, str(row.operator.precision)) for row in products.measurements}
    assert found == {*(("gemm", dtype) for dtype in ("bf16", "fp16", "tf32", "fp32")), ("bmm", "bf16"), ("bmm", "fp16")}
    assert {(row.operator.kind, str(row.operator.precision)) for row in attention.measurements} == {
        ("attention", "bf16"), ("attention", "fp16"),
    }  # fmt: skip
    assert all(row.latency_us > 0 for row in (*products.measurements, *attention.measurements))


def test_it_measures_the_rows_that_are_kept() -> None:
    with ROWS.open(newline="") as file:
        reader = csv.DictReader(file)
        kept = {tuple(each[column] for column in COLUMNS[:4]) for each in reader}
        assert tuple(reader.fieldnames or ()) == COLUMNS
    made = {(one.shape, one.node, str(len(one.stream_of)), str(one.crossings)) for one in cases()}
    assert made == kept


def test_a_row_has_a_time_in_every_mode() -> None:
    pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
    case = fork_join("tiny", 2, (2, 1))
    assert sorted(case.stream_of.values()) == [0] * 6 + [1] * 2
    taken = times_us(case, 2)
    assert {mode: len(times) for mode, times in taken.items()} == {"one thread": 2, "one worker": 2, "streams": 2}
    found = row(case, taken)
    assert (found["nodes"], found["crossings"]) == (8, 3)
    assert all(float(found[column]) > 0 for column in COLUMNS[4:])
