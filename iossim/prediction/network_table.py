"""The units of a network priced one by one: a table to join with a profiler's by the names of ops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.backends.simulator.kernel_model import KernelModel
from iossim.base.display import Printed
from iossim.base.tables import csv_text
from iossim.execution.engine import Engine
from iossim.hardware.lowering.residence import Residence, Weights, residences
from iossim.hardware.profile import DeviceProfile
from iossim.ir.network import Network, Unit
from iossim.ir.ops.foreign import Foreign
from iossim.ir.types import TensorType
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
