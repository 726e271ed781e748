"""Products with weights of 4 and 8 bits by kernels of ours and by a library, in each way the same as NumPy's; and fp8."""

from __future__ import annotations

import numpy as np
import pytest
from host_backend import HostBackend, always, programs
from quantised_networks import dequantised, of_fp8

from iossim.backends.cupy_cudnn.views import View
from iossim.backends.numpy_reference.execute import evaluate_graph
from iossim.base.errors import say_once
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.ops.quantize import DequantizedMatMul
from iossim.ir.ops.unary import Cast
from iossim.ir.types import FP8, DType, Precision

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
    assert reason in program.fallbacks[0][2]
    HostBackend().agree(network)


@pytest.mark.parametrize("precision", [FP32, FP16, BF16])
def test_products_of_fp8_are_those_of_the_numbers(precision: Precision, caplog: pytest.LogCaptureFixture) -> None:
    say_once.cache_clear()
    network = of_fp8(precision)
    HostBackend(precision).agree(network)
    assert not any(program.fallbacks for program in programs(network).values())
    assert "products of fp8 of 'fp8' dequantise their operands: libraries' own are not called" in caplog.text


@pytest.mark.parametrize("dtype", FP8)
def test_kernels_round_to_fp8_as_numpy_does_and_read_all_of_its_numbers(dtype: DType) -> None:
    """One float in 65,537, half steps and their neighbours, infinities and NaN, written and inside a chain."""
    b = GraphBuilder("casts")
    bits = np.arange(0, 2**32, 2**16 + 1, dtype=np.uint64).astype(np.uint32)
    halves = np.arange(256, dtype=np.uint8).view(dtype.numpy).astype(np.float32) * np.float32(1 + 2.0**-4)
    x = np.concatenate([bits.view(np.float32), halves, np.nextafter(halves, 0), np.float32([np.inf, -np.inf, 0.0])])
    with b.unit("u", "Cast"):
        stored = b.add(Cast(dtype), b.input("x", x.shape))
    with b.unit("v", "Cast"):
        read = b.add(Cast("fp32"), stored)
    with b.unit("w", "Cast-Cast"):
        inside = b.add(Cast("fp32"), b.add(Cast(dtype), "x"))
    network = b.network([stored, read, inside])
    backend = HostBackend()
    found, wanted = (
        backend.execute(network, backend.lowered(network), {"x": x}),
        evaluate_graph(network.graph, {"x": x}),
    )
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name].astype(np.float32), array.astype(np.float32), err_msg=name)


def computed() -> Network:
    b = GraphBuilder("computed")
    x, scale = b.input("x", (2, 4)), b.input("s", (1, 3))
    with b.unit("u", "Dequantized-Matmul"):
        y = b.add(DequantizedMatMul(4), x, b.numbers("w", np.ones((4, 3), np.int8)), scale)
    return b.network([y])
