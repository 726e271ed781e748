"""Kernels measured side by side against ``corun``: microbenchmarks by mechanism, pairs by data set, and where blocks went.

Errors of slowdowns stand beside those of two models that know nothing of kernels: that they do not disturb each other, and
that each has an equal part of the device (so that the whole takes as long as the sum). *In-sample* is the profile as it ships;
*left out* are fits that did not see what they are judged by: the families of the kernels, the data set, the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iossim.backends.simulator.events.multiprocessors import scheduling_order
from iossim.calibration.corun_cases import CorunCase
from iossim.calibration.corun_fit import GRAPH_BESIDE, CorunFit, Knob, tabulate
from iossim.calibration.corun_microbenchmarks import microbenchmark_cases
from iossim.calibration.corun_pairs import graph_pair_cases, prefill_pair_cases, stream_pair_cases
from iossim.devices.load import device
from iossim.devices.profile import DeviceProfile
from iossim.measurements.concurrency import block_placement, microbenchmarks, pairs
from iossim.measurements.concurrency.block_placement import PlacedKernel
from iossim.prediction.bands import TAIL

Floats = NDArray[np.float64]
Progress = Callable[[int, int], None]

#: A simulated ratio this near to the measured one is right.
RIGHT = 0.10


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


#: The models of a pair's table, in its order.
MODELS = ("none", "sum", "in_sample", "family", "set", "device")


@dataclass(frozen=True)
class PairErrors:
    """A data set of pairs: errors of slowdowns, and of makespans, by the names of :data:`MODELS`.

    ``within`` is the part of slowdowns in intervals of nine in ten made of the other families' residuals, ``width`` their
    median high over low; None where there are too few of those.
    """

    data_set: str
    device: str
    pairs: int
    slowdowns: dict[str, RatioErrors]
    makespans: dict[str, RatioErrors]
    fitted: str
    value: float | None
    within: float | None
    width: float | None

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
    """The part of a kernel's blocks that ran on the SM foretold: by the engine's order, by clusters in plain turn, by SM
    number, by chance."""

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
    """All that the shared tables tell of kernels side by side."""

    pairs: tuple[PairErrors, ...] = ()
    microbenchmarks: tuple[MicroRatio, ...] = ()
    placements: tuple[Placement, ...] = ()

    def by_mechanism(self) -> dict[tuple[str, str], list[MicroRatio]]:
        """The microbenchmarks of each device and mechanism, in their order."""
        found: dict[tuple[str, str], list[MicroRatio]] = {}
        for each in self.microbenchmarks:
            found.setdefault((each.device, each.mechanism), []).append(each)
        return found

    def to_json(self) -> dict[str, Any]:
        return {
            "pairs": [each.to_json() for each in self.pairs],
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
    folder: Path,
    profiles: Sequence[DeviceProfile] | None = None,
    progress: Progress = lambda done, total: None,
) -> tuple[ConcurrencyEvaluation | None, tuple[str, ...]]:
    """Simulate what the tables of a folder hold of these devices, by default of all, None of none; and notes, a line each.

    Tables that are not there are left out, and noted. Raises MeasurementError for one that cannot be read.
    """
    chosen = None if profiles is None else {profile.name: profile for profile in profiles}
    found_pairs: list[PairErrors] = []
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
                    found_pairs.append(_pair_errors(path.stem, profile, fit))
                else:
                    micro += _micro_ratios(fit)
        progress(done + 1, len(tables))
    if not (found_pairs or micro or placements):
        return None, tuple(notes)
    return ConcurrencyEvaluation(tuple(found_pairs), tuple(micro), tuple(placements)), tuple(notes)


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


def _pair_errors(name: str, profile: DeviceProfile, fit: CorunFit) -> PairErrors:
    figures = [figure for case in fit.cases for figure in case.figures]
    whole = np.array([figure.stream is None for figure in figures])
    measured = fit.measured
    by_family, without = fit.without_families(), fit.without_set()
    # Every data set is of a device of its own: without the set is without the device.
    models = {
        "none": np.array([figure.none for figure in figures]),
        "sum": np.array([figure.total for figure in figures]),
        "in_sample": fit.in_sample(),
        "family": by_family,
        "set": without,
        "device": without,
    }
    within, width = _coverage(
        by_family[~whole], measured[~whole], [own for own, of in zip(fit.families, whole, strict=True) if not of]
    )
    return PairErrors(
        name,
        profile.name,
        len(fit.cases),
        {model: RatioErrors.of(of[~whole], measured[~whole]) for model, of in models.items()},
        {model: RatioErrors.of(of[whole], measured[whole]) for model, of in models.items()},
        "" if fit.knob is None else fit.knob.name,
        fit.value,
        within,
        width,
    )


def _coverage(
    predicted: Floats, measured: Floats, families: Sequence[frozenset[str]]
) -> tuple[float | None, float | None]:
    """Each ratio's interval from those of cases of other families: as quantiles that hold for the next one."""
    residual = measured / predicted
    inside: list[bool] = []
    widths: list[float] = []
    for index, own in enumerate(families):
        others = np.array([not own & other for other in families])
        if others.sum() < 2:
            continue
        low, high = np.quantile(residual[others], [TAIL, 1 - TAIL], method="weibull").tolist()
        inside.append(low <= residual[index] <= high)
        widths.append(high / low)
    return (float(np.mean(inside)), float(np.median(widths))) if inside else (None, None)


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
    """A block a cluster in plain turn, whatever their sizes."""
    before = [sum(clusters[:index]) for index in range(len(clusters))]
    rounds = range(max(clusters))
    return [start + turn for turn in rounds for start, size in zip(before, clusters, strict=True) if turn < size]
