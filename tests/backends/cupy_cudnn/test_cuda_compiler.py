"""The CUDA compiler takes every kernel (the host's compiler knows neither warps nor address spaces)."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from host_device import HostDriver, HostLibrary
from random_networks import random_inputs, sequential_schedule
from small_networks import OPS, UNITS

from iossim.backends.cupy_cudnn.backend import CupyCudnnBackend
from iossim.backends.cupy_cudnn.options import CudnnOptions
from iossim.backends.cupy_cudnn.service_kernels import RANDOMISE, SENTINEL, SPIN
from iossim.execution.engine import Engine
from iossim.execution.lower import lower_schedule
from iossim.ir.types import Precision


@pytest.mark.slow
def test_every_kernel_compiles(tmp_path: Path) -> None:
    compiler = shutil.which("nvcc")
    if compiler is None:
        pytest.skip("nvcc is not installed")
    driver = HostDriver()
    backend = CupyCudnnBackend(Precision.FP32, Engine.PAPER, CudnnOptions(), driver, HostLibrary(driver))
    for build in (*OPS.values(), *UNITS.values()):
        network = build()
        plan = lower_schedule(sequential_schedule(network), network, Engine.PAPER, in_place=True)
        backend.execute(network, plan, random_inputs(network))
    sources = sorted({source for source, _ in driver.kernels} | {RANDOMISE, SENTINEL, SPIN})
    assert len(sources) > 20
    file = tmp_path / "kernels.cu"
    # One file: names that several kernels have are told apart by namespaces, as C++ names.
    parts = [source.replace('extern "C" ', "") for source in sources]
    file.write_text("\n".join(f"namespace kernel{index} {{\n{part}}}" for index, part in enumerate(parts)))
    built = subprocess.run(
        [compiler, "-ptx", "-std=c++17", "-arch=compute_80", "-o", str(tmp_path / "kernels.ptx"), str(file)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    assert "warning" not in built.stderr, built.stderr
    assert (tmp_path / "kernels.ptx").read_text().count(".entry") == len(sources)
