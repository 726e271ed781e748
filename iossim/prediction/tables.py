"""Predictions as tables: of the units of a network, to join with a profiler's by the names of ops, and of operators.

To a CSV table of operators predictions are added as columns. Its columns are those of measured tables (see
``operator_kinds``); the kind is given for all rows, or a column ``op`` has it for each. A column ``precision`` (or
``dtype``) has the precision of rows that differ from the default. Other columns are kept and otherwise ignored, so that
a table of measurements can be predicted unchanged; one with the name of a predicted column is renamed ``input_NAME``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.backends.simulator.kernel_model import KernelModel
from iossim.base.display import Printed
from iossim.base.errors import IossimError
from iossim.base.tables import csv_text
from iossim.base.user_files import LARGEST, NumberError, read_number, read_text
from iossim.execution.engine import Engine
from iossim.hardware.lowering.residence import Residence, Weights, residences
from iossim.hardware.profile import DeviceProfile
from iossim.ir.network import Network, Unit
from iossim.ir.ops.foreign import Foreign
from iossim.ir.types import Precision, TensorType
from iossim.measurements.kinds import RecordError
from iossim.measurements.measurement import Operator
from iossim.measurements.operator_kinds import (
    PRECISION_COLUMNS,
    SHAPE_COLUMNS,
    OperatorReader,
    kind_named,
    missing_columns,
)
from iossim.measurements.text_files import CsvCells, CsvError, csv_rows
from iossim.prediction.predict import Prediction, predict_steps, rounded
from iossim.prediction.schedule_interval import LatencyInterval, PlacedSteps, ScheduleErrors

COLUMNS = (
    "name", "kind", "ops", "outputs", "output_shape", "dtype", "gpu_time_us", "low_us", "high_us", "share", "algorithm",
    "kernels", "weights", "remark",
)  # fmt: skip
#: Name of the row below all others; it has no kind.
TOTAL = "total"


@dataclass(frozen=True, slots=True)
class UnitRow:
    """One unit: an op, or several fused ones (``ops`` are their names in the model's file).

    ``outputs`` are the names and types of the values that leave it, which identify an op without a name in the file.
    ``dtype`` is the network's precision if they are stored in that, their own type otherwise. ``share`` is the fraction
    of the total. ``remark`` states the substitute by which an op unknown to iossim is priced.
    """

    name: str
    kind: str
    ops: tuple[str, ...]
    outputs: tuple[tuple[str, TensorType], ...]
    dtype: str
    prediction: Prediction
    share: float
    remark: str = ""

    @property
    def output_shapes(self) -> list[str]:
        """Shapes of the outputs, such as ``1x64x56x56``, in order."""
        return ["x".join(map(str, value.shape)) for _, value in self.outputs]

    def cells(self, listed: Callable[[list[str]], object]) -> dict[str, object]:
        """The row by column; ``listed`` makes a cell of several values."""
        one = self.prediction
        return {
            "name": self.name,
            "kind": self.kind,
            "ops": listed(list(self.ops)),
            "outputs": listed([name for name, _ in self.outputs]),
            "output_shape": listed(self.output_shapes),
            "dtype": self.dtype,
            **_times(one.gpu_time_us, one.low_us, one.high_us),
            "share": rounded(self.share),
            "algorithm": one.algorithm,
            "kernels": listed(list(one.kernels)),
            "weights": one.weights,
            "remark": self.remark,
        }


@dataclass(frozen=True)
class NetworkTable(Printed):
    """Units of a network in order, and their sum. That is no schedule's latency: every unit is one call among many
    alike, and the launches and waits of a schedule are left out.

    ``interval`` contains nine in ten sums: the errors of units cancel in part.
    """

    network: Network
    device: str
    engine: Engine
    rows: tuple[UnitRow, ...]
    total_us: float
    interval: LatencyInterval
    #: Residence of the weights of all units, ``warm`` or ``cold``.
    weights: Weights

    def __repr__(self) -> str:
        where = f"{self.network.name} on {self.device}, batch {self.network.source.batch}, {self.network.precision}"
        return f"<NetworkTable {where}, {self.engine} engine: {len(self.rows)} units, {self.total_us:,.1f} us>"

    def total(self) -> dict[str, object]:
        times = _times(self.total_us, self.interval.low_us, self.interval.high_us)
        return {"name": TOTAL, **times, "share": 1.0 if self.total_us else 0.0}

    def csv(self) -> str:
        """One row per unit and the total, as CSV; several values are separated by ``;``."""
        rows = [*(row.cells(";".join) for row in self.rows), self.total()]
        return csv_text([COLUMNS, *([row.get(column, "") for column in COLUMNS] for row in rows)])

    def to_json(self) -> dict[str, object]:
        """The table as one JSON object, with its settings."""
        return {
            "model": self.network.source.model or self.network.name,
            "device": self.device,
            "engine": str(self.engine),
            "dtype": str(self.network.precision),
            "batch": self.network.source.batch,
            "weights": str(self.weights),
            "rows": [row.cells(list) for row in self.rows],
            "total": self.total(),
            "remarks": list(self.network.remarks),
        }


def predict_network(
    network: Network, profile: DeviceProfile, engine: Engine = Engine.GRAPH, weights: Weights = Weights.AUTO
) -> NetworkTable:
    """Every unit of a network alone, as a node of a graph or a call of ``engine``; equal ones are lowered once.

    ``weights`` says where kernels find theirs; inputs are where the units before leave them.
    """
    model = KernelModel(engine.on(profile), engine.issue_alone, engine.libraries_on(profile.architecture))
    steps, known = PlacedSteps(network, engine.facts.in_place), dict[tuple[str, Residence], Prediction]()
    places = list(zip(steps.parts().values(), residences(network, profile, weights), strict=True))
    for unit, place in enumerate(places):
        if place not in known:
            known[place] = predict_steps(steps.of([unit]), model, residence=place[1])
    found = [known[place] for place in places]
    unit_us = [one.gpu_time_us for one in found]
    total_us = sum(unit_us)
    errors = ScheduleErrors(network, profile, SimulatorCostModel(profile, network.precision, engine))
    rows = (
        _row(network, unit, one, one.gpu_time_us / total_us if total_us else 0.0)
        for unit, one in zip(network.units, found, strict=True)
    )
    interval, told = errors.interval_one_by_one(unit_us), places[0][1].weights
    return NetworkTable(network, profile.name, engine, tuple(rows), total_us, interval, told)


def _row(network: Network, unit: Unit, prediction: Prediction, share: float) -> UnitRow:
    nodes = network.unit_nodes(unit)
    outputs = tuple((value, network.graph.types[value]) for value in unit.outputs)
    types = dict.fromkeys(value.dtype for _, value in outputs)
    dtypes = (str(network.precision if one is network.precision.storage else one) for one in types)
    foreign = [node.op for node in nodes if isinstance(node.op, Foreign)]
    remark = f"priced as memory traffic: {', '.join(op.op_type for op in foreign)} is not known" if foreign else ""
    if any(op.is_product for op in foreign):
        remark += ", multiplies matrices and takes far longer"
    names = tuple(node.name for node in nodes)
    return UnitRow(unit.name, unit.kind, names, outputs, ";".join(dtypes), prediction, share, remark)


def _times(time_us: float, low_us: float, high_us: float) -> dict[str, float]:
    return {"gpu_time_us": rounded(time_us), "low_us": rounded(low_us), "high_us": rounded(high_us)}


PREDICTED_COLUMNS = ("gpu_time_us", "low_us", "high_us", "algorithm", "weights", "kernels")


class OperatorTableError(IossimError):
    """A table of operators that cannot be read."""


@dataclass(frozen=True)
class OperatorTable:
    """A table as text, and the operator of each of its rows."""

    columns: tuple[str, ...]
    rows: tuple[CsvCells, ...]
    operators: tuple[Operator, ...]


def read_operators(path: Path, kind: str | None = None, precision: Precision = Precision.FP32) -> OperatorTable:
    """Operators of a table; raises OperatorTableError naming the file, the line and the column.

    ``kind`` is that of all rows; with None the column ``op`` has it. ``precision`` applies to rows without one.
    """
    where = f"operator table {path}"
    text = read_text(path, "operator table", "give a CSV file with a row for each operator", OperatorTableError)
    try:
        table = csv_rows(text)
    except CsvError as error:
        place = where if error.line is None else f"{where}: line {error.line}"
        raise OperatorTableError(f"{place} {error.reason}; {error.remedy}") from None
    _check_columns(table.columns, kind, where)
    read = OperatorReader(kind, precision)
    operators: list[Operator] = []
    for row in table.rows:
        try:
            operators.append(read(row.cells))
        except RecordError as error:
            place = f"line {row.line}" + (f", column {error.column}" if error.column else "")
            raise OperatorTableError(f"{where}: {place}: {error}; correct the line") from None
    return OperatorTable(table.columns, tuple(row.cells for row in table.rows), tuple(operators))


def _check_columns(columns: Sequence[str], kind: str | None, where: str) -> None:
    if set(PRECISION_COLUMNS) <= set(columns):
        raise OperatorTableError(f"{where}: columns {' and '.join(PRECISION_COLUMNS)} say one thing; remove one")
    if kind is None and "op" not in columns:
        raise OperatorTableError(f"{where}: the column 'op' is missing; add it, or give the kind with `op`")
    if kind is None:
        return
    try:
        missing = missing_columns(kind_named(kind), columns)
    except RecordError as error:
        raise OperatorTableError(f"{where}: `op`: {error}") from None
    if missing:
        has = [name for name in columns if name in SHAPE_COLUMNS]
        found = f"its columns of sizes are {', '.join(has)}" if has else "it has no column of sizes"
        raise OperatorTableError(
            f"{where}: line 1, column {missing[0]}: {kind} needs the column {missing[0]}; {found}; add it, or give "
            "another kind with `op`"
        )


def predicted_csv(table: OperatorTable, predictions: Sequence[Prediction]) -> str:
    """The table with the predicted columns after its own, as CSV; kernels are separated by ``;``."""
    rows: list[list[object]] = [[*_kept_names(table.columns), *PREDICTED_COLUMNS]]
    for row, prediction in zip(table.rows, predictions, strict=True):
        own = _predicted(prediction)
        rows.append([*row.values(), *(own[name] for name in PREDICTED_COLUMNS[:-1]), ";".join(prediction.kernels)])
    return csv_text(rows)


def predicted_json(table: OperatorTable, predictions: Sequence[Prediction]) -> str:
    """A list of objects, one per row, numbers as numbers."""
    names = _kept_names(table.columns)
    return json.dumps(
        [
            dict(zip(names, map(_number_or_text, row.values()), strict=True)) | _predicted(prediction)
            for row, prediction in zip(table.rows, predictions, strict=True)
        ],
        indent=1,
    )


def _predicted(prediction: Prediction) -> dict[str, object]:
    times = {name: rounded(getattr(prediction, name)) for name in PREDICTED_COLUMNS[:3]}
    chosen = {"algorithm": prediction.algorithm, "weights": prediction.weights}
    return times | chosen | {"kernels": list(prediction.kernels)}


def _kept_names(columns: Sequence[str]) -> list[str]:
    """Names of the input's columns, ``input_NAME`` if a predicted one has the same name."""
    taken = {*columns, *PREDICTED_COLUMNS}
    names = []
    for name in columns:
        kept = name
        while kept in PREDICTED_COLUMNS or (kept != name and kept in taken):
            kept = f"input_{kept}"
        taken.add(kept)
        names.append(kept)
    return names


def _number_or_text(cell: str) -> int | float | str:
    try:
        value = read_number(cell, least=-LARGEST)
    except NumberError:
        return cell
    return int(cell) if re.fullmatch(r"\s*[+-]?\d+\s*", cell) else value
