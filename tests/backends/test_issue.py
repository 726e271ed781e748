"""What stands between kernels, by how they come to the device."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from iossim import api
from iossim.backends.simulator.kernel_model import KernelModel
from iossim.hardware.load import device
from iossim.hardware.lowering.kernel import Issue, Libraries
from iossim.hardware.lowering.target import step_candidates
from iossim.hardware.profile import DeviceProfile
from iossim.ir.types import Precision
from iossim.measurements.operator_kinds import parse_description
from iossim.models.load import load

BOARDS = ("v100-sxm2", "a100-sxm-40gb", "rtx-3090", "h100-sxm", "b200")
SMALL = "relu rows=8 cols=64"


def price_us(text: str, profile: DeviceProfile, issue: Issue, libraries: Libraries, precision: Precision) -> float:
    model = KernelModel(profile, issue, libraries)
    _, prices = model.fastest(step_candidates(parse_description(text, precision).step(), profile))
    return sum(price.alone_us for price in prices)


@pytest.mark.parametrize("name", BOARDS)
def test_the_smallest_node_of_a_graph_takes_what_graphs_show(name: str) -> None:
    profile = device(name)
    node_us = price_us(SMALL, profile, Issue.GRAPH, Libraries.COMPILED, Precision.FP32)
    assert node_us == pytest.approx(profile.engine.graph_kernel_us, abs=0.4)


@pytest.mark.parametrize("name", ["a100-sxm-40gb", "rtx-3070"])
def test_a_transform_of_layout_costs_the_host_and_not_the_device(name: str) -> None:
    """Called alone, its launch is seen; in a network the host issues ahead."""
    profile = device(name)
    conv = "conv batch=1 in_channels=64 out_channels=64 in_size=28 kernel=3 stride=1 padding=1"
    calls, stream = (
        price_us(conv, profile, issue, Libraries.CUDNN_8, Precision.TF32) for issue in (Issue.CALLS, Issue.STREAM)
    )
    transforms = 4  # of the input, the filters and the output, and the table of offsets
    cold_us = profile.engine.cold_convolution_us + profile.engine.graph_tensor_kernel_us
    assert calls - stream == pytest.approx(transforms * profile.engine.dispatch_layout_us - cold_us, abs=1.0)


def test_compilers_accumulate_fp16_where_that_is_faster() -> None:
    conv = "conv batch=32 in_channels=256 out_channels=256 in_size=28 kernel=3 stride=1 padding=1"
    for name, gain in (("rtx-3090", 1.5), ("rtx-a5000", 0.9)):
        graph, calls = (
            price_us(conv, device(name), *how, Precision.FP16)
            for how in ((Issue.GRAPH, Libraries.COMPILED), (Issue.CALLS, Libraries.CURRENT))
        )
        assert calls / graph > gain
        assert name != "rtx-a5000" or calls / graph < 1.1


@pytest.mark.parametrize(
    ("dtype", "batch", "most"),
    [("tf32", 1, 0.45), ("tf32", 32, 0.2), ("fp16", 8, 0.25), ("fp16", 128, 0.1), ("int8", 32, 0.2)],
)
def test_resnet50_as_tensorrt_runs_it_on_an_a30(dtype: str, batch: int, most: float, shared: Path) -> None:
    """No figure took part in a fit. The host's call of some 0.3 ms is in what was measured."""
    with (shared / "data/graph_kernels/tensorrt_resnet50_a30.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if dtype.upper() in row["precision"] and row["batch"] == str(batch)]
    measured_ms = float(rows[0]["latency_ms"])
    network = load("resnet50", batch=batch, dtype=dtype, units="fused")
    found = api.optimize(network, "a30", engine="graph", scheduler="sequential")
    assert abs(found.latency_us / 1e3 / measured_ms - 1.0) < most
