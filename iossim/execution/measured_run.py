"""Schedules run on a backend: correctness of their outputs, and their relative times.

Outputs are held to a tolerated difference from NumPy's in the same storage type. A value is rounded when it is stored,
on both sides but not to the same neighbour, since sums are computed in different orders; values computed from it
propagate the error. Errors of ``n`` successive roundings add up to the root of ``n``, and so do those of the ``k``
terms of a sum in fp32. So an output may be off, relative to its largest value, by

    ``SAFETY * sqrt(n) * (u + sqrt(k) * 2**-24)`` (``2**-11`` where sums are of fp16)

with ``n`` ops on the longest path, ``k`` terms of the deepest sum, and ``u`` half a unit in the last place of the
stored type (for TF32: the multiplied type; for scaled integers: 8 bits; for fp8, which both sides round alike but for
near ties: 7, of sums in which some terms differ by a step). No tolerance is below ``LEAST``: convolution
transforms (Winograd's) lose that much.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

import numpy as np

from iossim.base.errors import Progress, ignore
from iossim.execution.backend import Backend, Choice, Choices, Samples, divided_by
from iossim.execution.lower import lower_schedule
from iossim.execution.made_inputs import made_inputs
from iossim.execution.memory import check_happens_before, plan_memory
from iossim.execution.plan import Plan
from iossim.ir.graph import Graph
from iossim.ir.network import Network
from iossim.ir.op import Array, Role
from iossim.ir.types import FP8, DType, Precision
from iossim.schedule.batch import FASTEST, Strategy
from iossim.schedule.schedule import AnySchedule

SAFETY = 4.0
LEAST = 1e-3
#: Unit roundoff: the largest relative error of a rounding.
ROUNDOFF = {
    Precision.FP32: 2.0**-24,
    Precision.TF32: 2.0**-11,
    Precision.FP16: 2.0**-11,
    Precision.BF16: 2.0**-8,
    Precision.INT8: 2.0**-8,
    Precision.FP8: 2.0**-7,
}
#: Precisions of tensors that are stored in 8 bits.
_OF_8_BITS = {DType.INT8: Precision.INT8, DType.UINT8: Precision.INT8, **dict.fromkeys(FP8, Precision.FP8)}
#: Operators that order numbers.
_RANKINGS = ("top_k", "arg_extreme", "hardmax", "NonMaxSuppression", "Unique")
#: Remark on outputs that are :func:`ranked` and differ.
SWAPPED = "they depend on an order of numbers (TopK, ArgMax), in which rounding may swap those that are nearly equal"


def tolerance(network: Network, precision: Precision | None = None, sums: Precision = Precision.FP32) -> float:
    """Tolerated difference of outputs, relative to the largest value; for the network's own precision by default.

    ``sums`` is the accumulation type of products.
    """
    graph = network.graph
    terms = max((_terms(graph, index) for index in range(len(graph.nodes))), default=1)
    own = precision or network.precision
    stored = {_OF_8_BITS.get(value.dtype, own) for value in graph.types.values()}
    unit = max(ROUNDOFF[each] for each in (own, *stored)) + math.sqrt(terms) * ROUNDOFF[sums]
    return max(LEAST, SAFETY * math.sqrt(_roundings(graph)) * unit)


def _terms(graph: Graph, index: int) -> int:
    node = graph.nodes[index]
    types = graph.output_types(node)
    products = node.op.multiply_adds(graph.input_types(node), types)
    return max(1, products // max(1, types[0].elements))


def _roundings(graph: Graph) -> int:
    """Number of computing ops on the longest path."""
    longest: dict[str, int] = {}
    for node in graph.nodes:
        own = node.op.role not in (Role.VIEW, Role.CONCAT)
        found = max((longest.get(name, 0) for name in node.inputs), default=0) + own
        longest.update(dict.fromkeys(node.outputs, found))
    return max(1, *longest.values()) if longest else 1


def ranked(graph: Graph) -> frozenset[str]:
    """Values that depend on an order of numbers, as TopK finds it: rounding may swap those that are nearly equal."""
    found: set[str] = set()
    for node in graph.nodes:
        if getattr(node.op, "op_type", node.op.kind) in _RANKINGS or not found.isdisjoint(node.inputs):
            found.update(node.outputs)
    return frozenset(found)


@dataclass(frozen=True, slots=True)
class Difference:
    """Largest difference of outputs: ``found`` instead of ``wanted``, ``relative`` to the largest value of that output.

    Infinite if only one of the two is finite.
    """

    output: str = ""
    index: tuple[int, ...] = ()
    found: float = 0.0
    wanted: float = 0.0
    relative: float = 0.0

    def __str__(self) -> str:
        if not self.output:
            return "equal"
        place = f"{self.output}[{', '.join(map(str, self.index))}]"
        off = "" if math.isinf(self.relative) else f", off by {self.relative:.2g} of the largest value"
        return f"{place} is {self.found:.6g} instead of {self.wanted:.6g}{off}"


def largest_difference(found: Mapping[str, Array], expected: Mapping[str, Array]) -> Difference:
    """Largest difference of any output over the largest expected value of that output."""
    worst = Difference()
    for name, array in expected.items():
        wanted, got = array.astype(np.float64), found[name].astype(np.float64)
        finite = np.isfinite(wanted)
        unlike = finite != np.isfinite(got)
        if unlike.any():
            return _difference(name, int(unlike.argmax()), got, wanted, math.inf)
        if finite.any():
            scale = float(np.abs(wanted[finite]).max()) or 1.0
            errors = np.where(finite, np.abs(np.where(finite, wanted, 0) - np.where(finite, got, 0)), 0.0) / scale
            place = int(errors.argmax())
            if errors.flat[place] > worst.relative:
                worst = _difference(name, place, got, wanted, float(errors.flat[place]))
    return worst


def _difference(name: str, place: int, got: Array, wanted: Array, relative: float) -> Difference:
    index = tuple(int(part) for part in np.unravel_index(place, wanted.shape))
    return Difference(name, index, float(got.flat[place]), float(wanted.flat[place]), relative)


#: The arrays of a network's outputs by name, from arrays for its inputs.
Reference = Callable[[Network, Mapping[str, Array]], Mapping[str, Array]]


#: Resamples of the interval of a ratio.
_RESAMPLES = 1000


@dataclass(frozen=True, slots=True)
class Ratio:
    """Ratio of two times: that of the medians, and its 90% bootstrap interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """One measured schedule or baseline. ``speedup`` is over the first row."""

    name: str
    samples: Samples
    speedup: Ratio
    predicted_us: float | None = None

    @property
    def error_percent(self) -> float | None:
        """Relative error of the prediction, in percent of the measured median."""
        if self.predicted_us is None:
            return None
        return 100 * (self.predicted_us / self.samples.median_us - 1)

    def to_json(self) -> dict[str, object]:
        samples = self.samples
        return {
            "name": self.name,
            "median_us": samples.median_us,
            "spread_us": samples.spread_us,
            "rounds": len(samples.times_us),
            "rejected": samples.rejected,
            "speedup": asdict(self.speedup),
            "predicted_us": self.predicted_us,
            "conditions": dict(samples.conditions),
            "times_us": list(samples.times_us),
        }


def plan_for(
    schedule: AnySchedule,
    network: Network,
    backend: Backend,
    choices: Choices | None = None,
    progress: Progress = ignore,
) -> Plan:
    """The plan of a schedule for a backend: values in place, its choices, planned memory, free of races.

    ``progress`` counts the units whose kernel is chosen, for which a backend may time several.
    """
    choose, chosen = choices or backend.choices(network), 0

    def told(units: tuple[str, ...], strategy: Strategy, variant: str = FASTEST) -> Choice:
        nonlocal chosen
        found = choose(units, strategy, variant)
        chosen += len(units)
        progress(min(chosen, len(network.units)), len(network.units))
        return found

    lowered = lower_schedule(
        schedule, network, backend.context.engine, in_place=True, choices=told, divided=divided_by(backend, network)
    )
    plan = plan_memory(lowered)
    check_happens_before(plan)
    return plan


def output_difference(
    network: Network, schedule: AnySchedule, backend: Backend, reference: Reference, seed: int = 0
) -> Difference:
    """Location and size of the largest difference between outputs and ``reference``."""
    plan = plan_for(schedule, network, backend)
    inputs = made_inputs(plan, network, seed)
    expected = reference(network, inputs)
    computed = {name: expected[name] for name in plan.outputs}  # others are known without a run
    return largest_difference(backend.execute(network, plan, inputs), computed)


def measured_rows(
    samples: Mapping[str, Samples], predicted_us: Mapping[str, float], seed: int
) -> tuple[MeasuredRow, ...]:
    """A row for each of these samples, by name; speed-ups are over the first."""
    first = next(iter(samples.values()))
    return tuple(
        MeasuredRow(name, found, ratio_of(first, found, seed), predicted_us.get(name))
        for name, found in samples.items()
    )


def ratio_of(numerator: Samples, denominator: Samples, seed: int = 0) -> Ratio:
    """The ratio of two medians, with a bootstrap interval (5th and 95th percentile of resampled medians' ratios).

    Rounds are interleaved, so that disturbances of the machine affect both.
    """
    generator = np.random.default_rng(seed)
    medians = []
    for samples in (numerator, denominator):
        times = np.array(samples.times_us)
        drawn = times[generator.integers(0, len(times), (_RESAMPLES, len(times)))]
        medians.append(np.median(drawn, axis=1))
    low, high = np.percentile(medians[0] / medians[1], (5, 95)).tolist()
    return Ratio(numerator.median_us / denominator.median_us, low, high)
