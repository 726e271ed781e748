"""Benchmarks of a kernel by cuDNN's plans, on the host's double of a GPU, kept in a store."""

from __future__ import annotations

from pathlib import Path

import pytest
from host_device import HostDriver
from host_library import HostLibrary

from iossim.backends.cupy_cudnn.backend import CupyCudnnBackend
from iossim.backends.cupy_cudnn.convolution import Convolution
from iossim.backends.cupy_cudnn.driver import EnginePlan
from iossim.backends.cupy_cudnn.options import CudnnOptions
from iossim.base.errors import OptionError
from iossim.cost.measured.cost_model import MeasuredCostModel
from iossim.cost.measured.store import MeasurementStore
from iossim.execution.engine import Engine
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.conv_transpose import ConvBackwardFilter
from iossim.ir.types import DType, Precision, TensorType
from iossim.microbatching.convolutions_in_micro_batches import measured_rows
from iossim.microbatching.division import front
from iossim.microbatching.network_kernels import ConvKernel

X, W = TensorType((4, 3, 5, 5), DType.FLOAT32), TensorType((6, 3, 3, 3), DType.FLOAT32)
KERNEL = ConvKernel(Conv((1, 1), (1, 1, 1, 1)), (X, W))


def plans_of(convolution: Convolution) -> dict[EnginePlan, float]:
    """Two plans: the one of more workspace is faster, and more of it the larger the batch; one refuses."""
    images = convolution.x.shape[0]
    return {
        EnginePlan("gemm", 0): 30.0 * images,
        EnginePlan("fft", 1024 * images): 10.0 * images + 1,
        EnginePlan("refused", 0): 1.0,
    }


def measuring(path: Path) -> tuple[MeasuredCostModel, HostLibrary]:
    driver = HostDriver()
    library = HostLibrary(driver, plans_of)
    backend = CupyCudnnBackend(Precision.FP32, Engine.GRAPH, CudnnOptions(), driver, library)
    return MeasuredCostModel(backend, MeasurementStore(path)), library


def test_every_plan_is_a_row_and_is_measured_once(tmp_path: Path) -> None:
    model, _ = measuring(tmp_path / "store.sqlite")
    rows = [row for batch in (1, 2, 4) for row in measured_rows(KERNEL.of_batch(batch), model)]
    named = {(row.batch, row.algorithm): row for row in rows}
    assert set(named) == {(batch, f"fused:{name}") for batch in (1, 2, 4) for name in ("gemm", "fft")}
    for batch in (1, 2, 4):
        assert named[batch, "fused:fft"].workspace_bytes == 1024 * batch
        assert named[batch, "fused:gemm"].workspace_bytes == 0
        assert named[batch, "fused:gemm"].time_us > named[batch, "fused:fft"].time_us
    assert "4x1 fused:fft" in map(str, front(rows, 4))

    again, library = measuring(tmp_path / "store.sqlite")
    assert [row for batch in (1, 2, 4) for row in measured_rows(KERNEL.of_batch(batch), again)] == rows
    assert not library.asked


def test_gradients_are_not_measured(tmp_path: Path) -> None:
    model, _ = measuring(tmp_path / "store.sqlite")
    op = ConvBackwardFilter((1, 1), (1, 1, 1, 1), (1, 1), 1, kernel_size=(3, 3))
    kernel = ConvKernel(op, (X, TensorType((4, 6, 5, 5), DType.FLOAT32)))
    with pytest.raises(OptionError, match="algorithms of gradients are not measured"):
        measured_rows(kernel.of_batch(4), model)
