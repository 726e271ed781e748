"""The CUDA compiler takes every kernel (the host's compiler knows neither warps nor address spaces)."""

from __future__ import annotations

import ctypes
import importlib.util
from contextlib import suppress
from pathlib import Path

import pytest
from host_device import HostDriver
from precisions import stored_in
from quantised_networks import QUANTISED
from random_networks import sequential_schedule
from small_networks import OPS, UNITS

from iossim.backends.cupy_cudnn.candidate_timing import randomise
from iossim.backends.cupy_cudnn.clock import FLUSH, SENTINEL, SPIN
from iossim.backends.cupy_cudnn.prepared_plan import launch_program
from iossim.backends.cupy_cudnn.views import KernelCall, Memory, dense
from iossim.backends.cupy_cudnn.weights import Weights
from iossim.execution.engine import Engine
from iossim.execution.lower import lower_schedule
from iossim.ir.types import Precision


def kernels(precision: Precision) -> list[str]:
    """The text of each kernel that small networks of all ops need, and of those of our own."""
    driver = HostDriver()
    built = [stored_in(build(), precision) for build in (*OPS.values(), *UNITS.values())]
    for network in [*built, *(build() for build in QUANTISED.values())]:
        plan = lower_schedule(sequential_schedule(network), network, Engine.PAPER, in_place=True)
        weights = Weights(network.graph, driver, channels_last=precision is not Precision.FP32)
        for launch in plan.launches:
            for call in launch_program(network, plan, launch, weights).calls:
                for kernel in [call] if isinstance(call, KernelCall) else call.kernels:
                    driver.kernel(kernel.source, kernel.name)
    view = dense(Memory("storage"), (4,), dtype=precision.storage)
    noise = randomise(view, 0)
    sources = sorted({source for source, _ in driver.kernels} | {noise.source, SENTINEL, SPIN, FLUSH})
    assert len(sources) > 20
    return sources


@pytest.fixture(scope="module")
def nvrtc() -> ctypes.CDLL:
    """CUDA's run-time compiler, of its wheel or of the system; it needs neither a GPU nor a driver."""
    found = importlib.util.find_spec("nvidia")
    folders = [] if found is None else [Path(place) for place in found.submodule_search_locations or ()]
    files = [str(file) for folder in folders for file in sorted(folder.glob("*/lib/libnvrtc.so.1?"))]
    for name in (*files, "libnvrtc.so.13", "libnvrtc.so.12"):
        with suppress(OSError):
            return ctypes.CDLL(name)
    pytest.skip("NVRTC is not installed; pip install nvidia-cuda-nvrtc")


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16, Precision.BF16])
def test_every_kernel_compiles_at_run_time(precision: Precision, nvrtc: ctypes.CDLL) -> None:
    """By NVRTC, as CuPy does it: for Ampere, Hopper and Blackwell, without any header."""
    whole = together(kernels(precision))
    for architecture in ("compute_80", "compute_90", "compute_100"):
        compiled(nvrtc, whole, architecture)


def compiled(nvrtc: ctypes.CDLL, source: str, architecture: str, *more: str) -> tuple[str, str]:
    """PTX (of a virtual architecture) and the compiler's log."""
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None) == 0
    given = [option.encode() for option in (f"--gpu-architecture={architecture}", "-std=c++17", *more)]
    failed = nvrtc.nvrtcCompileProgram(program, len(given), (ctypes.c_char_p * len(given))(*given))
    texts = []
    for what in ("PTX", "ProgramLog"):
        getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        text = ctypes.create_string_buffer(max(1, size.value))
        getattr(nvrtc, f"nvrtcGet{what}")(program, text)
        texts.append(text.value.decode())
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    assert not failed, texts[1][:2000]
    return texts[0], texts[1]


def together(sources: list[str]) -> str:
    """One file: names that several kernels have are told apart by namespaces, as C++ names."""
    parts = [source.replace('extern "C" ', "") for source in sources]
    return "\n".join(f"namespace kernel{index} {{\n{part}}}" for index, part in enumerate(parts))
