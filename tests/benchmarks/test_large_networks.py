"""Benchmarks that are kept as tables: what each measures is what its table holds."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import large_networks
from benchmarks.onnxruntime_streams import COLUMNS, cases, fork_join, row, times_us
from evidence.profiles.runtime_streams import ROWS
from iossim.hardware.lowering.kernel import Issue
from iossim.measurements.measurement_set import read_measurements

#: Units, and whether a block of them is wider than compiled code takes.
SIZES = {
    "pnasnet_5_large": (269, True),
    "hrnet_w18": (470, True),
    "inception_resnet_v2": (333, False),
    "clip": (267, True),
    "moe_64": (138, True),
    "nasnet_a_large": (374, True),
}


def test_every_network_has_a_size() -> None:
    assert SIZES.keys() == {*large_networks.BUILDS, "nasnet_a_large"}


@pytest.mark.parametrize("name", SIZES)
def test_networks_are_as_large_as_they_are_said_to_be(name: str) -> None:
    network = large_networks.network(name)
    units, is_wide = SIZES[name]
    assert len(network.units) == units
    assert not network.notes, "nothing is split"
    assert (max(len(block.units) for block in network.blocks) > 64) == is_wide


SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu_operators.py"


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
