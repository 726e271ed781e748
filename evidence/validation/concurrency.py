"""Concurrent kernels measured against ``corun``: microbenchmarks by mechanism, and pairs by data set.

Errors of slowdowns are compared with those of two models that know nothing of kernels: no interference, and equal parts
of the device for each (so that the whole takes as long as the sum). *In-sample* is the profile as it ships; *left out*
are fits that did not see what they are judged by: the families of the kernels, the data set, the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evidence.concurrency import microbenchmarks as micro
from evidence.concurrency import pairs
from evidence.concurrency.corun_cases import CorunCase
from evidence.concurrency.corun_fit import GRAPH_BESIDE, CorunFit, Knob, tabulate
from evidence.concurrency.corun_microbenchmarks import microbenchmark_cases
from evidence.concurrency.corun_pairs import graph_pair_cases, prefill_pair_cases, stream_pair_cases
from iossim.base.compiled import Floats
from iossim.base.errors import Progress, ignore
from iossim.calibration.accuracy import FEWEST_RESIDUALS, TAIL, coverage, width
from iossim.hardware.profile import DeviceProfile
from iossim.measurements.measurement_set import profile_named

Bools = NDArray[np.bool_]

#: A simulated ratio this near to the measured one is right.
RIGHT = 0.10
#: Smaller slowdowns have their own intervals: those of kernels that fill the device for long.
_HARDLY = 1.05
#: Name that stands for several data sets.
ALL_PAIRS = "all pairs"


@dataclass(frozen=True, slots=True)
class RatioErrors:
    """Relative errors of ratios by one model: predicted over measured, less 1, by size."""

    median: float
    mean: float
    percentile_90: float

    @staticmethod
    def of(errors: Floats) -> RatioErrors:
        """Errors in numbers, from those of all ratios."""
        size = np.abs(errors)
        return RatioErrors(float(np.median(size)), float(np.mean(size)), float(np.quantile(size, 0.9)))

    def percents(self) -> dict[str, float]:
        """The figures in percent, by the names of columns."""
        return {"median": 100 * self.median, "mean": 100 * self.mean, "p90": 100 * self.percentile_90}


#: Models in a pair's table, in order.
MODELS = ("none", "sum", "in_sample", "family", "set", "device")


@dataclass(frozen=True, eq=False)
class PairErrors:
    """A data set of pairs, its figures in order: ratios measured, and by each of :data:`MODELS`, ``[figures]``.

    ``is_whole`` marks makespans; the others are slowdowns. ``low`` and ``high`` are intervals of nine in ten by the
    model that did not see the family, from residuals of other families of all sets; nan if there are too few.
    """

    data_set: str
    device: str
    pairs: int
    measured: Floats
    predicted: dict[str, Floats]
    is_whole: Bools
    low: Floats
    high: Floats
    #: Parameter that the data set determines, and its value; "" and None without one.
    fitted: str = ""
    value: float | None = None

    @property
    def slowdowns(self) -> dict[str, RatioErrors]:
        """Errors of slowdowns by model."""
        return self._errors(~self.is_whole)

    @property
    def makespans(self) -> dict[str, RatioErrors]:
        """Errors of makespans by model."""
        return self._errors(self.is_whole)

    @property
    def within(self) -> float | None:
        """Fraction of slowdowns within their intervals."""
        known = self._known
        return coverage(self.low[known], self.high[known], self.measured[known])

    @property
    def width(self) -> float | None:
        """Median high over low of the slowdowns' intervals."""
        return width(self.low[self._known], self.high[self._known])

    @property
    def _known(self) -> Bools:
        return np.asarray(~self.is_whole & np.isfinite(self.low))

    @staticmethod
    def all_of(several: Sequence[PairErrors]) -> PairErrors:
        """Figures of several sets joined as one."""
        measured, is_whole, low, high = (
            np.concatenate([getattr(one, name) for one in several]) for name in ("measured", "is_whole", "low", "high")
        )
        predicted = {model: np.concatenate([one.predicted[model] for one in several]) for model in MODELS}
        devices = ", ".join(dict.fromkeys(one.device for one in several))
        pairs = sum(one.pairs for one in several)
        return PairErrors(ALL_PAIRS, devices, pairs, measured, predicted, is_whole, low, high)

    def _errors(self, among: Bools) -> dict[str, RatioErrors]:
        return {model: RatioErrors.of((of / self.measured - 1.0)[among]) for model, of in self.predicted.items()}

    def to_json(self) -> dict[str, Any]:
        return {
            "data_set": self.data_set,
            "device": self.device,
            "pairs": self.pairs,
            "slowdowns": {model: asdict(errors) for model, errors in self.slowdowns.items()},
            "makespans": {model: asdict(errors) for model, errors in self.makespans.items()},
            "fitted": {self.fitted: self.value} if self.fitted else {},
            "interval_coverage": self.within,
            "interval_width": self.width,
        }


@dataclass(frozen=True, slots=True)
class MicroRatio:
    """One microbenchmark: a ratio together over alone, measured and simulated."""

    device: str
    mechanism: str
    title: str
    line: int
    measured: float
    simulated: float

    @property
    def error(self) -> float:
        return self.simulated / self.measured - 1.0

    @property
    def is_right(self) -> bool:
        return abs(self.error) <= RIGHT


@dataclass(frozen=True)
class ConcurrencyEvaluation:
    """All results for concurrent kernels in the shared tables."""

    pairs: tuple[PairErrors, ...] = ()
    microbenchmarks: tuple[MicroRatio, ...] = ()

    def by_mechanism(self) -> dict[tuple[str, str], list[MicroRatio]]:
        """Microbenchmarks of each device and mechanism, in order."""
        found: dict[tuple[str, str], list[MicroRatio]] = {}
        for each in self.microbenchmarks:
            found.setdefault((each.device, each.mechanism), []).append(each)
        return found

    @property
    def all_pairs(self) -> PairErrors | None:
        """Figures of all sets of pairs joined as one; None unless there are several."""
        return PairErrors.all_of(self.pairs) if len(self.pairs) > 1 else None

    def to_json(self) -> dict[str, Any]:
        together = self.all_pairs
        return {
            "pairs": [each.to_json() for each in self.pairs],
            "all_pairs": None if together is None else together.to_json(),
            "microbenchmarks": [
                asdict(each) | {"error": each.error, "is_right": each.is_right} for each in self.microbenchmarks
            ],
            "mechanisms": [
                {"device": device, "mechanism": name, "ratios": len(own), "right": sum(one.is_right for one in own)}
                for (device, name), own in self.by_mechanism().items()
            ],
        }


def evaluate_concurrency(
    folder: Path, profiles: Sequence[DeviceProfile] | None = None, progress: Progress = ignore
) -> tuple[ConcurrencyEvaluation | None, tuple[str, ...]]:
    """Simulate the tables of a folder for these devices, by default for all, None if there are none; and notes, one
    line each.

    Missing tables are left out, and noted. Raises MeasurementError for an unreadable one.
    """
    notes: list[str] = []
    done, total = count(1), len(_PAIRS) + len(_MICROBENCHMARKS)

    def places(tables: Sequence[_Table]) -> Iterator[tuple[_Table, Path, DeviceProfile]]:
        """Tables of chosen devices that are there."""
        for table in tables:
            path, profile = folder / table.file, profile_named(table.device, profiles)
            if profile is not None and path.exists():
                yield table, path, profile
            elif profile is not None:
                notes.append(f"no measurements at {path}: kernels side by side on {table.device} are left out")
            progress(next(done), total)

    fits, alike = (
        [tabulate(partial(table.make, path), profile, table.knob) for table, path, profile in places(tables)]
        for tables in (_PAIRS, _MICROBENCHMARKS)
    )
    if not (fits or alike):
        return None, tuple(notes)
    ratios = tuple(ratio for fit in alike for ratio in _micro_ratios(fit))
    return ConcurrencyEvaluation(tuple(_pair_errors(fits)) if fits else (), ratios), tuple(notes)


@dataclass(frozen=True)
class _Table:
    file: str
    device: str
    make: Callable[[Path, DeviceProfile], Sequence[CorunCase]] = lambda path, profile: ()
    knob: Knob | None = None


_PAIRS = (
    _Table(
        pairs.GRAPHS_FILE,
        pairs.GRAPHS_DEVICE,
        lambda path, profile: graph_pair_cases(pairs.read_graph_pairs(path), profile),
        GRAPH_BESIDE,
    ),
    _Table(
        pairs.STREAMS_FILE, pairs.STREAMS_DEVICE, lambda path, profile: stream_pair_cases(pairs.read_stream_pairs(path))
    ),
    _Table(
        pairs.PREFILL_FILE,
        pairs.PREFILL_DEVICE,
        lambda path, profile: prefill_pair_cases(pairs.read_prefill_pairs(path), profile),
    ),
)
_MICROBENCHMARKS = (
    _Table(micro.V100_FILE, micro.V100, lambda path, of: microbenchmark_cases(micro.read_v100(path), of)),
    _Table(micro.RTX_5090_FILE, micro.RTX_5090, lambda path, of: microbenchmark_cases(micro.read_rtx_5090(path), of)),
)


def _pair_errors(fits: Sequence[CorunFit]) -> list[PairErrors]:
    left_out = [fit.without_families() for fit in fits]
    ends = np.split(_intervals(fits, left_out), np.cumsum([len(one) for one in left_out])[:-1])
    found = []
    for fit, by_family, own in zip(fits, left_out, ends, strict=True):
        figures = [figure for case in fit.cases for figure in case.figures]
        without = fit.without_set()
        predicted = {
            "none": np.array([figure.none for figure in figures]),
            "sum": np.array([figure.total for figure in figures]),
            "in_sample": fit.in_sample(),
            "family": by_family,
            # Each data set is of a different device: without the set means without the device.
            "set": without,
            "device": without,
        }
        found.append(
            PairErrors(
                fit.cases[0].data_set,
                fit.cases[0].device,
                len(fit.cases),
                fit.measured,
                predicted,
                np.array([figure.stream is None for figure in figures]),
                by_family * own[:, 0],
                by_family * own[:, 1],
                "" if fit.knob is None else fit.knob.name,
                fit.value,
            )
        )
    return found


def _intervals(fits: Sequence[CorunFit], predicted: Sequence[Floats]) -> Floats:
    """Interval of nine in ten for each figure of all fits, over its prediction, ``[figures, 2]``.

    It is made from the residuals of slowdowns of other families, separately for hardly slowed ones (below
    :data:`_HARDLY`): quantiles valid for the next one (rank ``p (n + 1)``, as in conformal prediction).
    """
    families = [own for fit in fits for own in fit.families]
    is_slowdown = np.array([figure.stream is not None for fit in fits for case in fit.cases for figure in case.figures])
    ratios = np.concatenate(predicted)
    residuals = np.concatenate([fit.measured for fit in fits]) / ratios
    found = np.full((len(families), 2), np.nan)
    for index, own in enumerate(families):
        others = np.array([not own & other for other in families]) & is_slowdown
        alike = residuals[others & ((ratios < _HARDLY) == (ratios[index] < _HARDLY))]
        if len(alike) >= FEWEST_RESIDUALS:
            found[index] = np.quantile(alike, [TAIL, 1 - TAIL], method="weibull")
    return found


def _micro_ratios(fit: CorunFit) -> list[MicroRatio]:
    simulated = fit.in_sample().tolist()
    figures = [(case, figure) for case in fit.cases for figure in case.figures]
    return [
        MicroRatio(case.device, case.mechanism, case.title, case.line, figure.measured, ratio)
        for (case, figure), ratio in zip(figures, simulated, strict=True)
    ]
