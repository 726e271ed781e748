"""Kernels that order or number the elements of rows: the places of extremes, the largest in order, entries picked
element by element, and running sums.

Numbers are compared as whole numbers of the same order, in which every NaN is larger than all else, as NumPy has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from iossim.backends.cupy_cudnn.kernel_text import ENTRY, filled, kernel, walked
from iossim.backends.cupy_cudnn.views import KernelCall, View
from iossim.execution.backend import BackendError
from iossim.ir.op import normal_axis
from iossim.ir.ops.gather import GatherElements, GatherND
from iossim.ir.ops.reduce import ArgExtreme, CumSum, TopK
from iossim.ir.types import DType

_KEY = """typedef int order_t;
static __device__ int key_of(float value) {
    const int bits = __float_as_int(value == 0.0f ? 0.0f : value != value ? __int_as_float(0x7fc00000) : value);
    return bits ^ ((bits >> 31) & 0x7fffffff);
}
"""
_WHOLE_KEY = """typedef long long order_t;
static __device__ long long key_of(long long value) { return value; }
"""
#: Each element counts those before it, which is its place in order: the first ``wanted`` write themselves there.
_TOP_K = """x_t* from = $x;
const order_t own = key_of(from[(long long)i * x_e]) ^ flip;
int place = 0;
for (int j = 0; j < length && place < wanted; ++j) {
    const order_t other = key_of(from[(long long)j * x_e]) ^ flip;
    place += other > own || (other == own && j < i);
}
if (place >= wanted) return;
($y)[(long long)place * y_e] = from[(long long)i * x_e];
($p)[(long long)place * p_e] = i;
"""
#: A block for each row: threads look at every so manieth element, then halve their number as they compare.
_ARG_EXTREME = """__shared__ order_t keys[256];
__shared__ int found[256];
$places
x_t* from = $x;
const int thread = threadIdx.x;
int best = thread < length ? thread : 0;
order_t key = key_of(from[(long long)best * x_e]) ^ flip;
for (int j = thread; j < length; j += blockDim.x) {
    const order_t other = key_of(from[(long long)j * x_e]) ^ flip;
    if (other > key || (other == key && last)) { key = other; best = j; }
}
keys[thread] = key; found[thread] = best;
__syncthreads();
for (int half = blockDim.x / 2; half > 0; half /= 2) {
    if (thread < half) {
        const order_t other = keys[thread + half];
        const int place = found[thread + half];
        key = keys[thread]; best = found[thread];
        if (other > key || (other == key && (last ? place > best : place < best))) {
            keys[thread] = other; found[thread] = place;
        }
    }
    __syncthreads();
}
if (thread == 0) *($p) = found[0];
"""
#: Threads in the order of the output.
_PICK = "*($y) = ($x)[$ENTRY];\n"
#: A thread for each row.
_CUMSUM = """x_t* from = $x;
y_t* to = $y;
sum_t sum = 0;
for (long long j = step < 0 ? length - 1 : 0; 0 <= j && j < length; j += step) {
    const sum_t before = sum;
    sum += from[j * x_e];
    to[j * y_e] = exclusive ? before : sum;
}
"""


def top_k(op: TopK, x: View, y: View, places: View) -> KernelCall:
    """The first ``op.count`` elements of ``x`` along an axis in order, and their places."""
    axis, key = _ordered(op, x)
    numbers = {"length": x.shape[axis], "wanted": op.count, "flip": 0 if op.largest else -1}
    return _of_rows("top_k", _TOP_K, {"x": x, "y": y, "p": places}, axis, numbers, key, each=x.shape[axis])


def arg_extreme(op: ArgExtreme, x: View, places: View) -> KernelCall:
    """The place of the largest or smallest of ``x`` along an axis, which has one element, or none, in ``places``."""
    axis, key = _ordered(op, x)
    numbers, threads = {"length": x.shape[axis], "flip": -1 if op.smallest else 0, "last": int(op.last)}, 32
    while threads < min(256, x.shape[axis]):
        threads *= 2
    kept = places.with_ones((*x.shape[:axis], 1, *x.shape[axis + 1 :]))
    return _of_rows("arg_extreme", _ARG_EXTREME, {"x": x, "p": kept}, axis, numbers, key, block=threads)


def _ordered(op: ArgExtreme | TopK, x: View) -> tuple[int, str]:
    """The axis along which numbers are compared, and the function by which; BackendError for those without one."""
    if x.dtype in (DType.FLOAT64, DType.UINT64, DType.BOOL) or x.dtype.bits < 8:
        raise BackendError(f"no kernel orders {x.dtype}")
    return normal_axis(op.axis, len(x.shape)), _KEY if x.dtype.is_floating else _WHOLE_KEY


def pick_elements(op: GatherElements, x: View, indices: View, y: View) -> KernelCall:
    """``x`` at each of ``indices`` along an axis; on the others ``x`` begins with as many entries as they have."""
    axis = normal_axis(op.axis, len(x.shape))
    strides = tuple(0 if other == axis else step for other, step in enumerate(x.strides))
    return _picked(replace(x, shape=y.shape, strides=strides), indices, y, [(x.shape[axis], x.strides[axis])], 0)


def pick(op: GatherND, x: View, indices: View, y: View) -> KernelCall:
    """``x`` at each of ``indices [..., depth]``, which are places on so many axes."""
    *ahead, apart = indices.strides
    before, after = op.batch_dims, op.batch_dims + indices.shape[-1]
    looked = [*zip(x.shape[before:after], x.strides[before:after], strict=True)]
    strides = *x.strides[:before], *[0] * (len(ahead) - before), *x.strides[after:]
    places = replace(indices, shape=y.shape, strides=(*ahead, *[0] * (len(x.shape) - after)))
    return _picked(replace(x, shape=y.shape, strides=strides), places, y, looked, apart)


def _picked(x: View, places: View, y: View, looked: Sequence[tuple[int, int]], apart: int) -> KernelCall:
    """``y`` of ``x``, each from ``places`` that lie ``apart``, one on each axis ``looked`` at (its size and stride)."""
    views = {"p": places, "x": x, "y": y}
    rows, steps = walked(list(views.values()), range(len(y.shape)))
    entries = (f"entry_at(($p)[{each} * apart], size{each}) * stride{each}" for each in range(len(looked)))
    numbers = {"apart": apart}
    for each, (size, stride) in enumerate(looked):
        numbers |= {f"size{each}": size, f"stride{each}": stride}
    body = filled(_PICK, ENTRY=" + ".join(entries))
    return kernel("pick_entries", body, views, steps, rows, more=numbers, functions=ENTRY)


def cumsum(op: CumSum, x: View, y: View) -> KernelCall:
    """Running sums of ``x`` along an axis, in its own type where it has whole numbers."""
    axis = normal_axis(op.axis, len(x.shape))
    numbers = {"length": x.shape[axis], "step": -1 if op.reverse else 1, "exclusive": int(op.exclusive)}
    sums = f"typedef {'float' if x.dtype.is_floating else 'long long'} sum_t;\n"
    return _of_rows("cumsum", _CUMSUM, {"x": x, "y": y}, axis, numbers, sums)


def _of_rows(
    name: str,
    body: str,
    views: Mapping[str, View],
    axis: int,
    numbers: Mapping[str, int],
    functions: str,
    *,
    each: int | None = None,
    block: int = 0,
) -> KernelCall:
    """A kernel over rows of views along an axis, in steps ``e``: ``each`` threads a row, or one, or a ``block``."""
    others = [other for other in range(len(next(iter(views.values())).shape)) if other != axis]
    rows, steps = walked(list(views.values()), others)
    return kernel(
        name,
        body,
        views,
        steps | {"e": tuple(view.strides[axis] for view in views.values())},
        rows if each is None else rows | {"i": each},
        more=numbers,
        functions=functions,
        grid=("blockIdx.x", prod(rows.values()), block) if block else None,
    )
