"""The driver that runs on a GPU, run on the host's device by way of a double of CuPy: what it asks CuPy for, and when."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from host_cupy import HostCupy, _Stream
from host_device import HostDriver, HostStream
from host_library import HostLibrary
from random_networks import random_inputs, random_network, random_schedule

import iossim.backends.cupy_cudnn as package
from iossim.backends.cupy_cudnn import capture
from iossim.backends.cupy_cudnn.backend import CupyCudnnBackend
from iossim.backends.cupy_cudnn.options import CudnnOptions
from iossim.backends.numpy_reference.execute import evaluate_graph
from iossim.execution.backend import BackendError, DeviceLostError, Timing
from iossim.execution.engine import UNDIVIDED, Engine
from iossim.execution.lower import lower_schedule
from iossim.ir.types import Precision

if TYPE_CHECKING:
    from iossim.backends.cupy_cudnn.cupy_driver import CupyDriver

MODULE = "iossim.backends.cupy_cudnn.cupy_driver"
MakeDriver = Callable[..., "CupyDriver"]


class Library(HostLibrary):
    """The host's library behind CuPy's streams."""

    def handle(self, stream: _Stream) -> HostStream:  # type: ignore[override]
        return stream.stream


@pytest.fixture
def make_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[MakeDriver]:
    """Makes the driver on a double of CuPy, which it is imported with; forgotten afterwards."""

    def make(device: HostDriver, **options: Any) -> CupyDriver:
        cupy = HostCupy(device, **options)
        monkeypatch.setitem(sys.modules, "cupy", cupy)  # type: ignore[arg-type]
        monkeypatch.setitem(sys.modules, "cupy.cuda", cupy.cuda)  # type: ignore[arg-type]
        if "CUPY_CACHE_DIR" not in os.environ:
            monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path))
        sys.modules.pop(MODULE, None)
        from iossim.backends.cupy_cudnn import cupy_driver

        monkeypatch.setattr(cupy_driver, "driver_library", lambda: cupy)
        return cupy_driver.CupyDriver()

    yield make
    sys.modules.pop(MODULE, None)
    if hasattr(package, "cupy_driver"):
        del package.cupy_driver


@pytest.mark.parametrize("fails", [False, True])
def test_kernels_that_start_early_are_launched_by_the_driver_itself(
    fails: bool, make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With CuPy's own arguments, and in captures alone; a driver that refuses is a remark, and nothing more."""
    network = random_network(3, movers=True)
    device = HostDriver(3, overlaps=True)
    backend, inputs = backend_on(make_driver, device, Engine.GRAPH), random_inputs(network)
    issued: list[int] = []
    own = HostCupy.cuLaunchKernelEx

    def launch(self: HostCupy, *arguments: Any) -> int:
        assert self.device.is_capturing
        issued.append(own(self, *arguments))
        return 801 if fails else 0

    told: list[str] = []
    monkeypatch.setattr(HostCupy, "cuLaunchKernelEx", launch)
    monkeypatch.setattr(capture, "warn_once", told.append)
    plan = lower_schedule(random_schedule(network, 3), network, Engine.GRAPH, in_place=True)
    outputs = backend.execute(network, plan, inputs)
    assert (len(issued) == 1) == fails
    assert told == ["the driver captures no kernels that start while others end (801)"] * fails
    for name, array in evaluate_graph(network.graph, inputs).items():
        np.testing.assert_allclose(outputs[name], array, rtol=1e-4, atol=1e-5, err_msg=name)


def backend_on(make_driver: MakeDriver, device: HostDriver, engine: Engine) -> CupyCudnnBackend:
    driver: Any = make_driver(device)
    return CupyCudnnBackend(Precision.FP32, engine, CudnnOptions(), driver, Library(device))


@pytest.mark.parametrize("engine", UNDIVIDED)
@pytest.mark.parametrize("seed", range(3))
def test_outputs_are_right_whatever_order_host_copies_and_streams_take(
    seed: int, engine: Engine, make_driver: MakeDriver
) -> None:
    """Without a synchronise behind a host copy, streams would read memory before weights are there."""
    network = random_network(seed, movers=True)
    backend, inputs = backend_on(make_driver, HostDriver(seed), engine), random_inputs(network)
    plan = lower_schedule(random_schedule(network, seed), network, engine, in_place=True)
    outputs = backend.execute(network, plan, inputs)
    for name, array in evaluate_graph(network.graph, inputs).items():
        np.testing.assert_allclose(outputs[name], array, rtol=1e-4, atol=1e-5, err_msg=name)


def test_plans_are_measured_through_it(make_driver: MakeDriver) -> None:
    network = random_network(2)
    backend = backend_on(make_driver, HostDriver(), Engine.GRAPH)
    plan = lower_schedule(random_schedule(network, 2), network, Engine.GRAPH, in_place=True)
    (samples,) = backend.measure(network, [plan], Timing(rounds=3, warm_up=1))
    assert len(samples.times_us) == 3
    assert backend.context.device == "h100-sxm"


@pytest.mark.parametrize("seed", range(8))
def test_a_copy_lands_behind_what_was_issued_and_before_what_comes(seed: int, make_driver: MakeDriver) -> None:
    device = HostDriver(seed)
    driver = make_driver(device)
    memory, stream = driver.allocate(4), driver.stream()
    number = device.bytes(memory.address, 4).view(np.float32)
    seen: list[float] = []
    device.enqueue(stream.stream, lambda: number.fill(7.0), 1.0)  # still to run
    driver.write(memory.address, np.float32([2.5]))
    device.enqueue(stream.stream, lambda: seen.append(float(number[0])), 1.0)
    device.enqueue(stream.stream, lambda: number.fill(8.0), 1.0)
    found = np.zeros(1, np.float32)
    driver.read(memory.address, found)
    assert seen == [2.5]
    assert found.tolist() == [8.0]


def test_memory_that_is_not_there_is_told_in_one_line(make_driver: MakeDriver) -> None:
    driver = make_driver(HostDriver(free_bytes=64), memory_bytes=100)
    with pytest.raises(BackendError, match="the GPU has no 101 bytes of memory left, only 64; take a smaller batch"):
        driver.allocate(101)


@pytest.mark.parametrize("engine", UNDIVIDED)
def test_a_broken_device_is_told_as_itself(engine: Engine, make_driver: MakeDriver) -> None:
    network = random_network(1)
    device = HostDriver()
    backend = backend_on(make_driver, device, engine)
    plan = lower_schedule(random_schedule(network, 1), network, engine, in_place=True)
    device.fail("cudaErrorLaunchFailure: unspecified launch failure")
    for call in (
        lambda: backend.execute(network, plan, random_inputs(network)),
        lambda: backend.measure(network, [plan], Timing(rounds=1)),
    ):
        with pytest.raises(DeviceLostError, match="the GPU failed: cudaErrorLaunchFailure: unspecified") as error:
            call()
        assert "\n" not in str(error.value)


def test_kernels_stay_in_memory_where_there_is_no_folder_for_them(
    make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CUPY_CACHE_IN_MEMORY", "0")
    make_driver(HostDriver())
    assert os.environ["CUPY_CACHE_IN_MEMORY"] == "0"
    (tmp_path / "file").touch()
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "file" / "cache"))
    make_driver(HostDriver())
    assert os.environ["CUPY_CACHE_IN_MEMORY"] == "1"
