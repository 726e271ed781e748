"""Kernels that compute nothing of a network: for inputs, a busy device, an empty cache, and drift."""

from __future__ import annotations

#: Uniform numbers in [-1, 1) from a hash of (seed, index), as ``out_t``. Arguments: elements, seed, address.
RANDOMISE = """extern "C" __global__ void randomise(unsigned int elements, unsigned int seed, out_t* p) {
    const unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= elements) return;
    unsigned int h = (i + 1u) * 2654435761u ^ seed * 2246822519u;
    h ^= h >> 16; h *= 2146121005u; h ^= h >> 15; h *= 2221713035u; h ^= h >> 16;
    p[i] = (float)(h >> 8) * (1.0f / 8388608.0f) - 1.0f;
}
"""

#: One thread that waits: what is issued behind it piles up, so the device never waits. Arguments: cycles.
SPIN = """extern "C" __global__ void spin(long long cycles) {
    const long long start = clock64();
    while (clock64() - start < cycles) { }
}
"""

#: Reads as many numbers as there are threads, so that the L2 cache holds those and nothing else. Written, they would
#: be in the way of what is timed: it would have to wait until they are in memory. Arguments: elements, their address.
FLUSH = """extern "C" __global__ void flush(unsigned int elements, float* p) {
    const unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= elements) return;
    const float a = p[i];
    if (a == 1.17549435e-38f) p[i] = 0.0f;
}
"""

#: A fixed amount of arithmetic in registers, whose time follows the clock. Arguments: steps, address of one number.
SENTINEL = """extern "C" __global__ void sentinel(int steps, float* p) {
    float a = 1.0f + threadIdx.x, b = 0.5f;
    for (int step = 0; step < steps; ++step) { a = a * 0.999f + b; b = b * 0.998f + 0.001f; }
    if (a == -1.0f) *p = a + b;
}
"""
