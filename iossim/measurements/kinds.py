"""Kinds of operators: convolutions, element-wise operators, pooling and matrix products.

A kind has columns that name its sizes, the conversion of these to an op, and the inverse. Convolutions are dense,
grouped, depthwise (``groups`` of one channel) or transposed. Element-wise operators have their function's name; a
concat is measured by one term, and operators along rows by a matrix. Pooling takes the maximum or the mean of windows,
or of whole images. Products are dense layers, products in BLAS order, batched products of two activations, and
attention.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from iossim.ir.op import Op
from iossim.ir.ops import functions
from iossim.ir.ops.attention import Attention
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.conv_transpose import ConvTranspose
from iossim.ir.ops.functions import Nary, Unary
from iossim.ir.ops.matmul import Gemm, MatMul
from iossim.ir.ops.nary import Add, Mul
from iossim.ir.ops.normalization import LayerNorm, RmsNorm
from iossim.ir.ops.pool import AveragePool, GlobalAveragePool, GlobalMaxPool, MaxPool
from iossim.ir.ops.slice import Concat
from iossim.ir.ops.softmax import LogSoftmax, Softmax
from iossim.ir.ops.unary import Clip, Relu, Sigmoid
from iossim.ir.types import DType, TensorType
from iossim.measurements.measurement import Operator

#: Larger sizes do not occur in a network.
LARGEST_SIZE = 2**31 - 1

Sizes = dict[str, int]


class RecordError(ValueError):
    """A record that names no operator; ``column`` is the invalid one, if it is a single one."""

    def __init__(self, reason: str, column: str | None = None) -> None:
        super().__init__(reason)
        self.column = column


#: Parts of an operator: the op, the types of its inputs, and the indices of weights among these.
Made = tuple[Op, tuple[TensorType, ...], tuple[int, ...]]


class Parts(Protocol):
    """Function from sizes to op, input types and indices of weights."""

    def __call__(self, sizes: Sizes, dtype: DType) -> Made: ...


@dataclass(frozen=True, slots=True)
class Column:
    """A size of an operator. ``square`` is the column that sets height and width at once."""

    name: str
    square: str = ""
    smallest: int = 1
    default: int | None = None
    is_transposition: bool = False

    @property
    def spelling(self) -> str:
        return f"{self.name} (or {self.square})" if self.square else self.name

    def read(self, value: object) -> int:
        """The size in a cell; raises RecordError."""
        if self.is_transposition:
            if value in ("N", "T", "n", "t"):
                return int(value in ("T", "t"))
            raise RecordError(f"{self.name} is {shown(value)}, not N or T", self.name)
        number = _whole_number(value)
        if number is not None and number > LARGEST_SIZE:
            raise RecordError(f"{self.name} is {shown(value)}, too large: at most {LARGEST_SIZE}", self.name)
        if number is None or number < self.smallest:
            raise RecordError(f"{self.name} is {shown(value)}, not a whole number from {self.smallest}", self.name)
        return number

    def write(self, size: int) -> int | str:
        return "NT"[size] if self.is_transposition else size


@dataclass(frozen=True, slots=True)
class OperatorKind:
    """The columns of a kind of operators, the conversion from them, and the inverse."""

    name: str
    columns: tuple[Column, ...]
    parts: Parts
    sizes: Callable[[Operator], Sizes]
    aliases: tuple[str, ...] = ()


def columns(*names: str) -> tuple[Column, ...]:
    """Sizes with one column each."""
    return tuple(Column(name) for name in names)


def pair(name: str, square: str, smallest: int = 1, default: int | None = None) -> tuple[Column, Column]:
    """Height and width of one item."""
    return Column(f"{name}_h", square, smallest, default), Column(f"{name}_w", square, smallest, default)


#: Columns of images, and of sliding windows.
IMAGE = pair("in", "in_size")
WINDOW = (*pair("kernel", "kernel"), *pair("stride", "stride"), *pair("pad", "padding", smallest=0))


def both(sizes: Sizes, name: str) -> tuple[int, int]:
    """Height and width of ``name``."""
    return sizes[f"{name}_h"], sizes[f"{name}_w"]


def named(name: str, values: tuple[int, ...]) -> Sizes:
    """The columns of a height and a width; raises RecordError for another number of dimensions."""
    if len(values) != 2:
        raise RecordError(f"{name} has {len(values)} dimensions: there are columns for two")
    return {f"{name}_h": values[0], f"{name}_w": values[1]}


def symmetric(pads: tuple[int, ...]) -> Sizes:
    """The columns of a symmetric padding; raises RecordError for any other."""
    half = len(pads) // 2
    if pads[:half] != pads[half:]:
        raise RecordError(f"padding {pads} differs before and after: it has no columns")
    return named("pad", pads[:half])


def image_sizes(operator: Operator) -> Sizes:
    """The columns of an operator's first input, an image."""
    batch, channels, *image = operator.inputs[0].shape
    return {"batch": batch, "channels": channels} | named("in", tuple(image))


def shown(value: object) -> str:
    """A cell's value in a message."""
    return "empty" if value in ("", None) else repr(value)


def _whole_number(value: object) -> int | None:
    """The integer in a cell of text or JSON; a spreadsheet may write integers as 3.0."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except OverflowError:  # an integer of hundreds of digits
        return LARGEST_SIZE + 1
    except ValueError:
        return None
    return int(number) if number.is_integer() else None


_CONVOLUTION_COLUMNS = (
    *columns("batch", "in_channels", "out_channels"),
    *IMAGE,
    *WINDOW,
    *pair("dilation", "dilation", default=1),
    Column("groups", default=1),
)


def _conv(sizes: Sizes, dtype: DType) -> Made:
    op = Conv(both(sizes, "stride"), both(sizes, "pad") * 2, both(sizes, "dilation"), sizes["groups"])
    x, channels = _image(sizes, dtype)
    weight = TensorType((sizes["out_channels"], channels, *both(sizes, "kernel")), dtype)
    return op, (x, weight), (1,)


def _conv_sizes(operator: Operator) -> Sizes:
    op, (x, weight) = operator.op, operator.inputs
    assert isinstance(op, Conv)
    return _window_sizes(op, x, weight, weight.shape[0])


def _transposed(sizes: Sizes, dtype: DType) -> Made:
    groups, filters = sizes["groups"], sizes["out_channels"]
    if filters % groups:
        raise RecordError(f"{filters} out_channels do not divide into {groups} groups", "groups")
    op = ConvTranspose(
        both(sizes, "stride"), both(sizes, "pad") * 2, both(sizes, "dilation"), groups, both(sizes, "output_padding")
    )
    x, _ = _image(sizes, dtype)
    weight = TensorType((sizes["in_channels"], filters // groups, *both(sizes, "kernel")), dtype)
    return op, (x, weight), (1,)


def _transposed_sizes(operator: Operator) -> Sizes:
    op, (x, weight) = operator.op, operator.inputs
    assert isinstance(op, ConvTranspose)
    filters = weight.shape[1] * op.groups
    return _window_sizes(op, x, weight, filters) | named("output_padding", op.output_padding)


def _image(sizes: Sizes, dtype: DType) -> tuple[TensorType, int]:
    """The input type, and its channels per group."""
    groups, channels = sizes["groups"], sizes["in_channels"]
    if channels % groups:
        raise RecordError(f"{channels} in_channels do not divide into {groups} groups", "groups")
    return TensorType((sizes["batch"], channels, *both(sizes, "in")), dtype), channels // groups


def _window_sizes(op: Conv | ConvTranspose, x: TensorType, weight: TensorType, filters: int) -> Sizes:
    batch, channels, *image = x.shape
    sizes = {"batch": batch, "in_channels": channels, "out_channels": filters}
    sizes |= named("in", tuple(image)) | named("kernel", weight.shape[2:]) | named("stride", op.strides)
    return sizes | symmetric(op.pads) | named("dilation", op.dilations) | {"groups": op.groups}


_CONVOLUTIONS = (
    OperatorKind("conv", _CONVOLUTION_COLUMNS, _conv, _conv_sizes, ("conv2d",)),
    OperatorKind(
        "conv_transpose",
        (*_CONVOLUTION_COLUMNS, *pair("output_padding", "output_padding", smallest=0, default=0)),
        _transposed,
        _transposed_sizes,
        ("conv_transpose2d", "transposed_conv"),
    ),
)


_PLANE = columns("rows", "cols")
#: Other names of functions in tables.
_ALIASES = {"swish": ("silu",), "hard_swish": ("hardswish",), "leaky_relu": ("leakyrelu",)}


def _on_planes(op: Op, operands: int) -> Parts:
    def parts(sizes: Sizes, dtype: DType) -> Made:
        return op, (TensorType((sizes["rows"], sizes["cols"]), dtype),) * operands, ()

    return parts


def _plane_sizes(operator: Operator) -> Sizes:
    rows, cols = operator.inputs[0].shape
    return {"rows": rows, "cols": cols}


def _on_plane(name: str, op: Op, operands: int = 1, *aliases: str) -> OperatorKind:
    return OperatorKind(name, _PLANE, _on_planes(op, operands), _plane_sizes, aliases)


def _layer_norm(sizes: Sizes, dtype: DType) -> Made:
    row = TensorType((sizes["cols"],), dtype)
    return LayerNorm(), (TensorType((sizes["rows"], sizes["cols"]), dtype), row, row), (1, 2)


def _rms_norm(sizes: Sizes, dtype: DType) -> Made:
    row = TensorType((sizes["cols"],), dtype)
    return RmsNorm(), (TensorType((sizes["rows"], sizes["cols"]), dtype), row), (1,)


#: Kinds of numbers of functions; those of booleans and of bits are not layers of a network.
_NUMBERS = ("any", "real")
_ELEMENTWISE = (
    _on_plane("add", Add(), 2),
    _on_plane("mul", Mul(), 2),
    *(_on_plane(name, Nary(name), 2) for name in ("sub", "div", "pow", "min", "max")),
    _on_plane("relu", Relu()),
    _on_plane("clip", Clip(0.0, 6.0), 1, "relu6"),
    _on_plane("sigmoid", Sigmoid()),
    *(
        _on_plane(name, Unary(name, tuple(value for _, value in function.parameters)), 1, *_ALIASES.get(name, ()))
        for name, function in functions.UNARY.items()
        if function.takes in _NUMBERS and not function.makes_bool
    ),
    _on_plane("concat", Concat()),
    _on_plane("softmax", Softmax(-1)),
    _on_plane("log_softmax", LogSoftmax(-1)),
    OperatorKind("layer_norm", _PLANE, _layer_norm, _plane_sizes, ("ln", "layernorm")),
    OperatorKind("rms_norm", _PLANE, _rms_norm, _plane_sizes, ("rmsnorm",)),
)


_POOLING_COLUMNS = (*columns("batch", "channels"), *IMAGE)


def _on_images(op_of: Callable[[Sizes], Op]) -> Parts:
    def parts(sizes: Sizes, dtype: DType) -> Made:
        image = TensorType((sizes["batch"], sizes["channels"], *both(sizes, "in")), dtype)
        return op_of(sizes), (image,), ()

    return parts


def _pool(op_class: type[MaxPool] | type[AveragePool]) -> Parts:
    return _on_images(lambda sizes: op_class(both(sizes, "kernel"), both(sizes, "stride"), both(sizes, "pad") * 2))


def _pool_sizes(operator: Operator) -> Sizes:
    op = operator.op
    assert isinstance(op, MaxPool | AveragePool)
    if op != type(op)(op.kernel, op.strides, op.pads):
        raise RecordError(f"{op.signature} has attributes that have no columns")
    return image_sizes(operator) | named("kernel", op.kernel) | named("stride", op.strides) | symmetric(op.pads)


_POOLING = (
    OperatorKind("max_pool", (*_POOLING_COLUMNS, *WINDOW), _pool(MaxPool), _pool_sizes),
    OperatorKind("average_pool", (*_POOLING_COLUMNS, *WINDOW), _pool(AveragePool), _pool_sizes, ("avg_pool",)),
    OperatorKind("global_average_pool", _POOLING_COLUMNS, _on_images(lambda sizes: GlobalAveragePool()), image_sizes),
    OperatorKind("global_max_pool", _POOLING_COLUMNS, _on_images(lambda sizes: GlobalMaxPool()), image_sizes),
)


_GEMM_COLUMNS = (
    *columns("m", "n", "k"),
    Column("trans_a", is_transposition=True),
    Column("trans_b", is_transposition=True),
)
_ATTENTION_COLUMNS = (
    *columns("batch", "heads", "queries", "keys", "features"),
    Column("kv_heads", smallest=0, default=0),
    Column("causal", smallest=0, default=0),
)


def _product(rows: int, n: int, k: int, dtype: DType, trans_a: int, trans_b: int) -> Made:
    a = TensorType((k, rows) if trans_a else (rows, k), dtype)
    b = TensorType((n, k) if trans_b else (k, n), dtype)
    return Gemm(trans_a=bool(trans_a), trans_b=bool(trans_b)), (a, b), (1,)


def _linear(sizes: Sizes, dtype: DType) -> Made:
    return _product(sizes["batch"] * sizes["m"], sizes["k"], sizes["n"], dtype, trans_a=0, trans_b=1)


def _linear_sizes(operator: Operator) -> Sizes:
    sizes = _gemm_sizes(operator)
    return {"batch": 1, "m": sizes["n"], "n": sizes["k"], "k": sizes["m"]}


def _gemm(sizes: Sizes, dtype: DType) -> Made:
    return _product(sizes["n"], sizes["m"], sizes["k"], dtype, trans_a=sizes["trans_b"], trans_b=sizes["trans_a"])


def _gemm_sizes(operator: Operator) -> Sizes:
    op = operator.op
    assert isinstance(op, Gemm)
    n, m = operator.outputs[0].shape
    k = operator.inputs[0].shape[0 if op.trans_a else 1]
    return {"m": m, "n": n, "k": k, "trans_a": int(op.trans_b), "trans_b": int(op.trans_a)}


def _bmm(sizes: Sizes, dtype: DType) -> Made:
    batch, m, n, k = (sizes[name] for name in ("batch", "m", "n", "k"))
    return MatMul(), (TensorType((batch, m, n), dtype), TensorType((batch, n, k), dtype)), ()


def _bmm_sizes(operator: Operator) -> Sizes:
    a, b = operator.inputs
    batch, m, n = a.shape
    return {"batch": batch, "m": m, "n": n, "k": b.shape[2]}


def _attention(sizes: Sizes, dtype: DType) -> Made:
    batch, heads, features = sizes["batch"], sizes["heads"], sizes["features"]
    q = TensorType((batch, heads, sizes["queries"], features), dtype)
    k = TensorType((batch, sizes["kv_heads"] or heads, sizes["keys"], features), dtype)
    return Attention(is_causal=bool(sizes["causal"])), (q, k, k), ()


def _attention_sizes(operator: Operator) -> Sizes:
    op = operator.op
    assert isinstance(op, Attention)
    shape = op.shape(operator.inputs)
    if len(operator.inputs) > 3 or shape.features != shape.value_features or op != Attention(is_causal=op.is_causal):
        raise RecordError("an attention with a mask, or values of another size, has no columns")
    sizes = {"batch": shape.batch, "heads": shape.heads, "queries": shape.queries, "keys": shape.keys}
    kv_heads = shape.kv_heads if shape.kv_heads != shape.heads else 0
    return sizes | {"features": shape.features, "kv_heads": kv_heads, "causal": int(op.is_causal)}


_PRODUCTS = (
    OperatorKind("linear", columns("batch", "m", "n", "k"), _linear, _linear_sizes),
    OperatorKind("gemm", _GEMM_COLUMNS, _gemm, _gemm_sizes),
    OperatorKind("bmm", columns("batch", "m", "n", "k"), _bmm, _bmm_sizes),
    OperatorKind("attention", _ATTENTION_COLUMNS, _attention, _attention_sizes),
)


KNOWN = (*_CONVOLUTIONS, *_ELEMENTWISE, *_POOLING, *_PRODUCTS)
