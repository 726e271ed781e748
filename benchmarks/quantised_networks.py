"""Networks quantised by ONNX Runtime's tool, priced in int8, and their outputs against ONNX Runtime's.

    python benchmarks/quantised_networks.py [NETWORK ...] [--device a100-sxm-40gb]

One row per network and format: the numbers of products that run in int8 and otherwise, simulated ms beside those of the
network in fp32 and of ``--dtype int8``, and the largest relative error against ONNX Runtime (graph rewrites off).
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import numpy as np
import onnxruntime
import typer
from onnxruntime import quantization

import iossim
from benchmarks import markdown
from iossim.backends.numpy_reference.backend import evaluate_graph
from iossim.execution.made_inputs import made_arrays
from iossim.ir.op import Array
from iossim.models.onnx.export import write_onnx

NETWORKS = ("squeezenet", "resnet18", "mobilenet_v1", "bert_layer", "moe_layer")
FORMATS = ("QDQ", "QOperator", "dynamic")
WHOLE = ("quantized_conv", "integer_conv", "quantized_matmul", "integer_matmul")


class OneInput(quantization.CalibrationDataReader):  # type: ignore[misc]
    """Calibration data of the ranges: one generated input."""

    def __init__(self, given: Mapping[str, Array]) -> None:
        self.left = [given]

    def get_next(self) -> Mapping[str, Array] | None:
        return self.left.pop() if self.left else None


def main(
    networks: Annotated[list[str] | None, typer.Argument(metavar="[NETWORK]...")] = None, device: str = "a100-sxm-40gb"
) -> None:
    logging.disable(logging.WARNING)
    markdown.head("network", "format", "products in int8", "others", "ms", "in fp32", "`--dtype int8`", "off by")
    for name in networks or NETWORKS:
        with tempfile.TemporaryDirectory() as folder:
            for kind in FORMATS:
                markdown.row(name, kind, *row(name, kind, device, Path(folder)))


def row(name: str, kind: str, board: str, folder: Path) -> tuple[object, ...]:
    network = iossim.load(name)
    source, made = folder / "source.onnx", folder / f"{kind}.onnx"
    write_onnx(network.graph, source)
    inputs = made_arrays(network.graph.inputs, network.graph.types)
    if kind == "dynamic":
        quantization.quantize_dynamic(source, made, weight_type=quantization.QuantType.QInt8)
    else:
        quantization.quantize_static(
            source, made, OneInput(inputs), quant_format=quantization.QuantFormat[kind], per_channel=True
        )
    found = iossim.load(str(made))
    kinds = found.graph.of_kind
    counts = [sum(len(kinds.get(one, ())) for one in ones) for ones in (WHOLE, ("conv", "gemm", "matmul"))]
    ways = (found, iossim.load(str(source)), iossim.load(str(source), dtype="int8"))
    times = [f"{iossim.optimize(way, board, scheduler='sequential').latency_us / 1e3:.3f}" for way in ways]
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    expected = onnxruntime.InferenceSession(str(made), options).run(None, dict(inputs))
    outputs = evaluate_graph(found.graph, inputs)
    off = max(
        float(np.abs(outputs[value] - array).max() / np.abs(array).max())
        for value, array in zip(found.graph.outputs, expected, strict=True)
    )
    return *counts, *times, f"{off:.1%}"


if __name__ == "__main__":
    typer.run(main)
