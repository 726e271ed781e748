"""Concurrent kernels measured against ``corun``: microbenchmarks by mechanism, pairs by data set, and placement of
blocks.

Errors of slowdowns are compared with those of two models that know nothing of kernels: no interference, and equal parts
of the device for each (so that the whole takes as long as the sum). *In-sample* is the profile as it ships; *left out*
are fits that did not see what they are judged by: the families of the kernels, the data set, the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evidence.concurrency import block_placement, microbenchmarks, pairs
from evidence.concurrency.block_placement import PlacedKernel
from evidence.concurrency.corun_cases import CorunCase
from evidence.concurrency.corun_fit import GRAPH_BESIDE, CorunFit, Knob, tabulate
from evidence.concurrency.corun_microbenchmarks import microbenchmark_cases
from evidence.concurrency.corun_pairs import graph_pair_cases, prefill_pair_cases, stream_pair_cases
from iossim.backends.simulator.events.multiprocessors import scheduling_order
from iossim.calibration.accuracy import FEWEST_RESIDUALS, TAIL, coverage, width
from iossim.hardware.load import device
from iossim.hardware.profile import DeviceProfile

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Progress = Callable[[int, int], None]

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
    def of(predicted: Floats, measured: Floats) -> RatioErrors:
        size = np.abs(predicted / measured - 1.0)
        return RatioErrors(float(np.median(size)), float(np.mean(size)), float(np.quantile(size, 0.9)))

    def to_json(self) -> dict[str, float]:
        return {"median": self.median, "mean": self.mean, "percentile_90": self.percentile_90}


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
        known = ~self.is_whole & np.isfinite(self.low)
        return coverage(self.low[known], self.high[known], self.measured[known])

    @property
    def width(self) -> float | None:
        """Median high over low of the slowdowns' intervals."""
        known = ~self.is_whole & np.isfinite(self.low)
        return width(self.low[known], self.high[known])

    @staticmethod
    def all_of(several: Sequence[PairErrors]) -> PairErrors:
        """Figures of several sets joined as one."""
        return PairErrors(
            ALL_PAIRS,
            ", ".join(dict.fromkeys(one.device for one in several)),
            sum(one.pairs for one in several),
            np.concatenate([one.measured for one in several]),
            {model: np.concatenate([one.predicted[model] for one in several]) for model in MODELS},
            np.concatenate([one.is_whole for one in several]),
            np.concatenate([one.low for one in several]),
            np.concatenate([one.high for one in several]),
        )

    def _errors(self, among: Bools) -> dict[str, RatioErrors]:
        return {model: RatioErrors.of(of[among], self.measured[among]) for model, of in self.predicted.items()}

    def to_json(self) -> dict[str, Any]:
        return {
            "data_set": self.data_set,
            "device": self.device,
            "pairs": self.pairs,
            "slowdowns": {model: errors.to_json() for model, errors in self.slowdowns.items()},
            "makespans": {model: errors.to_json() for model, errors in self.makespans.items()},
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

    def to_json(self) -> dict[str, Any]:
        return {
            "device": self.device,
            "mechanism": self.mechanism,
            "title": self.title,
            "line": self.line,
            "measured": self.measured,
            "simulated": self.simulated,
            "error": self.error,
            "is_right": self.is_right,
        }


@dataclass(frozen=True, slots=True)
class Placement:
    """Fraction of a kernel's blocks that ran on the predicted SM: by the engine's order, by clusters in turn, by SM
    number, by chance.
    """

    device: str
    kernel: str
    blocks: int
    foretold: float
    in_turn: float
    by_number: float
    chance: float

    def to_json(self) -> dict[str, Any]:
        names = ("device", "kernel", "blocks", "foretold", "in_turn", "by_number", "chance")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class ConcurrencyEvaluation:
    """All results for concurrent kernels in the shared tables."""

    pairs: tuple[PairErrors, ...] = ()
    microbenchmarks: tuple[MicroRatio, ...] = ()
    placements: tuple[Placement, ...] = ()

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
            "microbenchmarks": [each.to_json() for each in self.microbenchmarks],
            "mechanisms": [
                {
                    "device": device,
                    "mechanism": mechanism,
                    "ratios": len(own),
                    "right": sum(one.is_right for one in own),
                }
                for (device, mechanism), own in self.by_mechanism().items()
            ],
            "placements": [each.to_json() for each in self.placements],
        }


def evaluate_concurrency(
    folder: Path, profiles: Sequence[DeviceProfile] | None = None, progress: Progress = lambda done, total: None
) -> tuple[ConcurrencyEvaluation | None, tuple[str, ...]]:
    """Simulate the tables of a folder for these devices, by default for all, None if there are none; and notes, one
    line each.

    Missing tables are left out, and noted. Raises MeasurementError for an unreadable one.
    """
    chosen = None if profiles is None else {profile.name: profile for profile in profiles}
    fits: list[CorunFit] = []
    micro: list[MicroRatio] = []
    placements: list[Placement] = []
    notes: list[str] = []
    tables = _tables()
    for done, table in enumerate(tables):
        path = folder / table.file
        if chosen is None or table.device in chosen:
            profile = device(table.device) if chosen is None else chosen[table.device]
            if not path.exists():
                notes.append(f"no measurements at {path}: kernels side by side on {table.device} are left out")
            elif table.placements:
                placements += [_placement(one, profile) for one in block_placement.read_placements(path)]
            else:
                fit = tabulate(partial(table.make, path), profile, table.knob)
                if table.is_pairs:
                    fits.append(fit)
                else:
                    micro += _micro_ratios(fit)
        progress(done + 1, len(tables))
    if not (fits or micro or placements):
        return None, tuple(notes)
    return ConcurrencyEvaluation(tuple(_pair_errors(fits)) if fits else (), tuple(micro), tuple(placements)), tuple(
        notes
    )


@dataclass(frozen=True)
class _Table:
    file: str
    device: str
    make: Callable[[Path, DeviceProfile], Sequence[CorunCase]] = lambda path, profile: ()
    knob: Knob | None = None
    is_pairs: bool = False
    placements: bool = False


def _tables() -> tuple[_Table, ...]:
    return (
        _Table(
            pairs.GRAPHS_FILE,
            pairs.GRAPHS_DEVICE,
            lambda path, profile: graph_pair_cases(pairs.read_graph_pairs(path), profile),
            GRAPH_BESIDE,
            is_pairs=True,
        ),
        _Table(
            pairs.STREAMS_FILE,
            pairs.STREAMS_DEVICE,
            lambda path, profile: stream_pair_cases(pairs.read_stream_pairs(path)),
            is_pairs=True,
        ),
        _Table(
            pairs.PREFILL_FILE,
            pairs.PREFILL_DEVICE,
            lambda path, profile: prefill_pair_cases(pairs.read_prefill_pairs(path), profile),
            is_pairs=True,
        ),
        _Table(
            microbenchmarks.V100_FILE,
            microbenchmarks.V100,
            lambda path, profile: microbenchmark_cases(microbenchmarks.read_v100(path), profile),
        ),
        _Table(
            microbenchmarks.RTX_5090_FILE,
            microbenchmarks.RTX_5090,
            lambda path, profile: microbenchmark_cases(microbenchmarks.read_rtx_5090(path), profile),
        ),
        _Table(block_placement.FILE, block_placement.DEVICE, placements=True),
    )


def _pair_errors(fits: Sequence[CorunFit]) -> list[PairErrors]:
    left_out = [fit.without_families() for fit in fits]
    intervals = _intervals(fits, left_out)
    found = []
    begin = 0
    for fit, by_family in zip(fits, left_out, strict=True):
        figures = [figure for case in fit.cases for figure in case.figures]
        own = intervals[begin : begin + len(figures)]
        begin += len(figures)
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


def _placement(placed: PlacedKernel, profile: DeviceProfile) -> Placement:
    sms = profile.sm_count
    order = scheduling_order(profile)
    clusters = profile.datasheet.sms_per_gpc
    return Placement(
        profile.name,
        placed.name,
        len(placed.sms),
        _agree(placed.sms, sorted(range(sms), key=order.__getitem__)),
        _agree(placed.sms, _in_turn([sms] if clusters is None else clusters.value)),
        _agree(placed.sms, range(sms)),
        1.0 / sms,
    )


def _agree(placed: Sequence[int], foretold: Sequence[int]) -> float:
    return sum(a == foretold[index % len(foretold)] for index, a in enumerate(placed)) / len(placed)


def _in_turn(clusters: Sequence[int]) -> list[int]:
    """One block per cluster in turn, whatever their sizes."""
    before = [sum(clusters[:index]) for index in range(len(clusters))]
    rounds = range(max(clusters))
    return [start + turn for turn in rounds for start, size in zip(before, clusters, strict=True) if turn < size]
