"""Predicted beside profiled: the time of each unit of a network in a profile, and its predicted time alone."""

from __future__ import annotations

from dataclasses import dataclass

from iossim._version import __version__
from iossim.base.errors import OptionError
from iossim.cost.capabilities import DeviceCostModel
from iossim.cost.measured.stage_plans import step_operators
from iossim.hardware.lowering.kernel import Issue
from iossim.hardware.lowering.unit import unit_steps
from iossim.hardware.profile import DeviceProfile
from iossim.ir.network import Network, Unit
from iossim.measurements.measurement import Header, Measurement, MeasurementSet, StageMeasurement
from iossim.measurements.operator import Operator
from iossim.measurements.operator_kinds import read_record
from iossim.measurements.profilers.layer_times import ONNXRUNTIME, LayerTimes
from iossim.models.sources import onnx_file
from iossim.profiles.profile_checks import other_device, too_fast, too_fast_words
from iossim.profiles.profile_match import by_name, layer_class, matched, names_suffice, op_class
from iossim.schedule.batch import Strategy
from iossim.schedule.schedule import Stage


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """A unit: the time of its layers (None without any), the predicted time of its kernels, and what limits it."""

    unit: str
    kind: str
    predicted_us: float
    measured_us: float | None
    limit: str | None
    layers: tuple[str, ...]

    @property
    def error_us(self) -> float | None:
        return None if self.measured_us is None else self.predicted_us - self.measured_us

    @property
    def error_percent(self) -> float | None:
        """Relative error; None for a unit that was not measured, or takes no time."""
        return 100 * (self.predicted_us / self.measured_us - 1) if self.measured_us else None


@dataclass(frozen=True)
class ProfileReport:
    """Units in order; ``unmatched`` are layers of none. ``possible`` is the predicted speed-up of the best schedule
    over one unit after another. ``is_doubtful``: the profile names nodes, and most are not the network's, so that it
    may be of another model. ``products_times`` is the number of products run over that of the network. ``too_fast``
    names the units faster than the device permits; empty without any. ``other_device`` is the profile's device if it
    differs.
    """

    times: LayerTimes
    rows: tuple[ProfileRow, ...]
    unmatched: tuple[str, ...]
    matched_us: float
    possible: float
    is_doubtful: bool = False
    products_times: float = 1.0
    too_fast: str = ""
    other_device: str = ""

    @property
    def matched_share(self) -> float:
        """Fraction of the measured time that is matched to units."""
        return self.matched_us / self.times.total_us if self.times.total_us else 0.0

    @property
    def predicted_us(self) -> float:
        return sum(row.predicted_us for row in self.rows)

    @property
    def by_error(self) -> list[ProfileRow]:
        """The largest errors first; units without a measurement last."""
        return sorted(self.rows, key=lambda row: -abs(row.error_us) if row.error_us is not None else 1.0)


def measured_units(report: ProfileReport, network: Network, device: DeviceProfile) -> MeasurementSet:
    """Units that ran as a single layer, as a measurement set; those without columns there are left out, and noted.

    Layers are the kernels of a call of the network on a GPU, and operators on a CPU, without gaps. Raises OptionError
    if they are of another device or cannot be of this precision.
    """
    if report.other_device:
        raise OptionError(
            f"`measurements`: recorded on {report.other_device}, not on {device.name}; give that one as `device`"
        )
    if report.too_fast:
        raise OptionError(f"`measurements`: {report.too_fast}")
    taken: list[Measurement] = []
    stages: list[StageMeasurement] = []
    for row, (unit, found) in enumerate(zip(network.units, report.rows, strict=True)):
        if found.measured_us and len(found.layers) == 1:
            operators = _operators(network, unit)
            if len(operators) == 1:
                taken.append(Measurement(operators[0], found.measured_us, row=row, samples=report.times.runs))
            elif operators:
                stages.append(StageMeasurement((operators,), found.measured_us, row=row, samples=report.times.runs))
    header = Header(
        device=device.name,
        data_set=f"{network.name} as {report.times.source} ran it",
        precision=network.precision,
        includes_gaps=False,
        issue=Issue.CALLS if device.kind == "cpu" else Issue.STREAM,
        source=f"iossim {__version__}, profile-report",
    )
    count, left_out = len(report.rows), len(report.rows) - len(taken) - len(stages)
    reasons = "not measured, of several layers, or without columns in the format"
    notes = (f"{left_out} of {count} units left out: {reasons}",)
    return MeasurementSet(header, tuple(taken), tuple(stages), notes if left_out else ())


def profile_report(network: Network, times: LayerTimes, prices: DeviceCostModel, possible: float) -> ProfileReport:
    """Each unit alone, its kernels only, beside the layers of a profile that match it."""
    file = network.source.model if network.source else ""
    values_of = onnx_file.values_of_nodes(file) if onnx_file.takes(file) else {}
    found = matched(network, times.layers, values_of)
    told = names_suffice(times.layers, by_name(network, times.layers, values_of))
    layers: list[list[int]] = [[] for _ in network.units]
    for place, number in enumerate(found):
        if number is not None:
            layers[number].append(place)
    rows, fast = [], []
    for unit, places in zip(network.units, layers, strict=True):
        facts = prices.stage_facts(network, Stage(strategy=Strategy.CONCURRENT, groups=[[unit.name]], latency_us=0.0))
        own = [times.layers[place] for place in places]
        measured_us = sum(layer.duration_us for layer in own) if own else None
        if measured_us:
            resolution_us = 1.0 if times.source == ONNXRUNTIME else 0.0  # times are whole microseconds
            fast.append(too_fast(unit.name, _operators(network, unit), measured_us, resolution_us, prices.profile))
        rows.append(
            ProfileRow(
                unit.name,
                unit.kind,
                sum(kernel.alone_us for kernel in facts.kernels),
                measured_us,
                None if facts.bound is None else str(facts.bound),
                tuple(layer.name for layer in own),
            )
        )
    lost = [layer for layer, number in zip(times.layers, found, strict=True) if number is None]
    matched_us = times.total_us - sum(layer.duration_us for layer in lost)
    doubtful = times.names_nodes and not told
    ops = sum(op_class(network.graph, node) == "product" for node in network.graph.nodes)
    ran = sum(layer_class(layer) == "product" for layer in times.layers)
    unmatched = tuple(layer.name for layer in lost)
    return ProfileReport(
        times,
        tuple(rows),
        unmatched,
        matched_us,
        possible,
        doubtful,
        ran / ops if ops else 1.0,
        too_fast_words([one for one in fast if one is not None], network, prices.profile),
        other_device(times, prices.profile),
    )


def _operators(network: Network, unit: Unit) -> tuple[Operator, ...]:
    """Operators of a unit; none if one of them has no columns in the format of measurements."""
    return tuple(read_record(one, network.precision) for one in step_operators(unit_steps(network, unit)) or [])
