"""Nuisance parameters of a recording: the host's overhead, and a board that slows down.

*The host.* A recording of single calls that wait for the host adds the host's time to each call, whatever its shape;
over a long recording that time may drift. It is a constant, or a nonnegative cubic spline of the position in the
recording. A part of the host's work overlaps the kernel: a call takes ``host + max(device, floor)``, and a device time
below the floor is invisible (on a V100 an addition takes 32.4 us up to 3 MB and 34 us at 13 MB, where DRAM alone needs
15 us). A fit without the floor would attribute such rows to data that stays in L2.

*The profiler.* Nsight Compute runs kernels one at a time, and a duration includes the start and end of the kernel: some
3.5 us on a V100, whatever the kernel. That is a constant as well.

*The board.* A hot board, or one beyond its power limit, lowers its clock. Rows of equal work show it: they take longer
the more work ran in the rows before (measured over predicted rises by 0.11 to 0.23 per decade of that work on a P4 and
a T4, by at most 0.07 on a P100, a V100 and an A100). The extra time is a sum of terms, each a row's arithmetic times a
step of the load's logarithm, with nonnegative coefficients, fitted together with the host's overhead.

A slowed recording determines neither the rate that the board normally sustains, nor effects that also grow with the
size of a product, such as memory that is reread. Both keep their values without any measurement (:func:`unslowed`), and
are not transferred from such a board to other devices. Fits that know no device start from these (:func:`neutral`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import BSpline

from iossim.base.compiled import Floats, Integers
from iossim.base.shipped_yaml import shipped
from iossim.base.solvers import least_squares
from iossim.hardware.fits import GPU_SPACE
from iossim.hardware.kind import GPU
from iossim.hardware.lowering.kernel import Issue
from iossim.hardware.profile import DeviceProfile, with_values
from iossim.hardware.transfer import CAPS, BoardFacts
from iossim.measurements.measurement import Measurement, MeasurementSet

#: Number of rows of a drifting recording between two knots of the spline.
_ROWS_BETWEEN_KNOTS = 1000
_DEGREE = 3
#: Least device time in relative errors: beside the host's overhead, less is indistinguishable.
LEAST_US = 5.0
#: Larger relative residuals count linearly.
_OUTLIER = 0.1
#: Candidate floors, microseconds: host work of a framework's call, in steps that change few rows.
_FLOORS_US = np.arange(0.0, 61.0, 2.0)
#: A row is hidden if measurement and prediction are below the floor, up to this noise.
_FLOOR_NOISE = 1.1


def overhead_basis(measured: MeasurementSet, chosen: Sequence[Measurement]) -> Floats:
    """Basis functions of the overhead of ``chosen`` measurements of a set, shape ``[chosen, terms]``.

    No terms if there is no overhead, a constant if it does not drift or is a profiler's, else the B-splines over the
    whole recording. Nonnegative coefficients give a nonnegative overhead.
    """
    if measured.header.issue is Issue.PROFILER:
        return np.ones((len(chosen), 1))
    if not measured.header.includes_host_overhead:
        return np.zeros((len(chosen), 0))
    if not measured.header.host_overhead_drifts or not chosen:
        return np.ones((len(chosen), 1))
    found = zip(indices(measured, chosen).tolist(), chosen, strict=True)
    rows = np.array([float(index if m.row is None else m.row) for index, m in found])
    last = max(float(index if m.row is None else m.row) for index, m in enumerate(measured.measurements))
    pieces = max(1, round(last / _ROWS_BETWEEN_KNOTS))
    inner = np.linspace(0.0, last + 1.0, pieces + 1)
    knots = np.concatenate([[inner[0]] * _DEGREE, inner, [inner[-1]] * _DEGREE])
    return np.asarray(BSpline.design_matrix(rows, knots, _DEGREE).toarray(), dtype=np.float64)


def fit_overhead(
    basis: Floats, latency_us: Floats, device_us: Floats, least_us: float, with_floor: bool = False
) -> Floats:
    """Coefficients of the overhead that best explain latencies given device times: ``[terms]`` (and the floor).

    The fit is robust, relative to the device's time, with nonnegative coefficients.
    """
    if not with_floor:
        return _fit_terms(basis, latency_us, device_us, least_us)[0]
    found = [(*_fit_terms(basis, latency_us, np.maximum(device_us, floor), least_us), floor) for floor in _FLOORS_US]
    terms, _, floor = min(found, key=lambda each: each[1])
    return np.append(terms, floor)


def is_hidden(measured_us: Floats, expected_us: Floats, floor_us: float) -> NDArray[np.bool_]:
    """Mask of the rows that are below the floor, as predicted, ``[rows]``: they contain no more information."""
    return np.asarray((measured_us <= _FLOOR_NOISE * floor_us) & (expected_us <= floor_us))


def _fit_terms(basis: Floats, latency_us: Floats, device_us: Floats, least_us: float) -> tuple[Floats, float]:
    """Coefficients of ``basis``, and their cost."""
    terms = basis.shape[1]
    if terms == 0:
        return np.zeros(0), 0.0
    rest_us = latency_us - device_us
    weight = 1.0 / np.maximum(device_us, least_us)
    start = np.full(terms, max(1.0, float(np.median(rest_us))))
    found = least_squares(
        lambda c: (basis @ c - rest_us) * weight,
        start,
        jac=lambda c: basis * weight[:, None],
        bounds=(0.0, np.inf),
        loss="soft_l1",
        f_scale=_OUTLIER,
    )
    return np.asarray(found.x, dtype=np.float64), float(found.cost)


#: Kinds whose recordings are examined: products keep all lanes busy, in an order independent of shapes.
KINDS = frozenset({"linear", "gemm", "bmm"})
#: Number of previous rows whose work affects a row's time.
_ROWS_BEFORE = 4
#: A board slows if measured over predicted rises by more than this for ten times as much work before.
SLOWING = 0.1
#: Fewer rows that last long enough to be slowed are inconclusive; less work than this, at the peak, is too short.
_FEWEST_ROWS, _LEAST_WORK_US = 300, 200.0
#: Steps of the logarithm (to base 10) of the load in microseconds of work at the peak; the last one ends at 10 s.
_FIRST_STEP, _STEP, _STEPS = 2.0, 0.75, 6
#: Coefficients are microseconds for this much work at the peak.
_UNIT_US = 100.0
#: Sustained rate of 12 and 16 nm boards in products, GFLOP/s per watt: two other recordings of a T4 (70 W), cuBLAS in a
#: loop and a framework's products one by one, have large fp32 products at 3.4 to 5.0 TFLOP/s, in the median at 4.1; and
#: convolutions of a P4 (75 W) run at 60 GFLOP/s per watt.
SUSTAINED_GFLOPS_PER_WATT = 58.0
_RATE = "gemm_sustained_gflops_per_watt"
#: Parameters that a fit keeps constant if its products were recorded on a slowed board.
NOT_TOLD = frozenset(
    {_RATE, "gemm_overlap_norm", "reuse_l2_fraction", "drift_inner", "translation_penalty", "translation_reach_bytes"}
)


def indices(measured: MeasurementSet, chosen: Sequence[Measurement]) -> Integers:
    """Indices of ``chosen`` rows in their recording, ``[chosen]``."""
    position = {id(row): index for index, row in enumerate(measured.measurements)}
    return np.array([position[id(row)] for row in chosen], dtype=np.int64)


def work_us(measurements: Sequence[Measurement], profile: DeviceProfile) -> Floats:
    """Arithmetic of each row at the datasheet's peak, ``[rows]``."""
    return np.array([row.operator.flops for row in measurements], dtype=np.float64) / (1e6 * profile.fp32_tflops)


def load_before_us(work: Floats) -> Floats:
    """Work of the rows just before each row of a recording, ``[rows]``."""
    total = np.concatenate([[0.0], np.cumsum(work)])
    places = np.arange(len(work))
    return np.asarray(total[places] - total[np.maximum(0, places - _ROWS_BEFORE)])


def slowing(work: Floats, before: Floats, measured_us: Floats, predicted_us: Floats) -> float:
    """Increase of log(measured / predicted) for ten times as much work before, among rows of equal work.

    All arguments are ``[rows]``. Rows of the same half decade of work are equal; drift with the position in the
    recording and dependence on the prediction's distance from the peak are separated too. 0 if there are too few rows.
    """
    long_enough = work > _LEAST_WORK_US
    if np.count_nonzero(long_enough) < _FEWEST_ROWS:
        return 0.0
    work, before, position = work[long_enough], before[long_enough], np.linspace(0.0, 1.0, len(work))[long_enough]
    ratio = np.log(np.maximum(measured_us, 1.0) / predicted_us)[long_enough]
    own = _steps(work, 0.5, 9)
    far = np.log(predicted_us[long_enough] / work)
    load = np.log10(np.maximum(before, 10.0))
    columns = [np.ones_like(work), position, position**2, position**3, far, load]
    found, *_ = np.linalg.lstsq(np.column_stack([*own.T, *columns]), ratio, rcond=None)
    return float(found[-1])


def may_be_slowed(measured: MeasurementSet, profile: DeviceProfile) -> bool:
    """True where a recording could show the state of its board: products, call by call, in order."""
    header = measured.header
    kinds = set(measured.kinds)
    return header.includes_host_overhead and bool(kinds) and kinds <= KINDS and profile.kind == GPU


def slowed_basis(measured: MeasurementSet, chosen: Sequence[Measurement], profile: DeviceProfile) -> Floats:
    """Basis functions of the extra time of ``chosen`` rows of a slowed recording, ``[chosen, terms]``."""
    work = work_us(measured.measurements, profile)
    load = work + load_before_us(work)
    rows = indices(measured, chosen)
    return _steps(load[rows], _STEP, _STEPS) * (work[rows] / _UNIT_US)[:, None]


#: Values that are plausible for any GPU, by parameter.
NEUTRAL: dict[str, float] = shipped("iossim.calibration", "neutral.yaml")


def neutral(profile: DeviceProfile) -> DeviceProfile:
    """The profile with parameters that are independent of any device."""
    low, high = GPU_SPACE.bounds()
    middle = GPU_SPACE.values((low + high) / 2)
    # No throttling is assumed: that of a board is not known yet.
    caps = dict.fromkeys(CAPS, facts_of(profile).peak_gflops_per_watt)
    chosen = {name: NEUTRAL.get(name, caps.get(name, value)) for name, value in middle.items()}
    return with_values(profile, chosen)


def facts_of(profile: DeviceProfile) -> BoardFacts:
    """Facts that a transfer considers."""
    sheet = profile.datasheet
    return BoardFacts(
        profile.compute_capability, 1e3 * profile.fp32_tflops / profile.board_power_w, sheet.fp32_lanes_per_sm.value
    )


def unslowed(profile: DeviceProfile) -> DeviceProfile:
    """The profile with defaults for what slowed recordings do not determine: the power limit's rate, neutral values."""
    facts = facts_of(profile)
    rate = min(facts.peak_gflops_per_watt, SUSTAINED_GFLOPS_PER_WATT * facts.process_gain)
    return with_values(profile, {name: NEUTRAL.get(name, rate) for name in sorted(NOT_TOLD)})


def _steps(load_us: Floats, width: float, count: int) -> Floats:
    """Ramps from 0 to 1 over consecutive steps of the logarithm of the load, ``[rows, count]``."""
    logarithm = np.log10(np.maximum(load_us, 1.0))
    edges = _FIRST_STEP + width * np.arange(count)
    return np.asarray(np.clip((logarithm[:, None] - edges) / width, 0.0, 1.0))
