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
const int column = tile * blockDim.x + threadIdx.x, count_of = (int)(expert < EXPERTS ? e[expert * e_expert] : rows);
for (int first = expert ? (int)e[(expert - 1) * e_expert] : 0; first < count_of; first += ROWS) {
    float sums[ROWS] = {};
    for (int k = 0; k < depth && expert < EXPERTS; k += INNER) {
        __syncthreads();
        for (int i = threadIdx.x; i < ROWS * INNER; i += blockDim.x) {
            const int row = first + i / INNER, at = k + i % INNER;
            const bool is_there = row < count_of && at < depth;
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
        if (row >= count_of || column >= width) continue;
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
    ends_of = {"row": (0, None, None, 0), "column": (None, 2, None, 1), "inner": (1, 1, None, None)}
    axes: dict[str, tuple[int | None, ...]] = {**ends_of, "expert": (None, 0, 0, None)}
    views = {"x": x, "w": weight, "e": ends, "y": y, **behind}
    steps = {
        name: tuple(
            0 if axis is None else view.strides[axis]
            for view, axis in zip(views.values(), (*own, *own[3:] * len(behind)), strict=True)
        )
        for name, own in axes.items()
    }
    at = "[(long long)row * {0}_row + (long long)column * {0}_column]"
    named = " ".join(
        f"const {value_name(view.dtype)} a{name[1:]} = {name}{at.format(name)};" for name, view in behind.items()
    )
    tiles = -(-y.shape[1] // _COLUMNS)
    return kernel(
        "grouped_product",
        _BODY.replace("NAMED", named).replace("RESULT", after.expression),
        views,
        steps,
        {"expert": weight.shape[0] + 1, "tile": tiles},
        constants={"ROWS": _ROWS, "INNER": _INNER},
        functions=functions_of(after.expression),
        more={"rows": y.shape[0], "width": y.shape[1], "depth": x.shape[1], "EXPERTS": weight.shape[0]},
        grid=("blockIdx.x", (weight.shape[0] + 1) * tiles, _COLUMNS),
    )
