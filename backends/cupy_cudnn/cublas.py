"""Matrix products by cuBLAS, beside cuDNN's plans: one more plan of whatever is a product, timed like the others.

That is a stack of products, and a convolution of images of one pixel, which a layer of a transformer is. cuBLAS is
called by ctypes: CuPy sets a handle's stream anew at each call, and no workspace, without which a capture would hold
allocations. Sums are of fp32, and so is what is summed up again; TF32 only where it is allowed. Products of int8 are
summed in int32, where they lie as its kernels on tensor cores take them (cuBLAS manual, ``cublasLtMatmul``).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from iossim.backends.cupy_cudnn.convolution import Asked, Convolution, Product
from iossim.backends.cupy_cudnn.cudnn_graphs import CudnnGraphs
from iossim.backends.cupy_cudnn.cudnn_library import load_package
from iossim.backends.cupy_cudnn.driver import EnginePlan, Stream, target_of
from iossim.ir.types import DType

#: How a plan of cuBLAS is called among those of cuDNN. It chooses the kernel itself.
PLAN = "cublas"
#: What NVIDIA recommends since Hopper; before, 4 MiB do.
WORKSPACE_BYTES = 32 * 2**20

_PLAIN, _TRANSPOSED = 0, 1
_TYPES = {DType.FLOAT32: 0, DType.FLOAT16: 2, DType.BFLOAT16: 14, DType.INT8: 3, DType.INT32: 10}
_COMPUTE_FP32, _COMPUTE_TF32, _COMPUTE_INT32 = 68, 77, 72
#: Of int8 rows, columns and steps must be multiples of this.
_INT8_STEP = 4
_NO_REDUCTION_IN_LESS = 16
_ITS_OWN_CHOICE = -1


class CublasError(RuntimeError):
    """A call of cuBLAS that failed, with its status."""


class Gemm(NamedTuple):
    """A product as cuBLAS is asked for it, of matrices whose columns lie one after the other.

    ``y^T = op(b^T) op(a^T)`` for rows one after the other: ``m`` columns and ``n`` rows of ``y``, ``k`` terms of a sum;
    of each operand whether it is transposed, the step to its next column, and that to its next matrix; and the size of
    the stack.
    """

    m: int
    n: int
    k: int
    b: tuple[int, int, int]
    a: tuple[int, int, int]
    y: tuple[int, int]
    stack: int


def gemm_of(asked: Asked) -> Gemm | None:
    """The product that is asked for; None of what is none, or lies as cuBLAS does not write it."""
    if isinstance(asked, Product):
        (count, rows, columns), depth = asked.y.shape, asked.x.shape[2]
        operands = [
            _matrix(layout.shape[1:], layout.strides[1:], layout.strides[0] if layout.shape[0] > 1 else 0)
            for layout in (asked.w, asked.x, asked.y)
        ]
    elif isinstance(asked, Convolution) and _is_product(asked):
        (rows, columns), depth, count = asked.y.shape[:2], asked.x.shape[1], 1
        filters, x, y = (layout.strides[:2] for layout in (asked.w, asked.x, asked.y))
        operands = [
            _matrix((depth, columns), (filters[1], filters[0]), 0),
            _matrix((rows, depth), x, 0),
            _matrix((rows, columns), y, 0),
        ]
    else:
        return None
    b, a, written = operands
    if b is None or a is None or written is None or written[0] == _TRANSPOSED:
        return None
    found = Gemm(columns, rows, depth, b, a, written[1:], count)
    return found if asked.dtype is not DType.INT8 or _takes_int8(found) else None


def _takes_int8(gemm: Gemm) -> bool:
    is_even = not any(number % _INT8_STEP for number in (gemm.m, gemm.k, gemm.b[1], gemm.a[1], gemm.y[0]))
    return is_even and (gemm.b[0], gemm.a[0]) == (_TRANSPOSED, _PLAIN)


def _is_own(name: str) -> bool:
    return name.partition("@")[0] == PLAN


def _is_product(asked: Convolution) -> bool:
    """Whether each image is one pixel, and nothing follows."""
    pixels = [size for layout in (asked.x, asked.w, asked.y) for size in layout.shape[2:]]
    alone = asked == asked.plain and type(asked) is Convolution and asked.x.shape[1] == asked.w.shape[1]
    return alone and set(pixels) == {1} and not any((*asked.pad_before, *asked.pad_after))


def _matrix(shape: tuple[int, ...], strides: tuple[int, ...], step: int) -> tuple[int, int, int] | None:
    """Whether rows of a matrix are its columns, and its steps; None where neither lie without gaps."""
    (rows, columns), (down, across) = shape, strides
    if (across == 1 or columns == 1) and (down >= columns or rows == 1):
        return _PLAIN, max(down, columns), step
    if (down == 1 or rows == 1) and across >= rows:
        return _TRANSPOSED, across, step
    return None


@dataclass(frozen=True)
class _Executable:
    gemm: Gemm
    dtype: DType
    operands: tuple[str, str, str]
    sms: int


@dataclass
class _Handle:
    """Of one stream: cuDNN's, and cuBLAS's once it is needed, which is before any capture, with its target of SMs."""

    stream: Stream
    cudnn: Any
    cublas: Any = None
    sms: int = 0


class WithCublas:
    """cuDNN's plans and, for products, the one of cuBLAS before them; see ``ConvolutionLibrary``.

    ``cuda`` is the major version of CUDA whose cuBLAS is taken; where there is none, cuDNN is alone.
    """

    def __init__(self, cudnn: CudnnGraphs, tf32: bool, cuda: str) -> None:
        self._cudnn, self._tf32 = cudnn, tf32
        self.refusals: tuple[type[Exception], ...] = (*cudnn.refusals, CublasError)
        self._library = load_package(f"libcublas.so.{cuda}")
        self._one, self._zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
        self._whole_one, self._whole_zero = ctypes.c_int(1), ctypes.c_int(0)

    @property
    def versions(self) -> tuple[tuple[str, str], ...]:
        if self._library is None:
            return self._cudnn.versions
        number = ctypes.c_int()
        parts = []
        for part in range(3):  # major, minor, patch
            self._checked("cublasGetProperty", part, ctypes.byref(number))
            parts.append(str(number.value))
        return (("cublas", ".".join(parts)), *self._cudnn.versions)

    @property
    def built(self) -> int:
        return self._cudnn.built

    def handle(self, stream: Stream) -> _Handle:
        return _Handle(stream, self._cudnn.handle(stream))

    def plans(self, convolution: Asked, sms: int = 0) -> Iterator[EnginePlan]:
        if (own := self._own(convolution, f"{PLAN}@{sms}" if sms else PLAN)) is not None:
            yield own
        yield from self._cudnn.plans(convolution, sms)

    def named(self, convolution: Asked, name: str) -> EnginePlan | None:
        return self._own(convolution, name) if _is_own(name) else self._cudnn.named(convolution, name)

    def refusal(self, convolution: Asked) -> str:
        return self._cudnn.refusal(convolution)

    def bind(self, convolution: Asked, plan: str) -> Any:
        if not _is_own(plan):
            return self._cudnn.bind(convolution, plan)
        gemm = gemm_of(convolution)
        if gemm is None or self._library is None:
            raise KeyError(plan)
        return _Executable(gemm, convolution.dtype, ("w", "x", "y"), target_of(plan))

    def execute(self, executable: Any, addresses: Mapping[str, int], workspace: int, handle: _Handle) -> None:
        if not isinstance(executable, _Executable):
            self._cudnn.execute(executable, addresses, workspace, handle.cudnn)
            return
        if handle.cublas is None:
            handle.cublas = self._handle(handle.stream)
        if executable.sms != handle.sms:
            self._checked("cublasSetSmCountTarget", handle.cublas, executable.sms)
            handle.sms = executable.sms
        gemm, of_type, is_whole = executable.gemm, _TYPES[executable.dtype], executable.dtype is DType.INT8
        one = ctypes.byref(self._whole_one) if is_whole else ctypes.byref(self._one)
        zero = ctypes.byref(self._whole_zero) if is_whole else ctypes.byref(self._zero)
        made = _TYPES[DType.INT32] if is_whole else of_type
        b, a, y = (ctypes.c_void_p(addresses[name]) for name in executable.operands)
        compute = _COMPUTE_TF32 if executable.dtype is DType.FLOAT32 and self._tf32 else _COMPUTE_FP32
        compute = _COMPUTE_INT32 if is_whole else compute
        self._checked(
            "cublasSetWorkspace_v2", handle.cublas, ctypes.c_void_p(workspace), ctypes.c_size_t(WORKSPACE_BYTES)
        )
        self._checked(
            "cublasGemmStridedBatchedEx", handle.cublas, gemm.b[0], gemm.a[0], gemm.m, gemm.n, gemm.k,
            one, b, of_type, gemm.b[1], ctypes.c_longlong(gemm.b[2]),
            a, of_type, gemm.a[1], ctypes.c_longlong(gemm.a[2]),
            zero, y, made, gemm.y[0], ctypes.c_longlong(gemm.y[1]),
            gemm.stack, compute, _ITS_OWN_CHOICE,
        )  # fmt: skip

    def _own(self, convolution: Asked, name: str) -> EnginePlan | None:
        is_offered = self._library is not None and gemm_of(convolution) is not None
        return EnginePlan(name, WORKSPACE_BYTES) if is_offered else None

    def _handle(self, stream: Stream) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        self._checked("cublasCreate_v2", ctypes.byref(handle))
        self._checked("cublasSetStream_v2", handle, ctypes.c_void_p(stream.ptr))
        self._checked("cublasSetMathMode", handle, _NO_REDUCTION_IN_LESS)
        return handle

    def _checked(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise CublasError(f"{name} says CUBLAS_STATUS {status}")
