"""Normalisation of groups of channels by their own statistics, with a scale and a shift for each channel."""

from __future__ import annotations

import numpy as np

from iossim.backends.cupy_cudnn.element_types import element_name, typed
from iossim.backends.cupy_cudnn.views import KernelCall, View, coalesced, int32s
from iossim.execution.backend import BackendError
from iossim.ir.types import DType

#: A block works on a group, whose elements it walks as they lie: with channels ``last``, channel by channel of a place.
#: Arguments: groups; channels of a group, and places of a channel; scale and shift of each channel, with their step;
#: epsilon; input and output, each with the steps between images, channels and places.
GROUP_NORM = """extern "C" __global__ void group_norm(unsigned int groups, int channels, int places, int last,
    const scale_t* scale, int si, const scale_t* shift, int hi, float epsilon,
    const in_t* x, int xn, int xc, int xi, out_t* y, int yn, int yc, int yi) {{
    __shared__ float shared[256];
    const long long n = blockIdx.x / groups, first = (long long)(blockIdx.x % groups) * channels;
    const in_t* from = x + n * xn + first * xc;
    out_t* to = y + n * yn + first * yc;
    const int thread = threadIdx.x;
    const long long length = (long long)channels * places;
    float part = 0.0f;
    {walk} part += from[c * xc + i * xi]; }}
    {total}
    const float mean = shared[0] / (float)length;
    __syncthreads();
    part = 0.0f;
    {walk} const float off = from[c * xc + i * xi] - mean; part += off * off; }}
    {total}
    const float deviation = sqrtf(shared[0] / (float)length + epsilon);
    {walk}
        const float own = (from[c * xc + i * xi] - mean) / deviation;
        to[c * yc + i * yi] = own * scale[(first + c) * si] + shift[(first + c) * hi];
    }}
}}
""".format(
    walk="""for (long long k = thread; k < length; k += blockDim.x) {
        const long long c = last ? k % channels : k / places, i = last ? k / channels : k % places;""",
    total="""shared[thread] = part;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (thread < half) shared[thread] += shared[thread + half];
        __syncthreads();
    }""",
)


def group_norm(x: View, y: View, scale: View, shift: View, groups: int, epsilon: float) -> KernelCall:
    """``x [N, C, ...]`` to ``y``; ``scale`` and ``shift`` are ``[C]``. Raises BackendError for uneven steps."""
    places, steps = coalesced(x.shape[2:], [x.strides[2:], y.strides[2:]])
    if len(places) > 1 or scale.dtype != shift.dtype or scale.dtype not in (x.dtype, DType.FLOAT32):
        raise BackendError("group_norm takes images whose places are equally spaced; copy them first")
    channels = x.shape[1] // groups
    threads = 32
    while threads < min(256, channels * places[0]):
        threads *= 2
    arguments = (
        np.uint32(groups),
        *int32s([channels, places[0], x.strides[1] == 1 and channels > 1]),
        scale,
        *int32s(scale.strides),
        shift,
        *int32s(shift.strides),
        np.float32(epsilon),
        x,
        *int32s([*x.strides[:2], *steps[0]]),
        y,
        *int32s([*y.strides[:2], *steps[1]]),
    )
    source = typed(f"typedef {element_name(scale.dtype)} scale_t;\n{GROUP_NORM}", x, y)
    return KernelCall(source, "group_norm", x.shape[0] * groups, threads, arguments)
