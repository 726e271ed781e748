"""Products with weights of 4 and 8 bits by kernels of ours and by a library, in each way the same as NumPy's."""

from __future__ import annotations

import numpy as np
import pytest
from host_backend import HostBackend, always, programs
from quantised_networks import dequantised

from iossim.backends.cupy_cudnn.views import View
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.ops.quantize import DequantizedMatMul
from iossim.ir.types import DType, Precision

FP32, FP16, BF16 = Precision.FP32, Precision.FP16, Precision.BF16


@pytest.mark.parametrize(
    ("network", "precision", "few"),
    [
        (dequantised(DType.INT4, (1,), (64, 9), 32, False), FP32, "28"),
        (
            dequantised(DType.UINT4, (5, 1), (72, 3), 24, True, FP16),
            FP16,
            "2",
        ),  # accesses of 4 bytes; a column of a block left
        (dequantised(DType.INT8, (2, 8), (40, 3), 16, True), FP32, "2"),  # the last block is shorter
        (dequantised(DType.UINT8, (1,), (32, 5), 32, True, BF16, fused=False), BF16, "28"),
        (dequantised(DType.INT4, (17,), (2, 4), 2, True), FP32, ""),  # a byte at a time, and too many rows
        (dequantised(DType.UINT4, (), (64, 2), 64, False, FP16, fused=False), FP16, "28"),
    ],
)
def test_each_way_computes_what_numpy_does(network: Network, precision: Precision, few: str) -> None:
    backend = HostBackend(precision)
    ways = [each.name for each in backend.algorithms(network, "u")]
    for way in ways:
        backend.agree(network, backend.lowered(network, choices=always(way)))
    names = {way.partition(":")[0] for way in ways}
    assert {name for name in names if name.startswith("few")} == {f"few_rows{columns}" for columns in few}
    assert names & {"fused", "apart"}


def test_a_weight_is_loaded_16_bytes_at_a_time() -> None:
    (program,) = programs(dequantised(DType.INT4, (1,), (4096, 64), 128, False, FP16)).values()
    (call,) = program.convolutions
    (kernel,) = call.ways["few_rows2"]
    assert "constexpr int W = 32;" in kernel.source
    assert "constexpr int X = 8;" in kernel.source
    assert (kernel.blocks, kernel.threads) == (32, 128)
    views = {view.memory.name: view for view in kernel.arguments if isinstance(view, View)}
    assert views["by column: w"].elements == 4096 * 64 // 2
    assert program.scratch_bytes >= 4096 * 64 * 2  # for a library


@pytest.mark.parametrize(
    ("sizes", "reason"), [((5, 3), "no kernel reads odd blocks of 'w'"), (None, "is computed at run time")]
)
def test_what_no_kernel_computes_runs_on_the_host(sizes: tuple[int, int] | None, reason: str) -> None:
    network = dequantised(DType.INT4, (2,), sizes, 5, False) if sizes else computed()
    (program,) = programs(network).values()
    assert reason in program.fallbacks[0].reason
    HostBackend().agree(network)


def computed() -> Network:
    b = GraphBuilder("computed")
    x, scale = b.input("x", (2, 4)), b.input("s", (1, 3))
    with b.unit("u", "Dequantized-Matmul"):
        y = b.add(DequantizedMatMul(4), x, b.numbers("w", np.ones((4, 3), np.int8)), scale)
    return b.network([y])
