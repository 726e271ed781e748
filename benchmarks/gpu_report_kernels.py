"""CUDA kernels whose only use is that ``gpu_report.py`` measures a device with them."""

from __future__ import annotations

#: Nothing. Arguments: one that is not looked at.
EMPTY = """extern "C" __global__ void empty(int unused) { }
"""

#: Says on which multiprocessor each block runs, and stays there for a while. Arguments: cycles, a number for each
#: block.
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

#: Four numbers a thread. Arguments: elements, from where, to where.
COPY = """extern "C" __global__ void copy(unsigned int elements, const float* x, float* y) {
    const unsigned int begin = blockIdx.x * blockDim.x * 4u + threadIdx.x;
    for (unsigned int k = 0; k < 4u; ++k) {
        const unsigned int i = begin + k * blockDim.x;
        if (i < elements) y[i] = x[i];
    }
}
"""
COPIED_A_THREAD = 4

#: Chains of multiplications and additions in registers, eight at a time. Arguments: steps, address of one number.
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
