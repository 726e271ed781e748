"""CUDA kernels by which ``gpu_report.py`` measures a device."""

from __future__ import annotations

#: It does nothing. Arguments: an unused number.
EMPTY = """extern "C" __global__ void empty(int unused) { }
"""

#: It reports the multiprocessor of each block, and stays there for a while. Arguments: cycles, a number per block.
PLACEMENT = """#ifndef SMID
#define SMID(sm) asm volatile("mov.u32 %0, %%smid;" : "=r"(sm))
#endif
extern "C" __global__ void placement(long long cycles, unsigned int* p) {
    unsigned int sm;
    SMID(sm);
    if (threadIdx.x == 0) p[blockIdx.x] = sm;
    const long long start = clock64();
    while (clock64() - start < cycles) { }
}
"""

#: It copies four numbers per thread. Arguments: elements, source, target.
COPY = """extern "C" __global__ void copy(unsigned int elements, const float* x, float* y) {
    const unsigned int begin = blockIdx.x * blockDim.x * 4u + threadIdx.x;
    for (unsigned int k = 0; k < 4u; ++k) {
        const unsigned int i = begin + k * blockDim.x;
        if (i < elements) y[i] = x[i];
    }
}
"""
COPIED_A_THREAD = 4

#: It runs chains of multiply-adds in registers, eight at a time. Arguments: steps, address of one number.
MULTIPLY_ADD = """extern "C" __global__ void multiply_add(int steps, float* p) {
    const float x = 0.999f, y = 0.001f;
    float a = threadIdx.x, b = a + 1, c = a + 2, d = a + 3, e = a + 4, f = a + 5, g = a + 6, h = a + 7;
    for (int step = 0; step < steps; ++step) {
        a = a * x + y; b = b * x + y; c = c * x + y; d = d * x + y;
        e = e * x + y; f = f * x + y; g = g * x + y; h = h * x + y;
    }
    if (a + b + c + d + e + f + g + h == -1.0f) *p = a;
}
"""
FLOPS_A_STEP = 16
