"""The columns that name operators in tables, by kind, and the conversion in both directions.

====================  ================================================================================================
kind                  columns
====================  ================================================================================================
conv (or conv2d)      batch, in_channels, out_channels, in_h, in_w, kernel_h, kernel_w, stride_h, stride_w, pad_h,
                      pad_w; optional: dilation_h, dilation_w, groups (1 where left out)
conv_transpose        the same, and optional output_padding_h, output_padding_w (0 where left out)
linear                batch, m, n, k: ``x [batch, m, n]`` by a weight of ``k`` rows of ``n``, to ``[batch, m, k]``
bmm                   batch, m, n, k: ``x [batch, m, n]`` by ``y [batch, n, k]``, neither a weight
gemm                  m, n, k, trans_a, trans_b (N or T): as BLAS has it, ``[m, k] x [k, n]``, stored by columns
add, mul, relu,       rows, cols: of two operands or one, as the function has; of concat one term, copied to its place
gelu, tanh, concat,
... (any function)
softmax, log_softmax, rows, cols: along cols
layer_norm (or ln),
rms_norm
attention             batch, heads, queries, keys, features of a head; optional: kv_heads (heads where left out),
                      causal (0 where left out)
max_pool,             batch, channels, in_h, in_w, kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w
average_pool
global_average_pool,  batch, channels, in_h, in_w
global_max_pool
====================  ================================================================================================

A square size may be one column: ``in_size``, ``kernel``, ``stride``, ``padding``, ``dilation``. Height is the first
spatial axis of the IR, width the second.

A dense layer is one product of ``batch * m`` rows by a transposed weight; its key is that of the gemm. **Note that
the inner size of ``linear`` is n, that of ``gemm`` is k**: in the recorded tables of dense layers the grid of every
row is ``ceil(k / tile) x ceil(m / tile)``, whatever n is, and splits follow n; n is the layer's in_features, k its
out_features, and the kernels' names end in "tn". BLAS stores matrices by columns, the IR by rows, so that a gemm is
the IR's product of the transposed operands in reverse order: a dense layer is the gemm with ``trans_a`` T and
``trans_b`` N.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from iossim.base.errors import GraphError, did_you_mean
from iossim.ir.types import Precision
from iossim.measurements.kinds import KNOWN, OperatorKind, RecordError, Sizes, shown
from iossim.measurements.measurement import Operator

KINDS: dict[str, OperatorKind] = {kind.name: kind for kind in KNOWN}
ALIASES = {alias: kind.name for kind in KINDS.values() for alias in kind.aliases}

#: All columns of sizes, to distinguish shape columns from others.
SHAPE_COLUMNS = frozenset(
    name for kind in KINDS.values() for column in kind.columns for name in (column.name, column.square) if name
)


def kind_named(name: object) -> OperatorKind:
    """The kind of that name or alias; raises RecordError suggesting the nearest one."""
    known = ALIASES.get(name, name) if isinstance(name, str) else name
    if not isinstance(known, str) or known not in KINDS:
        raise RecordError(f"op {shown(name)} is unknown; {did_you_mean(name, [*KINDS, *ALIASES])}", "op")
    return KINDS[known]


def missing_columns(kind: OperatorKind, present: Collection[str]) -> list[str]:
    """The columns that operators of a kind need and that ``present`` lacks in any spelling."""
    return [
        column.spelling
        for column in kind.columns
        if column.default is None and column.name not in present and column.square not in present
    ]


_CELL_TYPES = {int, float, str, type(None), Precision}


class RecordReader:
    """Makes operators of a kind from records with equal columns.

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
        """The operator of a record; raises RecordError. Columns that are not sizes, or are empty, are ignored."""
        cells = (*[record.get(source) for _, source in self._columns], precision)
        # True equals 1, and a list has no hash: only numbers and text may be looked up.
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
    """``op`` and the columns of an operator, without optional ones at their default.

    Raises RecordError if its attributes have no columns.
    """
    kind = KINDS[operator.kind]
    sizes = kind.sizes(operator)
    columns = {column.name: column for column in kind.columns}
    return {"op": operator.kind} | {
        name: columns[name].write(size) for name, size in sizes.items() if size != columns[name].default
    }


def describe(operator: Operator) -> str:
    """The record as one line of text: ``conv batch=1 in_channels=3 ...``; the name of NVTX ranges."""
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
