"""Grouped products by a kernel of ours: the ends of groups are read on the device, so that no run waits for the host.

A block has neighbouring columns of one expert, and walks the rows of that expert, a few at once: their elements pass
through shared memory, and a weight that is read serves all of them. It ends at once where an expert has no rows. The
rows after all groups, which are zero before the epilogue, are those of one more block of each columns. Sums are in fp32
on ordinary lanes: for many rows an expert that is far from the speed of tensor cores.
"""

from __future__ import annotations

from iossim.backends.cupy_cudnn.element_kernels import Computed, functions_of
from iossim.backends.cupy_cudnn.kernel_text import kernel, value_name
from iossim.backends.cupy_cudnn.views import KernelCall, View

#: Columns of a block, a thread for each; rows that it has at once, and their elements in shared memory.
_COLUMNS, _ROWS, _INNER = 64, 8, 64
_BODY = """__shared__ float part[ROWS][INNER];
$places
const int column = tile * blockDim.x + threadIdx.x, end = expert < experts ? (int)e[expert * e_expert] : rows;
for (int first = expert ? (int)e[(expert - 1) * e_expert] : 0; first < end; first += ROWS) {
    float sums[ROWS] = {};
    for (int k = 0; k < depth && expert < experts; k += INNER) {
        __syncthreads();
        for (int i = threadIdx.x; i < ROWS * INNER; i += blockDim.x) {
            const int row = first + i / INNER, at = k + i % INNER;
            const bool is_there = row < end && at < depth;
            part[i / INNER][i % INNER] = is_there ? (float)x[(long long)row * x_row + (long long)at * x_inner] : 0.0f;
        }
        __syncthreads();
        if (column >= width) continue;
        const w_t* own = w + (long long)expert * w_expert + (long long)k * w_inner + (long long)column * w_column;
        for (int i = 0; i < INNER && k + i < depth; ++i) {
            const float weight = own[(long long)i * w_inner];
            #pragma unroll
            for (int r = 0; r < ROWS; ++r) sums[r] += part[r][i] * weight;
        }
    }
    #pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const int row = first + r;
        if (row >= end || column >= width) continue;
        const float a0 = sums[r];
        NAMED
        y[(long long)row * y_row + (long long)column * y_column] = RESULT;
    }
}
"""


def grouped_product(x: View, weight: View, ends: View, y: View, after: Computed) -> KernelCall:
    """``y [rows, width] = after(x [rows, inner] weight [experts, inner, width])``, of each row by its group's expert.

    ``after`` is an expression in ``a0``, a sum, and in operands that broadcast to ``y``. Raises BackendError for more
    elements than a kernel counts.
    """
    behind = {f"z{place}": view.broadcast(y.shape) for place, view in enumerate(after.operands, 1)}
    axes = {"x": "row inner", "w": "expert inner column", "e": "expert"}
    views = {"x": x, "w": weight, "e": ends, "y": y, **behind}
    steps = {
        f"{name}_{axis}": step
        for name, view in views.items()
        for axis, step in zip(axes.get(name, "row column").split(), view.strides, strict=True)
    }
    at = "[(long long)row * {0}_row + (long long)column * {0}_column]"
    named = (f"const {value_name(each.dtype)} a{name[1:]} = {name}{at.format(name)};" for name, each in behind.items())
    experts, tiles = weight.shape[0], -(-y.shape[1] // _COLUMNS)
    return kernel(
        "grouped_product",
        _BODY.replace("NAMED", " ".join(named)).replace("RESULT", after.expression),
        views,
        {},
        {"expert": experts + 1, "tile": tiles},
        constants={"ROWS": _ROWS, "INNER": _INNER},
        functions=functions_of(after.expression),
        more={"rows": y.shape[0], "width": y.shape[1], "depth": x.shape[1], "experts": experts, **steps},
        grid=("blockIdx.x", (experts + 1) * tiles, _COLUMNS),
    )
