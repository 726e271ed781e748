"""The columns that name operators in tables, by kind, and the conversion in both directions.

:data:`iossim.measurements.kinds.KNOWN` has the columns of each kind, and ``iossim schema measurement`` prints them.
Element-wise kinds take matrices of ``rows`` and ``cols``, two or one as the function has; a concat is one term, copied
to its place. Softmaxes and norms are along ``cols``. ``linear`` is ``x [batch, m, n]`` by a weight of ``k`` rows of
``n``, to ``[batch, m, k]``; ``bmm`` is ``x [batch, m, n]`` by ``y [batch, n, k]``, neither a weight; ``gemm`` is as
BLAS has it, ``[m, k] x [k, n]``, stored by columns, each transposed or not (T or N). An attention's ``features`` are
those of a head.

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

from collections.abc import Collection, Mapping, Sequence

from iossim.base.errors import GraphError, did_you_mean
from iossim.ir.types import Precision
from iossim.measurements.kinds import KNOWN, Column, OperatorKind, RecordError, Sizes, shown
from iossim.measurements.measurement import Operator

KINDS: dict[str, OperatorKind] = {kind.name: kind for kind in KNOWN}
ALIASES = {alias: kind.name for kind in KINDS.values() for alias in kind.aliases}

#: All columns of sizes, to distinguish shape columns from others.
SHAPE_COLUMNS = frozenset(
    name for kind in KINDS.values() for column in kind.columns for name in (column.name, column.square) if name
)


def kind_named(name: object) -> OperatorKind:
    """The kind of that name or alias; raises RecordError suggesting the nearest one."""
    known = ALIASES.get(name.strip(), name.strip()) if isinstance(name, str) else name
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


#: Columns of a row's precision: its name in measured tables, and in options.
PRECISION_COLUMNS = ("precision", "dtype")
_CELL_TYPES = {int, float, str}


class OperatorReader:
    """Makes operators from rows of columns; equal rows give the same Operator object.

    ``kind`` is that of all rows, or with None a column ``op`` has it; ``precision`` applies to rows without one.
    """

    def __init__(self, kind: str | None = None, precision: Precision = Precision.FP32) -> None:
        self._kind, self._precision = kind, precision
        self._sources: dict[tuple[str, ...], tuple[OperatorKind, list[tuple[Column, str]]]] = {}
        self._known: dict[tuple[object, ...], Operator] = {}

    def __call__(self, row: Mapping[str, object]) -> Operator:
        """The operator of a row; raises RecordError. Columns that are not sizes, or are empty, are ignored."""
        name = row.get("op") if self._kind is None else self._kind
        present = [column for column, cell in row.items() if not _is_empty(cell)]
        key = (str(name), *present)
        if key not in self._sources:
            self._sources[key] = _sources(kind_named(name), present)
        kind, sources = self._sources[key]
        precision, cells = self.precision_of(row), [row[source] for _, source in sources]
        # True equals 1, and a list has no hash: only numbers and text may be looked up.
        if not set(map(type, cells)) <= _CELL_TYPES:
            return _operator(kind, sources, cells, precision)
        if (*key, *cells, precision) not in self._known:
            self._known[*key, *cells, precision] = _operator(kind, sources, cells, precision)
        return self._known[*key, *cells, precision]

    def precision_of(self, row: Mapping[str, object]) -> Precision:
        """The precision that a row names, or the default; raises RecordError for an unknown one."""
        column = next((name for name in PRECISION_COLUMNS if not _is_empty(row.get(name))), None)
        if column is None:
            return self._precision
        cell = row[column]
        name = cell.strip() if isinstance(cell, str) else cell
        try:
            return Precision(str(name))
        except ValueError:
            raise RecordError(f"{column} {name!r} is unknown; {did_you_mean(name, list(Precision))}", column) from None


def _is_empty(cell: object) -> bool:
    return cell is None or (isinstance(cell, str) and not cell.strip())


def _sources(kind: OperatorKind, present: Collection[str]) -> tuple[OperatorKind, list[tuple[Column, str]]]:
    """The sizes of a kind that a row has, each with the column that holds it; raises RecordError if one is missing."""
    if missing := missing_columns(kind, present):
        raise RecordError(f"{kind.name} needs the column {missing[0]}: it is missing or empty", missing[0])
    named = ((one, one.name if one.name in present else one.square) for one in kind.columns)
    return kind, [(column, source) for column, source in named if source in present]


def _operator(
    kind: OperatorKind, sources: Sequence[tuple[Column, str]], cells: Sequence[object], precision: Precision
) -> Operator:
    """The operator of cells that hold the sizes of ``sources``; raises RecordError."""
    sizes: Sizes = {column.name: column.default for column in kind.columns if column.default is not None}
    sizes |= {column.name: column.read(value) for (column, _), value in zip(sources, cells, strict=True)}
    op, inputs, weights = kind.parts(sizes, precision.storage)
    try:
        return Operator(kind.name, op, inputs, weights, precision)
    except GraphError as error:
        raise RecordError(str(error)) from None


def read_record(record: Mapping[str, object], precision: Precision = Precision.FP32) -> Operator:
    """The operator of one record: its ``op`` and the columns of that kind; raises RecordError."""
    return OperatorReader(precision=precision)(record)


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
