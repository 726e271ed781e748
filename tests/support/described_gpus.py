"""cuDNN's planning without a GPU: descriptions of devices, and what stands for the libraries of a driver that is missing.

cuDNN links to the driver's library, and its front end asks CUDA's runtime which device there is. Where there is no
driver, empty libraries stand for both: the functions of the first say that there is no device, the second tells the
compute capability that it is told. Plans are enumerated so as they would be on the device; most are built as well,
products and attentions are not, since cuDNN has the device's own driver compile them.
"""

import ctypes
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

#: An H100 SXM as cuDNN describes a device to itself.
H100: dict[str, Any] = {
    "deviceName": "NVIDIA H100 80GB HBM3", "cudaDeviceId": 0, "deviceVer": 900, "driverVer": 13000,
    "totalGlobalMem": 85_000_000_000, "maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64],
    "regsPerBlock": 65536, "multiProcessorCount": 132, "smCountOrigin": 0, "warpSize": 32,
    "maxSharedMemoryPerBlock": 49152, "maxSharedMemoryPerBlockOptin": 232448, "oversizedSharedMemoryPerBlock": 0,
    "reservedSharedMemoryPerBlock": 1024, "maxRegistersPerSM": 65536, "maxCtasPerSM": 32, "maxThreadsPerBlock": 1024,
    "maxThreadsPerSM": 2048, "pciDeviceId": 0, "isTccDriver": 0, "supportCoopLaunch": 1, "smClockRateKHz": 1980000,
    "memClockRateKHz": 2619000, "memoryBusWidth": 5120, "l2CacheSize": 52428800,
}  # fmt: skip
#: What is different of others, as their data sheets have it.
DEVICES = {
    "A100": H100 | {"deviceVer": 800, "multiProcessorCount": 108, "maxSharedMemoryPerBlockOptin": 166912},
    "H100": H100,
    "H200": H100 | {"deviceName": "NVIDIA H200", "totalGlobalMem": 150_000_000_000, "memClockRateKHz": 3201000},
    "B200": H100 | {"deviceVer": 1000, "multiProcessorCount": 148, "l2CacheSize": 132644864},
}
#: What cuDNN and its front end look for in the driver's library.
DRIVER_FUNCTIONS = (
    "cuGetErrorString cuGetErrorName cuModuleGetFunction cuModuleLoadData cuModuleUnload cuTensorMapEncodeIm2col "
    "cuTensorMapEncodeTiled cuCtxGetCurrent cuCtxGetLimit cuCtxPopCurrent cuCtxPushCurrent cuStreamGetCtx "
    "cuDriverGetVersion cuLinkCreate cuLinkAddData cuLinkComplete cuLinkDestroy cuLaunchKernel cuLaunchKernelEx "
    "cuLaunchCooperativeKernel cuDeviceGetCount cuDeviceGet cuLibraryLoadData cuLibraryLoadFromFile cuLibraryGetKernel "
    "cuLibraryUnload cuKernelSetAttribute cuKernelGetAttribute cuKernelGetFunction cuOccupancyMaxPotentialClusterSize"
)
NO_DEVICE = 100
#: Stands for CUDA's runtime.
RUNTIME = Path(__file__).with_suffix(".c").read_text(encoding="utf-8")
#: Names the runtime library that the front end loads.
RUNTIME_VARIABLE = "CUDNN_FRONTEND_CUDART_LIB_NAME"


def stand_in(folder: Path) -> str:
    """Load what stands for missing libraries, compiled in ``folder``; why that is not possible, empty where it is.

    Before cuDNN is used. Nothing is done where there is a driver.
    """
    try:
        ctypes.CDLL("libcuda.so.1")
        return ""
    except OSError:
        pass
    compiler = shutil.which("gcc")
    if compiler is None:
        return "neither the driver's library nor gcc is installed"
    driver = "\n".join(f"int {name}(void) {{ return {NO_DEVICE}; }}" for name in DRIVER_FUNCTIONS.split())
    for name, text in (("libcuda.so.1", driver), ("libcudart_described.so", RUNTIME)):
        source = folder / f"{name}.c"
        source.write_text(text)
        command = [compiler, "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", str(folder / name), str(source)]
        subprocess.run(command, check=True)
        ctypes.CDLL(str(folder / name), mode=ctypes.RTLD_GLOBAL)
    os.environ[RUNTIME_VARIABLE] = str(folder / "libcudart_described.so")
    return ""


def describe(device: str) -> str:
    """The description of a device for cuDNN, whose compute capability the runtime's stand-in tells from now on."""
    if runtime := os.environ.get(RUNTIME_VARIABLE):
        ctypes.CDLL(runtime).describe(DEVICES[device]["deviceVer"])
    return json.dumps(DEVICES[device])
