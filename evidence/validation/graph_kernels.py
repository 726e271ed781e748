"""Kernels measured by profilers and CUDA graphs, and networks of them by an inference compiler: mean errors in %.

The tables are shared data: products and attention in graphs, layers of TensorRT, kernels by Nsight Compute, PyTorch's
trace of ResNet-50, and ResNet-50 by TensorRT.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence

import numpy as np

from evidence.data.data_sets import read_measurement_sets, read_measurements, shared_data
from evidence.data.formats.graph_attention import steady
from iossim.api import optimize
from iossim.base.compiled import Floats
from iossim.calibration.samples import OperatorSamples
from iossim.calibration.validation import evaluate_operators
from iossim.hardware.load import device
from iossim.measurements.measurement import Measurement, MeasurementSet
from iossim.models.load import load
from iossim.prediction.bands import kind_of

BATCHES = (1, 8, 32, 128)
TRANSFORMERS = ("bert_layer", "bert_l")
DTYPES = ("tf32", "fp16", "int8")


def errors(measured: MeasurementSet, rows: Sequence[Measurement] | None = None) -> Floats:
    """Predicted over measured of rows of a set (all by default), less 1, ``[rows]``; nothing is fitted to them here."""
    samples = OperatorSamples.of(
        measured, measured.measurements if rows is None else rows, device(measured.device), 1.0
    )
    predicted_us, _ = samples.predict(samples.profile)
    found: Floats = predicted_us / samples.latency_us - 1.0
    return found


def products() -> dict[str, float]:
    """Error of bf16 products in graphs on held-out shapes, by board."""
    sets = read_measurement_sets(shared_data() / "graph_kernels/graph_products_bf16.csv")
    held_out = {one.device: [row for row in one.measurements if row.operator.is_held_out()] for one in sets}
    return {one.device: _mean(errors(one, held_out[one.device])) for one in sets}


def attention() -> dict[str, dict[str, float]]:
    """Errors of fused attention on held-out shapes, by board: for steady rows, and for all."""
    found: dict[str, dict[str, float]] = {}
    for one in read_measurement_sets(shared_data() / "graph_kernels/graph_attention_bf16.csv"):
        held_out = [[row for row in rows.measurements if row.operator.is_held_out()] for rows in (steady(one), one)]
        steady_error, every_error = (_mean(errors(one, rows)) for rows in held_out)
        found[one.device] = {"steady": steady_error, "all": every_error}
    return found


def layers() -> dict[str, float]:
    """Error of TensorRT's convolutions, by board."""
    return {
        one.device: _mean(errors(one))
        for one in read_measurement_sets(shared_data() / "graph_kernels/tensorrt_layers.csv")
    }


def profiled() -> dict[str, float]:
    """Error of kernels of networks by Nsight Compute on a V100 by kind, beside its one fitted constant."""
    measured = read_measurements(shared_data() / "operators/v100_network_ops.csv")
    found = evaluate_operators(measured, device(measured.device))
    kinds = np.array([kind_of(row.operator.op, row.operator.kind) for row in found.measurements])
    return {kind: _mean(found.errors[kinds == kind]) for kind in sorted(set(kinds))}


def trace() -> dict[str, float]:
    """Error of PyTorch's convolutions of ResNet-50 on an RTX A5000, by batch."""
    measured = read_measurements(shared_data() / "operators/a5000_network_kernels.csv")
    by_batch: dict[int, list[Measurement]] = {}
    for row in measured.measurements:
        by_batch.setdefault(row.operator.inputs[0].shape[0], []).append(row)
    return {str(batch): _mean(errors(measured, rows)) for batch, rows in sorted(by_batch.items())}


def networks() -> dict[str, list[float]]:
    """Signed errors of ResNet-50 on an A30 in each of :data:`DTYPES`, fused as compilers fuse it, by batch."""
    with (shared_data() / "graph_kernels/tensorrt_resnet50_a30.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {str(batch): [_network(dtype, batch, rows) for dtype in DTYPES] for batch in BATCHES}


def transformers() -> dict[str, dict[str, list[float]]]:
    """Units and microseconds of BERTs in fp16 on an H100, op by op and as compilers fuse them."""
    return {name: {units: _transformer(name, units) for units in ("model", "fused")} for name in TRANSFORMERS}


def _transformer(name: str, units: str) -> list[float]:
    network = load(name, dtype="fp16", units=units)
    return [len(network.units), optimize(network, "h100-sxm", engine="graph").latency_us]


def _network(dtype: str, batch: int, rows: Sequence[dict[str, str]]) -> float:
    (measured_ms,) = (
        float(row["latency_ms"]) for row in rows if dtype.upper() in row["precision"] and row["batch"] == str(batch)
    )
    network = load("resnet50", batch=batch, dtype=dtype, units="fused")
    found = optimize(network, "a30", engine="graph", scheduler="sequential")
    return 100 * (found.latency_us / 1e3 / measured_ms - 1.0)


def _mean(found: Floats) -> float:
    return 100 * float(np.abs(found).mean())
