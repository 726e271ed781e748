"""Predicted beside profiled: the time of each unit of a network in a profile, and its predicted time alone; and a
recorded run and its simulation over one time axis, in a picture and in the page of the schedule.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import itemgetter
from pathlib import Path

from iossim._version import __version__
from iossim.base.errors import OptionError
from iossim.cli.options import with_flags
from iossim.cli.outputs import PAGE, Writer, pictures, text_file, wants_plot
from iossim.cost.capabilities import DeviceCostModel
from iossim.cost.measured.stage_plans import step_operators
from iossim.execution.execution import Span
from iossim.hardware.lowering.kernel import Issue
from iossim.hardware.lowering.unit import unit_steps
from iossim.hardware.names import device_names
from iossim.hardware.profile import DeviceProfile
from iossim.ir.network import Network, Unit
from iossim.ir.types import Precision
from iossim.measurements.measurement import (
    Header,
    Measurement,
    MeasurementSet,
    Operator,
    StageMeasurement,
    device_of_product,
)
from iossim.measurements.measurement_set import fastest_arithmetic_us, fastest_transfer_us, possible_precision
from iossim.measurements.operator_kinds import read_record
from iossim.measurements.profilers.layer_times import ONNXRUNTIME, LayerTimes, TimedLayer
from iossim.models.load import source_of
from iossim.models.sources.onnx_file import values_of_nodes
from iossim.profiles.profile_match import by_name, layer_class, matched, names_suffice, op_class
from iossim.report.figures.schedule_timeline import beside_figure
from iossim.report.schedule_page import Recording, schedule_page
from iossim.schedule.batch import Strategy
from iossim.schedule.schedule import AnySchedule, Stage, StreamSchedule
from iossim.tasks.explain import Explanation, explain
from iossim.tasks.stream_explain import StreamExplanation, explain_streams

#: A larger overlap of layers cannot come from rounded clocks.
_BESIDE = 1.05


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
    differs. ``unit_of_layer`` has the number of each layer's unit, None where there is none.
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
    unit_of_layer: tuple[int | None, ...] = ()

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

    def remarks(self, profile: Path, network: Network, device: str | None) -> Iterator[str]:
        """Reasons why errors may not be those of the predictions."""
        if self.other_device:
            yield f"{profile} was recorded on {self.other_device}, and the predictions are for {device}"
        if self.too_fast:
            yield with_flags(self.too_fast)
        if self.is_doubtful:
            yield f"few names in {profile} are of nodes of {network.name}, so order decided; is it of this model?"
        if self.products_times >= 2:
            said = f"{self.products_times:.1f} times as many products ran in {profile} as {network.name} has"
            yield f"{said}; if it ran several times, record equal runs alone, and give --runs"
        if (self.times.overlap or 1.0) > _BESIDE:
            yield "concurrent layers took longer than alone; errors and --measurements include that"

    def units(self) -> list[dict[str, object]]:
        """Units in JSON, the largest errors first."""
        names = ("unit", "kind", "predicted_us", "measured_us", "error_percent", "limit")
        return [{name: getattr(row, name) for name in names} | {"layers": list(row.layers)} for row in self.by_error]

    def sentences(self, complete: bool) -> Iterator[str]:
        """Measured and predicted times in words; the search of the matching may not be ``complete``."""
        times = self.times
        summed = "the layers' medians" if times.runs > 1 else "layers"
        yield (
            f"Measured {times.total_us / 1e3:.3f} ms as the sum of {summed}, {100 * self.matched_share:.1f}% of it "
            f"matched to units; predicted {self.predicted_us / 1e3:.3f} ms."
        )
        if times.wall_us is not None:
            yield (
                f"The {'last ' if times.runs > 1 else ''}run took {times.wall_us / 1e3:.3f} ms from its first layer to "
                f"its last; on average {times.overlap or 0:.2f} layers ran concurrently."
            )
        which = "best schedule" if complete else "best schedule found before the interrupt"
        yield f"The {which} is predicted to be {self.possible:.2f} times as fast as sequential execution."


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
    values_of = values_of_nodes(file) if source_of(file) == "onnx_file" else {}
    found = matched(network, times.layers, values_of)
    told = names_suffice(times.layers, by_name(network, times.layers, values_of))
    layers: list[list[int]] = [[] for _ in network.units]
    for place, number in enumerate(found):
        if number is not None:
            layers[number].append(place)
    rows, timed = [], dict[str, tuple[Sequence[Operator], float]]()
    for unit, places in zip(network.units, layers, strict=True):
        facts = prices.stage_facts(network, Stage(strategy=Strategy.CONCURRENT, groups=[[unit.name]], latency_us=0.0))
        own = [times.layers[place] for place in places]
        measured_us = sum(layer.duration_us for layer in own) if own else None
        if measured_us:
            timed[unit.name] = _operators(network, unit), measured_us
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
    ops = sum(op_class(network.graph, node) == "product" for node in network.graph.nodes)
    ran = sum(layer_class(layer) == "product" for layer in times.layers)
    return ProfileReport(
        times,
        tuple(rows),
        tuple(layer.name for layer in lost),
        matched_us,
        possible,
        times.names_nodes and not told,
        ran / ops if ops else 1.0,
        # Times of ONNX Runtime are whole microseconds.
        too_fast_words(timed, float(times.source == ONNXRUNTIME), network, prices.profile),
        other_device(times, prices.profile),
        tuple(found),
    )


def _operators(network: Network, unit: Unit) -> tuple[Operator, ...]:
    """Operators of a unit; none if one of them has no columns in the format of measurements."""
    return tuple(read_record(one, network.precision) for one in step_operators(unit_steps(network, unit)) or [])


#: Element types of products, as ONNX Runtime and PyTorch name them.
_PRECISIONS = {
    "float": Precision.FP32,
    "float16": Precision.FP16,
    "c10::half": Precision.FP16,
    "bfloat16": Precision.BF16,
    "c10::bfloat16": Precision.BF16,
}


def recorded_batch(network: Network, times: LayerTimes) -> int | None:
    """Batch at which most layers with a shape ran, if it differs from the network's."""
    agree, batches, _ = _votes(network, times)
    batch, count = max(batches.items(), key=lambda item: item[1], default=(0, 0))
    return batch if count > agree else None


def check_recorded(network: Network, times: LayerTimes) -> None:
    """Raise OptionError where the layers of a profile ran at another batch, other shapes or another precision."""
    if batch := recorded_batch(network, times):
        raise OptionError(f"recorded at batch {batch}, and not at {network.source.batch}; give `batch` {batch}")
    agree, _, others = _votes(network, times)
    if times.names_nodes and sum(others.values()) > agree:
        (name, shape), _ = others.most_common(1)[0]
        raise OptionError(
            f"recorded at other shapes: {name!r} ran at {'x'.join(map(str, shape))}, which nothing in {network.name} "
            "has; give those of the recording with `shape`, `dim` or `batch`"
        )
    took_us: dict[Precision, float] = defaultdict(float)
    for layer in _stating(times):
        if layer.dtype.lower() in _PRECISIONS and layer_class(layer) == "product":
            took_us[_PRECISIONS[layer.dtype.lower()]] += layer.duration_us
    own = Precision.FP32 if network.precision is Precision.TF32 else network.precision
    if took_us and own is not Precision.INT8 and 2 * took_us[own] < sum(took_us.values()):
        ran = max(took_us, key=took_us.__getitem__)
        raise OptionError(f"its products ran in {ran}, and not in {network.precision}; give `dtype` {ran}")


def _stating(times: LayerTimes) -> Sequence[TimedLayer]:
    return times.operators or times.layers


def _votes(network: Network, times: LayerTimes) -> tuple[int, Counter[int], Counter[tuple[str, tuple[int, ...]]]]:
    """Number of layers with a shape of the network, those with one at another batch, by batch, and the others."""
    graph = network.graph
    own = {kind.shape for name, kind in graph.types.items() if name not in graph.constants}
    leading: dict[tuple[int, ...], int] = {}
    for shape in sorted(own):
        if len(shape) > 1:
            leading.setdefault(shape[1:], shape[0])
    agree, batches, others = 0, Counter[int](), Counter[tuple[str, tuple[int, ...]]]()
    for layer in _stating(times):
        shape = layer.shape
        if shape in own:
            agree += 1
        elif shape and shape[1:] in leading:
            batch, rest = divmod(network.source.batch * shape[0], leading[shape[1:]])
            batches[batch] += not rest
        elif len(shape) > 1 and layer_class(layer) == "product":
            others[layer.name, shape] += 1
    return agree, batches, others


def recorded_device(times: LayerTimes) -> str | None:
    """Device named by a profile, if iossim has a profile of it."""
    name = device_of_product(times.product)
    return name if name in device_names() else None


def other_device(times: LayerTimes, device: DeviceProfile) -> str:
    """Device of a profile if it is not this one: its name, ``a CPU`` or ``a GPU``; empty if unknown."""
    name = device_of_product(times.product)
    if times.on_cpu is not None and times.on_cpu != (device.kind == "cpu"):
        return name or ("a CPU" if times.on_cpu else "a GPU")
    return name if name != device.name.partition("+")[0] else ""


def too_fast_words(
    timed: Mapping[str, tuple[Sequence[Operator], float]], resolution_us: float, network: Network, device: DeviceProfile
) -> str:
    """Sentence on units that took less time than their arithmetic at the device's peak, or their bytes at the memory
    bandwidth, and a remedy; empty without any. ``timed`` has the operators of each unit, and its time, us.

    With several operators, or on a CPU, bytes are not counted: one operator's output may be in a cache for the next.
    """
    found: list[tuple[bool, float, str]] = []
    for unit, (operators, measured_us) in timed.items():
        arithmetic_us = sum(fastest_arithmetic_us(operator, device) for operator in operators)
        from_memory = len(operators) == 1 and device.kind == "gpu"
        moved_us = fastest_transfer_us(operators[0], device) if from_memory else 0.0
        by_arithmetic = measured_us + resolution_us < arithmetic_us
        if by_arithmetic or measured_us + resolution_us < moved_us:
            found.append((by_arithmetic, (arithmetic_us if by_arithmetic else moved_us) / measured_us, unit))
    if not found:
        return ""
    by_arithmetic, ratio, unit = max(found, key=itemgetter(0, 1))
    operators, measured_us = timed[unit]
    precision = possible_precision(operators, measured_us + resolution_us, device) if by_arithmetic else None
    more = f" and {len(found) - 1} more units are" if len(found) > 1 else " is"
    of = f"{network.precision}'s peak" if by_arithmetic else "the memory"
    least = f"{measured_us:,.1f} us, where {ratio * measured_us:,.1f} are the least"
    remedy = f"try `dtype` {precision}" if precision else "was it this device, model and batch?"
    return f"{unit}{more} faster than {of} of {device.name} ({least}); {remedy}"


def recording(network: Network, report: ProfileReport, begin_us: float) -> Recording:
    """The last run of a profile from ``begin_us`` on, each layer in the first lane that is free.

    Where a profile has no starts, layers follow one another in its order.
    """
    layers = report.times.layers
    spans_us = [layer.span_us for layer in layers if layer.span_us is not None]
    if len(spans_us) < len(layers):
        spans_us = list(pairwise(accumulate((layer.duration_us for layer in layers), initial=0.0)))
    shift_us = begin_us - min((start_us for start_us, _ in spans_us), default=0.0)
    free_us: list[float] = []
    spans = []
    for layer, number, (start_us, end_us) in sorted(
        zip(layers, report.unit_of_layer, spans_us, strict=True), key=lambda each: each[2]
    ):
        lane = next((lane for lane, until_us in enumerate(free_us) if until_us <= start_us), len(free_us))
        free_us[lane : lane + 1] = [end_us]
        unit = "" if number is None else network.units[number].name
        spans.append(Span(layer.name, unit, -1, lane, start_us + shift_us, end_us + shift_us))
    took_us = max(free_us, default=0.0) + shift_us - begin_us
    which = f"last of {report.times.runs} runs" if report.times.runs > 1 else "one run"
    order = "" if report.times.wall_us is not None else "; starts are not recorded, layers follow one another"
    return Recording(f"recorded by {report.times.source}, {which}: {took_us / 1e3:.3f} ms{order}", tuple(spans))


def recorded_files(
    network: Network, prices: DeviceCostModel, schedule: AnySchedule, report: ProfileReport, said: Sequence[str]
) -> dict[str, Writer]:
    """The page of a schedule, priced by ``prices``, with the recorded run in it, and the picture of both timelines."""
    explanation: Explanation | StreamExplanation
    if isinstance(schedule, StreamSchedule):
        explanation = explain_streams(schedule, network, prices)
        spans: Sequence[Span] = explanation.spans
    else:
        explanation, spans = explain(schedule, network, prices), prices.timeline(network, schedule)
    recorded = recording(network, report, min((span.start_us for span in spans), default=0.0))
    page = schedule_page(network, schedule, spans, said, explanation, recorded=recorded)
    where = f"{network.name} on {schedule.device}, batch {network.source.batch}, {network.precision}"
    title = f"{where}, simulated and recorded"
    finding = f"simulated: {max((span.end_us for span in spans), default=0.0) / 1e3:.3f} ms\n{recorded.title}"
    figure = beside_figure(network, title, finding, {"simulated": spans, "recorded": recorded.spans})
    drawn = pictures(figure) if wants_plot(None) else {}
    return {PAGE: text_file(page), **drawn}
