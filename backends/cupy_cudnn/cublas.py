"""Matrix products by cuBLASLt, beside cuDNN's plans: more plans of whatever is a product, timed like the others.

That is a stack of products, and a pointwise convolution, which a layer of a transformer is, with what follows on it: a
residual, a bias, then ReLU or GELU by its tanh (cuBLAS manual, ``cublasLtMatmul``). The library is called by ctypes:
CuPy has no such call. Sums are of fp32, and so is what is summed up again; TF32 only where it is allowed. Products of
int8 are summed in int32, where they lie as its kernels on tensor cores take them.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from iossim.backends.cupy_cudnn.convolution import Asked, Convolution, FusedAttention, Product, TensorLayout
from iossim.backends.cupy_cudnn.cudnn_graphs import CudnnGraphs, EnginePlan, Executable, Handle, target_of, target_text
from iossim.backends.cupy_cudnn.cudnn_library import load_package, version_text
from iossim.backends.cupy_cudnn.driver import Stream
from iossim.backends.cupy_cudnn.views import coalesced
from iossim.ir.types import DType

#: Names of cuBLASLt's plans among those of cuDNN: the first kernels of its ranking.
PLANS = ("cublas", "cublas1", "cublas2")
#: What NVIDIA recommends since Hopper; before, 4 MiB do.
WORKSPACE_BYTES = 32 * 2**20
#: Activations as bits of what follows, as a bias is; 1 is nothing.
ACTIVATIONS, _BIAS, _NOTHING = {"": 0, "relu": 2, "gelu_tanh": 32}, 4, 1

_PLAIN, _TRANSPOSED = 0, 1
_TYPES = {DType.FLOAT32: 0, DType.FLOAT16: 2, DType.BFLOAT16: 14, DType.INT8: 3, DType.INT32: 10}
_COMPUTE_FP32, _COMPUTE_TF32, _COMPUTE_INT32 = 68, 77, 72
#: Of int8 rows, columns and steps must be multiples of this.
_INT8_STEP = 4
# The numbers of attributes: of products, of matrices, and of wishes for a kernel.
_TRANSPOSED_A, _TRANSPOSED_B, _EPILOGUE, _BIAS_POINTER, _SM_TARGET = 3, 4, 7, 8, 15
_STACK, _STACK_STEP = 5, 6
_MOST_WORKSPACE, _REDUCTIONS, _ALIGNMENTS = 1, 3, (5, 6, 7, 8)
#: Partial sums are added in place, or in the type of sums.
_REDUCTIONS_IN_FP32 = 3
#: Alignment of the addresses of operands.
_ALIGNED_BYTES = 16


class CublasError(RuntimeError):
    """A call of cuBLAS that failed, with its status."""


class Gemm(NamedTuple):
    """A product as cuBLAS is asked for it, of matrices whose columns lie one after the other.

    ``y^T = op(b^T) op(a^T)`` for rows one after the other: ``m`` columns and ``n`` rows of ``y``, ``k`` terms of a sum;
    of each operand whether it is transposed, the step to its next column, and that to its next matrix; the size of
    the stack; and the step to the next column of a residual, 0 for none.
    """

    m: int
    n: int
    k: int
    b: tuple[int, int, int]
    a: tuple[int, int, int]
    y: tuple[int, int]
    stack: int
    z: int = 0


def gemm_of(asked: Asked) -> Gemm | None:
    """The matrix product that computes a request; None where there is none, or where cuBLAS cannot write its layout or
    compute its epilogue.

    The pixels of a pointwise convolution are rows, if a constant step leads from each to the next.
    """
    residual = 0
    if isinstance(asked, FusedAttention) or asked.then:
        return None
    if isinstance(asked, Product):
        (count, rows, columns), depth = asked.y.shape, asked.x.shape[2]
        operands = [
            _matrix(layout.shape[1:], layout.strides[1:], layout.strides[0] if layout.shape[0] > 1 else 0)
            for layout in (asked.w, asked.x, asked.y)
        ]
    elif isinstance(asked, Convolution) and _is_product(asked):
        columns, depth, count, filters = asked.y.shape[1], asked.x.shape[1], 1, asked.w.strides
        rows = math.prod(asked.y.shape) // columns
        operands = [_matrix((depth, columns), (filters[1], filters[0]), 0), _pixels(asked.x), _pixels(asked.y)]
        if asked.z is not None:
            transposed, residual, _ = _pixels(asked.z) or (_TRANSPOSED, 0, 0)
            if transposed == _TRANSPOSED:
                return None
    else:
        return None
    b, a, written = operands
    if b is None or a is None or written is None or written[0] == _TRANSPOSED:
        return None
    found = Gemm(columns, rows, depth, b, a, written[1:], count, residual)
    if asked.dtype is not DType.INT8:
        return found
    is_even = not any(number % _INT8_STEP for number in (found.m, found.k, b[1], a[1], found.y[0]))
    return found if is_even and (b[0], a[0]) == (_TRANSPOSED, _PLAIN) else None


def _is_product(asked: Convolution) -> bool:
    """True where each pixel is multiplied by the same matrix, giving one pixel."""
    known = type(asked) is Convolution and asked.activation in ACTIVATIONS
    same = known and asked.x.shape[1] == asked.w.shape[1] and {*asked.w.shape[2:]} == {1}
    return same and asked.x.shape[2:] == asked.y.shape[2:] and not any((*asked.pad_before, *asked.pad_after))


def _pixels(layout: TensorLayout) -> tuple[int, int, int] | None:
    """Images as a matrix with one pixel per row; None where the step between pixels is not constant."""
    (count, channels, *size), (far, step, *near) = layout.shape, layout.strides
    sizes, ((between, *more),) = coalesced([count, *size], [[far, *near]])
    return None if more else _matrix((sizes[0], channels), (between, step), 0)


def _matrix(shape: tuple[int, ...], strides: tuple[int, ...], step: int) -> tuple[int, int, int] | None:
    """Transposition of a matrix, and its steps; None where neither rows nor columns lie without gaps."""
    (rows, columns), (down, across) = shape, strides
    if (across == 1 or columns == 1) and (down >= columns or rows == 1):
        return _PLAIN, max(down, columns), step
    if (down == 1 or rows == 1) and across >= rows:
        return _TRANSPOSED, across, step
    return None


class _Found(ctypes.Structure):
    """``cublasLtMatmulHeuristicResult_t``: a kernel with its settings, and what it needs."""

    _fields_ = (
        ("kernel", ctypes.c_uint64 * 8),
        ("workspace_bytes", ctypes.c_size_t),
        ("status", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


class _Described:
    """``D = act(A B + C + bias)``: one product, whose kernels are ranked, for so many SMs, when it first runs.

    A bias has one value a row of ``D``, which is a column of ``y``. ``call`` calls a function of cuBLASLt by its name.
    """

    def __init__(
        self, call: Callable[..., None], lt: ctypes.c_void_p, asked: Asked, gemm: Gemm, tf32: bool, sms: int
    ) -> None:
        self._call, self._lt = call, lt
        is_whole, made = asked.dtype is DType.INT8, DType.INT32 if asked.dtype is DType.INT8 else asked.dtype
        compute = _COMPUTE_TF32 if tf32 and asked.dtype is DType.FLOAT32 else _COMPUTE_FP32
        scales = (_COMPUTE_INT32, _TYPES[DType.INT32]) if is_whole else (compute, _TYPES[DType.FLOAT32])
        number = ctypes.c_int if is_whole else ctypes.c_float
        self._one, self._added = number(1), number(1 if gemm.z else 0)
        self._product = self._made("MatmulDesc", *scales)
        follows = 0
        if isinstance(asked, Convolution):
            follows = ACTIVATIONS[asked.activation] | (_BIAS if asked.bias else 0)
        self._set("MatmulDesc", self._product, _TRANSPOSED_A, ctypes.c_int32(gemm.b[0]))
        self._set("MatmulDesc", self._product, _TRANSPOSED_B, ctypes.c_int32(gemm.a[0]))
        self._set("MatmulDesc", self._product, _EPILOGUE, ctypes.c_uint32(follows or _NOTHING))
        if sms:
            self._set("MatmulDesc", self._product, _SM_TARGET, ctypes.c_int32(sms))
        added = (_PLAIN, gemm.z, 0) if gemm.z else (_PLAIN, *gemm.y)
        self._operands = [
            ("w", self._matrix(asked.dtype, (gemm.m, gemm.k), gemm.b, gemm.stack)),
            ("x", self._matrix(asked.dtype, (gemm.k, gemm.n), gemm.a, gemm.stack)),
            ("z" if gemm.z else "y", self._matrix(made, (gemm.m, gemm.n), added, gemm.stack)),
            ("y", self._matrix(made, (gemm.m, gemm.n), (_PLAIN, *gemm.y), gemm.stack)),
        ]
        self._ranked: list[_Found] = []

    def run(self, rank: int, addresses: Mapping[str, int], workspace: int, handle: _Handle) -> None:
        """Issue it to a stream by a kernel of its ranking; raises CublasError where there is none."""
        if "b" in addresses:
            self._set("MatmulDesc", self._product, _BIAS_POINTER, ctypes.c_void_p(addresses["b"]))
        self._ranked = self._ranked or self._ranking()
        if rank >= len(self._ranked):
            raise CublasError(f"cuBLASLt has {len(self._ranked)} kernels for this product")
        a, b, c, d = ((ctypes.c_void_p(addresses[name]), layout) for name, layout in self._operands)
        one, added, kernel = map(ctypes.byref, (self._one, self._added, self._ranked[rank].kernel))
        room = kernel, ctypes.c_void_p(workspace), ctypes.c_size_t(WORKSPACE_BYTES), ctypes.c_void_p(handle.ptr)
        self._call("cublasLtMatmul", self._lt, self._product, one, *a, *b, added, *c, *d, *room)

    def _ranking(self) -> list[_Found]:
        wanted = self._made("MatmulPreference")
        self._set("MatmulPreference", wanted, _MOST_WORKSPACE, ctypes.c_uint64(WORKSPACE_BYTES))
        self._set("MatmulPreference", wanted, _REDUCTIONS, ctypes.c_uint32(_REDUCTIONS_IN_FP32))
        for operand in _ALIGNMENTS:
            self._set("MatmulPreference", wanted, operand, ctypes.c_uint32(_ALIGNED_BYTES))
        found, count = (_Found * len(PLANS))(), ctypes.c_int()
        layouts = [layout for _, layout in self._operands]
        asked = self._lt, self._product, *layouts, wanted, len(PLANS), ctypes.byref(found), ctypes.byref(count)
        self._call("cublasLtMatmulAlgoGetHeuristic", *asked)
        self._call("cublasLtMatmulPreferenceDestroy", wanted)
        return [each for each in found[: count.value] if not each.status]

    def _matrix(self, dtype: DType, sizes: tuple[int, int], lies: tuple[int, int, int], stack: int) -> ctypes.c_void_p:
        transposed, step, apart = lies
        rows, columns = map(ctypes.c_uint64, reversed(sizes) if transposed else sizes)
        layout = self._made("MatrixLayout", _TYPES[dtype], rows, columns, ctypes.c_int64(step))
        if stack > 1:
            self._set("MatrixLayout", layout, _STACK, ctypes.c_int32(stack))
            self._set("MatrixLayout", layout, _STACK_STEP, ctypes.c_int64(apart))
        return layout

    def _made(self, kind: str, *arguments: object) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        self._call(f"cublasLt{kind}Create", ctypes.byref(made), *arguments)
        return made

    def _set(self, kind: str, described: ctypes.c_void_p, attribute: int, value: ctypes._CData) -> None:
        size = ctypes.c_size_t(ctypes.sizeof(value))
        self._call(f"cublasLt{kind}SetAttribute", described, attribute, ctypes.byref(value), size)


class _Handle(NamedTuple):
    """Handles of one stream, whose number is ``ptr``."""

    ptr: int
    cudnn: Handle


class WithCublas:
    """cuDNN's plans and, for products, those of cuBLASLt before them; its methods are those of :class:`CudnnGraphs`.

    ``cuda`` is the major version of CUDA whose library is taken; where there is none, cuDNN is alone.
    """

    def __init__(self, cudnn: CudnnGraphs, tf32: bool, cuda: str) -> None:
        self._cudnn, self._tf32 = cudnn, tf32
        self.refusals: tuple[type[Exception], ...] = (*cudnn.refusals, CublasError)
        self._library = load_package(f"libcublasLt.so.{cuda}")
        self._lt = ctypes.c_void_p()
        self._described: dict[tuple[Asked, int], _Described] = {}

    @property
    def versions(self) -> tuple[tuple[str, str], ...]:
        if self._library is None:
            return self._cudnn.versions
        self._library.cublasLtGetVersion.restype = ctypes.c_size_t
        return (("cublas", version_text(int(self._library.cublasLtGetVersion()))), *self._cudnn.versions)

    @property
    def built(self) -> int:
        return self._cudnn.built

    def handle(self, stream: Stream) -> _Handle:
        return _Handle(stream.ptr, self._cudnn.handle(stream))

    def plans(self, convolution: Asked, sms: int = 0) -> Iterator[EnginePlan]:
        yield from self._own(convolution, sms)
        yield from self._cudnn.plans(convolution, sms)

    def named(self, convolution: Asked, name: str) -> EnginePlan | None:
        own = next((plan for plan in self._own(convolution, target_of(name)) if plan.name == name), None)
        return own or self._cudnn.named(convolution, name)

    def bind(self, convolution: Asked, plan: str) -> Executable:
        name, sms = plan.partition("@")[0], target_of(plan)
        if name not in PLANS:
            execute = self._cudnn.bind(convolution, plan)
            return lambda addresses, workspace, handle: execute(addresses, workspace, handle.cudnn)
        gemm = gemm_of(convolution)
        if gemm is None or self._library is None:
            raise KeyError(plan)
        if (convolution, sms) not in self._described:
            if not self._lt:
                self._checked("cublasLtCreate", ctypes.byref(self._lt))
            self._described[convolution, sms] = _Described(self._checked, self._lt, convolution, gemm, self._tf32, sms)
        return partial(self._described[convolution, sms].run, PLANS.index(name))

    def _own(self, convolution: Asked, sms: int) -> list[EnginePlan]:
        is_offered = self._library is not None and gemm_of(convolution) is not None
        return [EnginePlan(plan + target_text(sms), WORKSPACE_BYTES) for plan in PLANS if is_offered]

    def _checked(self, name: str, *arguments: object) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise CublasError(f"{name} says CUBLAS_STATUS {status}")
