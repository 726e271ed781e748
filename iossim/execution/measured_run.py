"""Schedules run on a backend: correctness of their outputs, and their relative times."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

import numpy as np

from iossim.base.errors import Progress, ignore
from iossim.execution.backend import Backend, Choice, Choices, Samples, divided_by
from iossim.execution.lower import lower_schedule
from iossim.execution.made_inputs import made_inputs
from iossim.execution.memory import check_happens_before, plan_memory
from iossim.execution.plan import Plan
from iossim.execution.tolerance import Difference, largest_difference
from iossim.ir.network import Network
from iossim.ir.op import Array
from iossim.schedule.batch import FASTEST, Strategy
from iossim.schedule.schedule import AnySchedule

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
