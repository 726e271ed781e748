"""Compiles CUDA kernels for the host, so that their text is tested where there is no GPU.

A header of a few lines stands for CUDA: blocks run one after another, and the threads of a block too, unless the kernel
synchronises them; then each is a thread of the host.
"""

import ctypes
import hashlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from iossim.base.user_folders import user_cache

#: Functions are declared, not included: compilers are quick where headers are not.
SHIM = """
#define __global__
#define __device__
#define __shared__ static
extern "C" {
    float fmaxf(float, float); float fminf(float, float); float expf(float); float powf(float, float);
    float fabsf(float); float erff(float); float tanhf(float); float sqrtf(float); float logf(float);
    float log1pf(float); float expm1f(float); float rintf(float); float fmodf(float, float); float acosf(float);
    float acoshf(float); float asinf(float); float asinhf(float); float atanf(float); float atanhf(float); float ceilf(float);
    float cosf(float); float coshf(float); float floorf(float); float sinf(float); float sinhf(float); float tanf(float);
    void* memcpy(void*, const void*, unsigned long);
}
struct Dim { unsigned int x; };
static thread_local Dim threadIdx, blockIdx;
static Dim blockDim;
#define SMID(sm) sm = blockIdx.x % 4u
static inline float __int_as_float(int bits) { float value; memcpy(&value, &bits, 4); return value; }
static inline int __float_as_int(float value) { int bits; memcpy(&bits, &value, 4); return bits; }
#define HALF_TO_FLOAT(value, from) { _Float16 half; memcpy(&half, &from, 2); value = (float)half; }
#define FLOAT_TO_HALF(to, value) { const _Float16 half = (_Float16)value; memcpy(&to, &half, 2); }
static inline long long clock64() { static long long cycles; return cycles += 1000; }
"""
#: Behind the shim: threads of a warp meet as those of a block do, since kernels have all of them shuffle.
SHUFFLE = """
static inline float __shfl_xor_sync(unsigned int, float value, int other) {
    lanes[threadIdx.x] = value;
    __syncthreads();
    const float found = lanes[threadIdx.x ^ other];
    __syncthreads();
    return found;
}
"""
ONE_BY_ONE = """
extern "C" void run(unsigned int blocks, unsigned int threads, void** a) {{
    blockDim.x = threads;
    for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x)
        for (threadIdx.x = 0; threadIdx.x < threads; ++threadIdx.x) {call};
}}
"""
BARRIER = """
#include <pthread.h>
static pthread_barrier_t barrier;
static inline void __syncthreads() { pthread_barrier_wait(&barrier); }
static float lanes[1024];
"""
TOGETHER = """
struct Share {{ unsigned int blocks, thread; void** a; }};
static void* work(void* given) {{
    Share* share = (Share*)given; void** a = share->a;
    threadIdx.x = share->thread;
    for (unsigned int block = 0; block < share->blocks; ++block) {{ blockIdx.x = block; {call}; __syncthreads(); }}
    return 0;
}}
extern "C" void run(unsigned int blocks, unsigned int threads, void** a) {{
    blockDim.x = threads;
    pthread_barrier_init(&barrier, 0, threads);
    pthread_t all[1024]; Share shares[1024];
    for (unsigned int t = 0; t < threads; ++t) {{
        shares[t] = Share{{blocks, t, a}}; pthread_create(&all[t], 0, work, &shares[t]);
    }}
    for (unsigned int t = 0; t < threads; ++t) pthread_join(all[t], 0);
    pthread_barrier_destroy(&barrier);
}}
"""

#: Accesses that are not aligned trap, as on a GPU.
ALIGNED = ("-fsanitize=alignment", "-fsanitize-undefined-trap-on-error")
FLAGS = ("-std=c++17", "-O0", *ALIGNED, "-shared", "-fPIC", "-nostdlib")
#: Without the library of C++, which takes as long to link as all else.
LIBRARIES = ("-lpthread", "-lm", "-lc", "-lgcc")

HostKernel = Callable[[int, int, tuple[np.generic, ...]], None]


@cache
def host_kernel(source: str, name: str) -> HostKernel:
    """Kernel ``name`` as a function of blocks, threads of a block, and arguments of the types that it declares."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("g++ is not installed: kernels cannot be compiled for the host")
    parameters = re.search(rf"{name}\((.*?)\)\s*{{", source, re.DOTALL)
    assert parameters is not None, f"{name} is not in its source"
    types = [re.sub(r"\w+\s*$", "", parameter).strip() for parameter in parameters[1].split(",")]
    arguments = ", ".join(f"*({kind}*)a[{index}]" for index, kind in enumerate(types))
    together = "__syncthreads" in source
    runner = TOGETHER if together else ONE_BY_ONE
    text = (BARRIER + SHIM + SHUFFLE if together else SHIM) + source + runner.format(call=f"{name}({arguments})")
    key = hashlib.sha256("\0".join((*FLAGS, *LIBRARIES, text)).encode()).hexdigest()[:20]
    path = folder() / f"{key}.so"
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=folder()) as made:
            (Path(made) / "kernel.cpp").write_text(text)
            command = [compiler, *FLAGS, "kernel.cpp", "-o", "kernel.so", *LIBRARIES]
            built = subprocess.run(command, cwd=made, capture_output=True, text=True, check=False)
            assert built.returncode == 0, f"{built.stderr}\n{text}"
            (Path(made) / "kernel.so").replace(path)
    function = ctypes.CDLL(str(path)).run
    sizes = [8 if "*" in kind or "long long" in kind else 4 for kind in types]

    def run(blocks: int, threads: int, given: tuple[np.generic, ...]) -> None:
        assert [item.itemsize for item in given] == sizes, f"{name} takes {types}, not {given}"
        cells = [np.array(item) for item in given]
        pointers = (ctypes.c_void_p * len(cells))(*(cell.ctypes.data for cell in cells))
        function(ctypes.c_uint(blocks), ctypes.c_uint(threads), pointers)

    return run


@cache
def folder() -> Path:
    """Where compiled kernels are kept, for other workers and later runs."""
    path = user_cache() / "host-kernels"
    path.mkdir(parents=True, exist_ok=True)
    return path
