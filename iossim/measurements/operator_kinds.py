"""The columns by which tables name operators, kind by kind, and back.

====================  ==================================================================================================
kind                  columns
====================  ==================================================================================================
conv (or conv2d)      batch, in_channels, out_channels, in_h, in_w, kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w;
                      optional: dilation_h, dilation_w, groups (1 where left out)
linear                batch, m, n, k: ``x [batch, m, n]`` by a weight of ``k`` rows of ``n``, to ``[batch, m, k]``
gemm                  m, n, k, trans_a, trans_b (N or T): as BLAS has it, ``[m, k] x [k, n]``, stored by columns
add, relu, concat     rows, cols: two operands, one operand, one term that is copied to its place
max_pool,             batch, channels, in_h, in_w, kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w
average_pool
global_average_pool   batch, channels, in_h, in_w
====================  ==================================================================================================

A square size may be one column: ``in_size``, ``kernel``, ``stride``, ``padding``, ``dilation``. Height is the first
spatial axis of the IR, width the second.

A dense layer is one product of ``batch * m`` rows by a transposed weight; its key is that of the gemm. **Mind that the
inner size of ``linear`` is n, that of ``gemm`` is k**: in the recorded tables of dense layers the grid of every row is
``ceil(k / tile) x ceil(m / tile)``, whatever n is, and splits follow n; n is the layer's in_features, k its
out_features, and the kernels' names end in "tn". BLAS stores matrices by columns, the IR by rows, so that a gemm is the
IR's product of the transposed operands in reverse order: a dense layer is the gemm with ``trans_a`` T and ``trans_b`` N.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from iossim.errors import GraphError, did_you_mean
from iossim.ir.op import Op
from iossim.ir.ops.add import Add
from iossim.ir.ops.concat import Concat
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.gemm import Gemm
from iossim.ir.ops.pool import AveragePool, GlobalAveragePool, MaxPool
from iossim.ir.ops.relu import Relu
from iossim.ir.types import DType, Precision, TensorType
from iossim.measurements.operator import Operator

#: Sizes above this are no layer of a network.
LARGEST_SIZE = 2**31 - 1

Sizes = dict[str, int]


class RecordError(ValueError):
    """A record that names no operator; ``column`` is the one at fault, if it is one."""

    def __init__(self, reason: str, column: str | None = None) -> None:
        super().__init__(reason)
        self.column = column


class Parts(Protocol):
    """Makes op, inputs and indices of weights of sizes."""

    def __call__(self, sizes: Sizes, dtype: DType) -> tuple[Op, tuple[TensorType, ...], tuple[int, ...]]: ...


@dataclass(frozen=True, slots=True)
class Column:
    """A size of an operator. ``square`` is the column that gives height and width at once."""

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
            raise RecordError(f"{self.name} is {_shown(value)}, not N or T", self.name)
        number = _whole_number(value)
        if number is not None and number > LARGEST_SIZE:
            raise RecordError(f"{self.name} is {_shown(value)}, too large: at most {LARGEST_SIZE}", self.name)
        if number is None or number < self.smallest:
            raise RecordError(f"{self.name} is {_shown(value)}, not a whole number from {self.smallest}", self.name)
        return number

    def write(self, size: int) -> int | str:
        return "NT"[size] if self.is_transposition else size


@dataclass(frozen=True, slots=True)
class OperatorKind:
    """How operators of a kind are named: columns, what they make, and the way back."""

    name: str
    columns: tuple[Column, ...]
    parts: Parts
    sizes: Callable[[Operator], Sizes]


def _whole_number(value: object) -> int | None:
    """The number in a cell of text or JSON; a spreadsheet may write whole numbers as 3.0."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return int(value) if isinstance(value, int | str) else _whole(value)
    except ValueError:
        pass
    try:
        return _whole(float(value))
    except ValueError:
        return None


def _whole(value: float) -> int | None:
    return int(value) if value.is_integer() else None


def _shown(value: object) -> str:
    return "empty" if value in ("", None) else repr(value)


def _pair(name: str, square: str, smallest: int = 1, default: int | None = None) -> tuple[Column, Column]:
    return Column(f"{name}_h", square, smallest, default), Column(f"{name}_w", square, smallest, default)


_IMAGE = _pair("in", "in_size")
_WINDOW = (*_pair("kernel", "kernel"), *_pair("stride", "stride"), *_pair("pad", "padding", smallest=0))


def _both(sizes: Sizes, name: str) -> tuple[int, int]:
    return sizes[f"{name}_h"], sizes[f"{name}_w"]


def _named(name: str, values: tuple[int, ...]) -> Sizes:
    return {f"{name}_h": values[0], f"{name}_w": values[1]}


def _symmetric(pads: tuple[int, ...]) -> Sizes:
    if pads[:2] != pads[2:]:
        raise RecordError(f"padding {pads} differs before and after: it has no columns")
    return _named("pad", pads)


def _conv(sizes: Sizes, dtype: DType) -> tuple[Op, tuple[TensorType, ...], tuple[int, ...]]:
    groups, channels = sizes["groups"], sizes["in_channels"]
    if channels % groups:
        raise RecordError(f"{channels} in_channels do not divide into {groups} groups", "groups")
    op = Conv(_both(sizes, "stride"), _both(sizes, "pad") * 2, _both(sizes, "dilation"), groups)
    x = TensorType((sizes["batch"], channels, *_both(sizes, "in")), dtype)
    weight = TensorType((sizes["out_channels"], channels // groups, *_both(sizes, "kernel")), dtype)
    return op, (x, weight), (1,)


def _conv_sizes(operator: Operator) -> Sizes:
    op, (x, weight) = operator.op, operator.inputs
    assert isinstance(op, Conv)
    batch, channels, *image = x.shape
    sizes = {"batch": batch, "in_channels": channels, "out_channels": weight.shape[0]}
    sizes |= _named("in", tuple(image)) | _named("kernel", weight.shape[2:]) | _named("stride", op.strides)
    return sizes | _symmetric(op.pads) | _named("dilation", op.dilations) | {"groups": op.groups}


def _product(rows: int, n: int, k: int, dtype: DType, trans_a: int, trans_b: int) -> tuple[Op, Any, tuple[int, ...]]:
    a = TensorType((k, rows) if trans_a else (rows, k), dtype)
    b = TensorType((n, k) if trans_b else (k, n), dtype)
    return Gemm(trans_a=bool(trans_a), trans_b=bool(trans_b)), (a, b), (1,)


def _linear(sizes: Sizes, dtype: DType) -> tuple[Op, tuple[TensorType, ...], tuple[int, ...]]:
    return _product(sizes["batch"] * sizes["m"], sizes["k"], sizes["n"], dtype, trans_a=0, trans_b=1)


def _linear_sizes(operator: Operator) -> Sizes:
    sizes = _gemm_sizes(operator)
    return {"batch": 1, "m": sizes["n"], "n": sizes["k"], "k": sizes["m"]}


def _gemm(sizes: Sizes, dtype: DType) -> tuple[Op, tuple[TensorType, ...], tuple[int, ...]]:
    return _product(sizes["n"], sizes["m"], sizes["k"], dtype, trans_a=sizes["trans_b"], trans_b=sizes["trans_a"])


def _gemm_sizes(operator: Operator) -> Sizes:
    op = operator.op
    assert isinstance(op, Gemm)
    n, m = operator.outputs[0].shape
    k = operator.inputs[0].shape[0 if op.trans_a else 1]
    return {"m": m, "n": n, "k": k, "trans_a": int(op.trans_b), "trans_b": int(op.trans_a)}


def _elementwise(op: Op, operands: int) -> Parts:
    def parts(sizes: Sizes, dtype: DType) -> tuple[Op, tuple[TensorType, ...], tuple[int, ...]]:
        return op, (TensorType((sizes["rows"], sizes["cols"]), dtype),) * operands, ()

    return parts


def _elementwise_sizes(operator: Operator) -> Sizes:
    rows, cols = operator.inputs[0].shape
    return {"rows": rows, "cols": cols}


def _image_type(sizes: Sizes, dtype: DType) -> TensorType:
    return TensorType((sizes["batch"], sizes["channels"], *_both(sizes, "in")), dtype)


def _pool(op_class: type[MaxPool] | type[AveragePool]) -> Parts:
    def parts(sizes: Sizes, dtype: DType) -> tuple[Op, tuple[TensorType, ...], tuple[int, ...]]:
        op = op_class(_both(sizes, "kernel"), _both(sizes, "stride"), _both(sizes, "pad") * 2)
        return op, (_image_type(sizes, dtype),), ()

    return parts


def _image_sizes(operator: Operator) -> Sizes:
    batch, channels, *image = operator.inputs[0].shape
    return {"batch": batch, "channels": channels} | _named("in", tuple(image))


def _pool_sizes(operator: Operator) -> Sizes:
    op = operator.op
    assert isinstance(op, MaxPool | AveragePool)
    if op != type(op)(op.kernel, op.strides, op.pads):
        raise RecordError(f"{op.signature} has attributes that have no columns")
    return _image_sizes(operator) | _named("kernel", op.kernel) | _named("stride", op.strides) | _symmetric(op.pads)


def _global_pool(sizes: Sizes, dtype: DType) -> tuple[Op, tuple[TensorType, ...], tuple[int, ...]]:
    return GlobalAveragePool(), (_image_type(sizes, dtype),), ()


def _columns(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name) for name in names)


_CONV_COLUMNS = (
    *_columns("batch", "in_channels", "out_channels"),
    *_IMAGE,
    *_WINDOW,
    *_pair("dilation", "dilation", default=1),
    Column("groups", default=1),
)
_GEMM_COLUMNS = (
    *_columns("m", "n", "k"),
    Column("trans_a", is_transposition=True),
    Column("trans_b", is_transposition=True),
)
_PLANE = _columns("rows", "cols")
_POOL_COLUMNS = (*_columns("batch", "channels"), *_IMAGE, *_WINDOW)

KINDS: dict[str, OperatorKind] = {
    kind.name: kind
    for kind in (
        OperatorKind("conv", _CONV_COLUMNS, _conv, _conv_sizes),
        OperatorKind("linear", _columns("batch", "m", "n", "k"), _linear, _linear_sizes),
        OperatorKind("gemm", _GEMM_COLUMNS, _gemm, _gemm_sizes),
        OperatorKind("add", _PLANE, _elementwise(Add(), 2), _elementwise_sizes),
        OperatorKind("relu", _PLANE, _elementwise(Relu(), 1), _elementwise_sizes),
        OperatorKind("concat", _PLANE, _elementwise(Concat(), 1), _elementwise_sizes),
        OperatorKind("max_pool", _POOL_COLUMNS, _pool(MaxPool), _pool_sizes),
        OperatorKind("average_pool", _POOL_COLUMNS, _pool(AveragePool), _pool_sizes),
        OperatorKind("global_average_pool", (*_columns("batch", "channels"), *_IMAGE), _global_pool, _image_sizes),
    )
}

ALIASES = {"conv2d": "conv", "avg_pool": "average_pool"}

#: Every column that a size may stand in, to tell shape columns from others.
SHAPE_COLUMNS = frozenset(
    name for kind in KINDS.values() for column in kind.columns for name in (column.name, column.square) if name
)


def kind_named(name: object) -> OperatorKind:
    """The kind of that name or alias; raises RecordError suggesting the nearest one."""
    known = ALIASES.get(name, name) if isinstance(name, str) else name
    if not isinstance(known, str) or known not in KINDS:
        raise RecordError(f"op {_shown(name)} is unknown; {did_you_mean(name, [*KINDS, *ALIASES])}", "op")
    return KINDS[known]


def missing_columns(kind: OperatorKind, present: Collection[str]) -> list[str]:
    """The columns that operators of a kind need and ``present`` has under no spelling."""
    return [
        column.spelling
        for column in kind.columns
        if column.default is None and column.name not in present and column.square not in present
    ]


_CELL_TYPES = {int, float, str, type(None), Precision}


class RecordReader:
    """Makes operators of a kind from records that all have the same columns.

    Raises RecordError at once if a column is missing; equal shapes give the same Operator object.
    """

    def __init__(self, kind: OperatorKind, present: Collection[str]) -> None:
        missing = missing_columns(kind, present)
        if missing:
            raise RecordError(f"{kind.name} needs the column {missing[0]}", missing[0])
        self._kind = kind
        self._columns = [
            (column, column.name if column.name in present else column.square)
            for column in kind.columns
            if column.name in present or column.square in present
        ]
        self._defaults = {column.name: column.default for column in kind.columns if column.default is not None}
        self._known: dict[tuple[Any, ...], Operator] = {}

    def __call__(self, record: Mapping[str, Any], precision: Precision) -> Operator:
        """The operator of a record; raises RecordError. Columns that are no sizes are ignored, empty optional ones too."""
        cells = (*[record.get(source) for _, source in self._columns], precision)
        # True is equal to 1, and a list has no hash: only numbers and text may be looked up.
        if not set(map(type, cells)) <= _CELL_TYPES:
            return self._make(record, precision)
        found = self._known.get(cells)
        if found is None:
            found = self._known[cells] = self._make(record, precision)
        return found

    def _make(self, record: Mapping[str, Any], precision: Precision) -> Operator:
        sizes: Sizes = dict(self._defaults)
        for column, source in self._columns:
            cell = record.get(source)
            if cell in ("", None) and column.default is not None:
                continue
            sizes[column.name] = column.read(cell)
        op, inputs, weights = self._kind.parts(sizes, precision.storage)
        try:
            return Operator(self._kind.name, op, inputs, weights, precision)
        except GraphError as error:
            raise RecordError(str(error)) from None


def read_record(record: Mapping[str, Any], precision: Precision = Precision.FP32) -> Operator:
    """The operator of one record: its ``op`` and the columns of that kind; raises RecordError."""
    kind = kind_named(record.get("op"))
    return RecordReader(kind, record.keys())(record, precision)


def record_of(operator: Operator) -> dict[str, int | str]:
    """``op`` and the columns of an operator, optional ones at their default left out.

    Raises RecordError if its attributes have no columns.
    """
    kind = KINDS[operator.kind]
    sizes = kind.sizes(operator)
    columns = {column.name: column for column in kind.columns}
    return {"op": operator.kind} | {
        name: columns[name].write(size) for name, size in sizes.items() if size != columns[name].default
    }


def describe(operator: Operator) -> str:
    """The record as one line of text: ``conv batch=1 in_channels=3 ...``; what NVTX ranges are named."""
    record = record_of(operator)
    return " ".join((str(record.pop("op")), *(f"{name}={value}" for name, value in record.items())))


def parse_description(text: str, precision: Precision = Precision.FP32) -> Operator:
    """Inverse of :func:`describe`, in any order and with any spelling of the columns; raises RecordError."""
    words = text.split()
    record: dict[str, Any] = {"op": words[0] if words else ""}
    for word in words[1:]:
        name, equals, value = word.partition("=")
        if not equals:
            raise RecordError(f"{word!r} is not NAME=SIZE", name)
        record[name] = value
    return read_record(record, precision)
