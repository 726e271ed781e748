"""Matrix products by cuBLAS, beside cuDNN's plans: one more plan of whatever is a product, timed like the others.

That is a stack of products, and a pointwise convolution, which a layer of a transformer is. cuBLAS is
called by ctypes: CuPy sets a handle's stream anew at each call, and no workspace, without which a capture would hold
allocations. Sums are of fp32, and so is what is summed up again; TF32 only where it is allowed. Products of int8 are
summed in int32, where they lie as its kernels on tensor cores take them (cuBLAS manual, ``cublasLtMatmul``). With a
residual, a bias, and then ReLU or GELU by its tanh, a product is one call of cuBLASLt.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from iossim.backends.cupy_cudnn.convolution import Asked, Convolution, Product, TensorLayout
from iossim.backends.cupy_cudnn.cudnn_graphs import CudnnGraphs
from iossim.backends.cupy_cudnn.cudnn_library import load_package
from iossim.backends.cupy_cudnn.driver import EnginePlan, Stream
from iossim.backends.cupy_cudnn.views import coalesced
from iossim.ir.types import DType

#: How a plan of cuBLAS is called among those of cuDNN, alone and with what follows. It chooses the kernel itself.
PLAN, EPILOGUE_PLAN = "cublas", "cublaslt"
#: What NVIDIA recommends since Hopper; before, 4 MiB do.
WORKSPACE_BYTES = 32 * 2**20

_PLAIN, _TRANSPOSED = 0, 1
_TYPES = {DType.FLOAT32: 0, DType.FLOAT16: 2, DType.BFLOAT16: 14, DType.INT8: 3, DType.INT32: 10}
_COMPUTE_FP32, _COMPUTE_TF32, _COMPUTE_INT32 = 68, 77, 72
#: Of int8 rows, columns and steps must be multiples of this.
_INT8_STEP = 4
_NO_REDUCTION_IN_LESS = 16
_ITS_OWN_CHOICE = -1

# Of cuBLASLt: activations as bits of what follows, as a bias is; 1 is nothing. Then the numbers of attributes.
_LT_ACTIVATIONS, _LT_BIAS, _LT_NOTHING = {"": 0, "relu": 2, "gelu_tanh": 32}, 4, 1
_LT_TRANSPOSED_A, _LT_TRANSPOSED_B, _LT_EPILOGUE, _LT_BIAS_POINTER = 3, 4, 7, 8
_LT_MOST_WORKSPACE, _LT_REDUCTIONS, _LT_ALIGNMENTS = 1, 3, (5, 6, 7, 8)
#: What is summed up again is so in place, or in the type of sums.
_LT_REDUCTIONS_IN_FP32 = 3
#: What addresses of operands are multiples of.
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
    """The product that is asked for, without what follows; None of what is none, or lies as cuBLAS does not write it.

    The pixels of a pointwise convolution are rows, where one step leads from each to the next.
    """
    residual = 0
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
    return found if asked.dtype is not DType.INT8 or _takes_int8(found) else None


def _takes_int8(gemm: Gemm) -> bool:
    is_even = not any(number % _INT8_STEP for number in (gemm.m, gemm.k, gemm.b[1], gemm.a[1], gemm.y[0]))
    return is_even and (gemm.b[0], gemm.a[0]) == (_TRANSPOSED, _PLAIN)


def _is_product(asked: Convolution) -> bool:
    """Whether each pixel is multiplied by the same matrix, to one pixel."""
    same = type(asked) is Convolution and asked.x.shape[1] == asked.w.shape[1] and {*asked.w.shape[2:]} == {1}
    return same and asked.x.shape[2:] == asked.y.shape[2:] and not any((*asked.pad_before, *asked.pad_after))


def _pixels(layout: TensorLayout) -> tuple[int, int, int] | None:
    """Images as a matrix of a pixel a row; None where no one step leads from each to the next."""
    (count, channels, *size), (far, step, *near) = layout.shape, layout.strides
    sizes, ((between, *more),) = coalesced([count, *size], [[far, *near]])
    return None if more else _matrix((sizes[0], channels), (between, step), 0)


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


class _Found(ctypes.Structure):
    """``cublasLtMatmulHeuristicResult_t``: a kernel with its settings, and what it needs."""

    _fields_ = (
        ("kernel", ctypes.c_uint64 * 8),
        ("workspace_bytes", ctypes.c_size_t),
        ("status", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


class _WithEpilogue:
    """``D = act(A B + C + bias)`` by cuBLASLt: one product, described once, whose kernel is chosen when it first runs.

    A bias has one value a row of ``D``, which is a column of ``y``. ``call`` calls a function of cuBLASLt by its name.
    """

    def __init__(self, call: Callable[..., None], asked: Convolution, gemm: Gemm, compute: int) -> None:
        self._call = call
        self._one, self._added = ctypes.c_float(1.0), ctypes.c_float(1.0 if gemm.z else 0.0)
        self._product = self._made("MatmulDesc", compute, _TYPES[DType.FLOAT32])
        follows = _LT_ACTIVATIONS[asked.activation] | (_LT_BIAS if asked.bias else 0)
        self._set("MatmulDesc", self._product, _LT_TRANSPOSED_A, ctypes.c_int32(gemm.b[0]))
        self._set("MatmulDesc", self._product, _LT_TRANSPOSED_B, ctypes.c_int32(gemm.a[0]))
        self._set("MatmulDesc", self._product, _LT_EPILOGUE, ctypes.c_uint32(follows or _LT_NOTHING))
        self._operands = {}
        for place, name, rows, columns, (transposed, step) in (
            ("a", "w", gemm.m, gemm.k, gemm.b[:2]),
            ("b", "x", gemm.k, gemm.n, gemm.a[:2]),
            ("c", "z" if gemm.z else "y", gemm.m, gemm.n, (_PLAIN, gemm.z or gemm.y[0])),
            ("d", "y", gemm.m, gemm.n, (_PLAIN, gemm.y[0])),
        ):
            sizes = map(ctypes.c_uint64, (columns, rows) if transposed else (rows, columns))
            layout = self._made("MatrixLayout", _TYPES[asked.dtype], *sizes, ctypes.c_int64(step))
            self._operands[place] = name, layout
        self._kernel: _Found | None = None

    def run(self, handle: ctypes.c_void_p, addresses: Mapping[str, int], workspace: int, stream: int) -> None:
        """Issue it; raises CublasError where there is no kernel for it."""
        if "b" in addresses:
            self._set("MatmulDesc", self._product, _LT_BIAS_POINTER, ctypes.c_void_p(addresses["b"]))
        if self._kernel is None:
            self._kernel = self._chosen(handle)
        a, b, c, d = ((ctypes.c_void_p(addresses[name]), layout) for name, layout in self._operands.values())
        self._call(
            "cublasLtMatmul", handle, self._product, ctypes.byref(self._one), *a, *b, ctypes.byref(self._added), *c, *d,
            ctypes.byref(self._kernel.kernel), ctypes.c_void_p(workspace), ctypes.c_size_t(WORKSPACE_BYTES),
            ctypes.c_void_p(stream),
        )  # fmt: skip

    def _chosen(self, handle: ctypes.c_void_p) -> _Found:
        """The first kernel of cuBLASLt's ranking."""
        wanted = self._made("MatmulPreference")
        self._set("MatmulPreference", wanted, _LT_MOST_WORKSPACE, ctypes.c_uint64(WORKSPACE_BYTES))
        self._set("MatmulPreference", wanted, _LT_REDUCTIONS, ctypes.c_uint32(_LT_REDUCTIONS_IN_FP32))
        for operand in _LT_ALIGNMENTS:
            self._set("MatmulPreference", wanted, operand, ctypes.c_uint32(_ALIGNED_BYTES))
        found, count = _Found(), ctypes.c_int()
        layouts = [layout for _, layout in self._operands.values()]
        asked = handle, self._product, *layouts, wanted, 1, ctypes.byref(found), ctypes.byref(count)
        self._call("cublasLtMatmulAlgoGetHeuristic", *asked)
        self._call("cublasLtMatmulPreferenceDestroy", wanted)
        return found

    def _made(self, kind: str, *arguments: Any) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        self._call(f"cublasLt{kind}Create", ctypes.byref(made), *arguments)
        return made

    def _set(self, kind: str, described: ctypes.c_void_p, attribute: int, value: Any) -> None:
        size = ctypes.c_size_t(ctypes.sizeof(value))
        self._call(f"cublasLt{kind}SetAttribute", described, attribute, ctypes.byref(value), size)


@dataclass
class _Handle:
    """Of one stream: cuDNN's, and cuBLAS's once it is needed, which is before any capture."""

    stream: Stream
    cudnn: Any
    cublas: Any = None


class WithCublas:
    """cuDNN's plans and, for products, the one of cuBLAS before them; see ``ConvolutionLibrary``.

    ``cuda`` is the major version of CUDA whose cuBLAS is taken; where there is none, cuDNN is alone.
    """

    def __init__(self, cudnn: CudnnGraphs, tf32: bool, cuda: str) -> None:
        self._cudnn, self._tf32 = cudnn, tf32
        self.refusals: tuple[type[Exception], ...] = (*cudnn.refusals, CublasError)
        self._library = load_package(f"libcublas.so.{cuda}")
        self._lt = load_package(f"libcublasLt.so.{cuda}") if self._library else None
        self._lt_handle = ctypes.c_void_p()
        self._with_epilogue: dict[Asked, _WithEpilogue] = {}
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

    def plans(self, convolution: Asked) -> Iterator[EnginePlan]:
        if (own := self._own(convolution)) is not None:
            yield own
        yield from self._cudnn.plans(convolution)

    def named(self, convolution: Asked, name: str) -> EnginePlan | None:
        own = self._own(convolution)
        return own if own is not None and own.name == name else self._cudnn.named(convolution, name)

    def refusal(self, convolution: Asked) -> str:
        return self._cudnn.refusal(convolution)

    def bind(self, convolution: Asked, plan: str) -> Any:
        if plan not in (PLAN, EPILOGUE_PLAN):
            return self._cudnn.bind(convolution, plan)
        gemm, own = gemm_of(convolution), self._own(convolution)
        if gemm is None or own is None or own.name != plan:
            raise KeyError(plan)
        if plan == PLAN:
            return _Executable(gemm, convolution.dtype, ("w", "x", "y"))
        assert isinstance(convolution, Convolution), "only convolutions have epilogues"
        if convolution not in self._with_epilogue:
            compute = self._compute(convolution.dtype)
            self._with_epilogue[convolution] = _WithEpilogue(self._checked, convolution, gemm, compute)
        return self._with_epilogue[convolution]

    def execute(self, executable: Any, addresses: Mapping[str, int], workspace: int, handle: _Handle) -> None:
        if isinstance(executable, _WithEpilogue):
            if not self._lt_handle:
                self._checked("cublasLtCreate", ctypes.byref(self._lt_handle))
            executable.run(self._lt_handle, addresses, workspace, handle.stream.ptr)
            return
        if not isinstance(executable, _Executable):
            self._cudnn.execute(executable, addresses, workspace, handle.cudnn)
            return
        if handle.cublas is None:
            handle.cublas = self._handle(handle.stream)
        gemm, of_type, is_whole = executable.gemm, _TYPES[executable.dtype], executable.dtype is DType.INT8
        one = ctypes.byref(self._whole_one) if is_whole else ctypes.byref(self._one)
        zero = ctypes.byref(self._whole_zero) if is_whole else ctypes.byref(self._zero)
        made = _TYPES[DType.INT32] if is_whole else of_type
        b, a, y = (ctypes.c_void_p(addresses[name]) for name in executable.operands)
        self._checked(
            "cublasSetWorkspace_v2", handle.cublas, ctypes.c_void_p(workspace), ctypes.c_size_t(WORKSPACE_BYTES)
        )
        self._checked(
            "cublasGemmStridedBatchedEx", handle.cublas, gemm.b[0], gemm.a[0], gemm.m, gemm.n, gemm.k,
            one, b, of_type, gemm.b[1], ctypes.c_longlong(gemm.b[2]),
            a, of_type, gemm.a[1], ctypes.c_longlong(gemm.a[2]),
            zero, y, made, gemm.y[0], ctypes.c_longlong(gemm.y[1]),
            gemm.stack, self._compute(executable.dtype), _ITS_OWN_CHOICE,
        )  # fmt: skip

    def _own(self, convolution: Asked) -> EnginePlan | None:
        if self._library is None or gemm_of(convolution) is None:
            return None
        if convolution == convolution.plain:
            return EnginePlan(PLAN, WORKSPACE_BYTES)
        known = isinstance(convolution, Convolution) and convolution.activation in _LT_ACTIVATIONS
        return EnginePlan(EPILOGUE_PLAN, WORKSPACE_BYTES) if known and self._lt is not None else None

    def _compute(self, dtype: DType) -> int:
        if dtype is DType.INT8:
            return _COMPUTE_INT32
        return _COMPUTE_TF32 if dtype is DType.FLOAT32 and self._tf32 else _COMPUTE_FP32

    def _handle(self, stream: Stream) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        self._checked("cublasCreate_v2", ctypes.byref(handle))
        self._checked("cublasSetStream_v2", handle, ctypes.c_void_p(stream.ptr))
        self._checked("cublasSetMathMode", handle, _NO_REDUCTION_IN_LESS)
        return handle

    def _checked(self, name: str, *arguments: Any) -> None:
        status = getattr(self._lt if name.startswith("cublasLt") else self._library, name)(*arguments)
        if status:
            raise CublasError(f"{name} says CUBLAS_STATUS {status}")
