"""The measurement of products and attention, without a GPU: the sets that it leaves are read back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from iossim.hardware.lowering.kernel import Issue
from iossim.measurements.measurement_set import read_measurements

pytestmark = pytest.mark.torch
SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu_operators.py"


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
