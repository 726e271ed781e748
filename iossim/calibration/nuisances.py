"""What a recording adds to the device's time: the host's overhead, and a board that slows down.

*The host.* A recording of single calls that wait for the host adds the host's time to each call, whatever its shape;
over a long recording that time may drift. It is a constant, or a cubic spline of the position in the recording that
is nowhere negative. A part of the host's work runs beside the kernel: a call takes ``host + max(device, floor)``, and
a device time below the floor cannot be seen (on a V100 an addition takes 32.4 us up to 3 MB and 34 us at 13 MB, where
DRAM alone needs 15 us). A fit without the floor takes such rows for data that stays in L2.

*The profiler.* Nsight Compute runs kernels one at a time, and a duration holds what starts and ends the kernel: some
3.5 us on a V100, whatever the kernel. That is a constant as well.

*The board.* A board that gets hot or draws more than its power limit lowers its clock. Rows of equal work show it: they
take longer the more work ran in the rows before (measured over predicted rises by 0.11 to 0.23 a decade of that work on
a P4 and a T4, by at most 0.07 on a P100, a V100 and an A100). The extra time is a sum of terms, each a row's arithmetic
times a step of the load's logarithm, with coefficients that are not negative, fitted together with the host's overhead.

A slowed recording cannot tell the rate that the board sustains when all is well, nor what else grows with the size of
a product, as memory does that is read again. Both stay what they are without any measurement (:func:`unslowed`), and
devices that take parameters from calibrated ones do not get them from such a board.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import BSpline

from iossim.base.solvers import least_squares
from iossim.calibration.neutral import NEUTRAL, facts_of
from iossim.hardware.kind import GPU
from iossim.hardware.lowering.kernel import Issue
from iossim.hardware.parameters import Floats
from iossim.hardware.profile import DeviceProfile, with_values
from iossim.hardware.transfer import PROCESS_GAIN
from iossim.measurements.measurement import Header, Measurement, MeasurementSet

#: Rows of a drifting recording between two knots of the spline.
_ROWS_BETWEEN_KNOTS = 1000
_DEGREE = 3
#: The least device time that an error is taken relative to: beside the host's overhead, less cannot be told.
LEAST_US = 5.0
#: Relative residuals beyond this count linearly.
_OUTLIER = 0.1
#: Floors that are tried, microseconds: host work of a framework's call, in steps that change few rows.
_FLOORS_US = np.arange(0.0, 61.0, 2.0)
#: A row is hidden where measurement and prediction stay below the floor, but for this noise.
_FLOOR_NOISE = 1.1


def overhead_basis(measured: MeasurementSet, chosen: Sequence[Measurement]) -> Floats:
    """The functions that the overhead of ``chosen`` measurements of a set is a sum of, shape ``[chosen, terms]``.

    No terms where there is no overhead, a constant where it does not drift or is a profiler's, else the B-splines over
    the whole recording. Coefficients that are not negative make an overhead that is not.
    """
    if measured.header.issue is Issue.PROFILER:
        return np.ones((len(chosen), 1))
    if not measured.header.includes_host_overhead:
        return np.zeros((len(chosen), 0))
    position = {id(m): index for index, m in enumerate(measured.measurements)}
    if not measured.header.host_overhead_drifts or not chosen:
        return np.ones((len(chosen), 1))
    rows = np.array([float(position[id(m)] if m.row is None else m.row) for m in chosen])
    last = max(float(index if m.row is None else m.row) for index, m in enumerate(measured.measurements))
    pieces = max(1, round(last / _ROWS_BETWEEN_KNOTS))
    inner = np.linspace(0.0, last + 1.0, pieces + 1)
    knots = np.concatenate([[inner[0]] * _DEGREE, inner, [inner[-1]] * _DEGREE])
    return np.asarray(BSpline.design_matrix(rows, knots, _DEGREE).toarray(), dtype=np.float64)


def least_device_us(header: Header) -> float:
    """The least device time of a set to which an error is relative."""
    has_overhead = header.includes_host_overhead or header.issue is Issue.PROFILER
    return max(header.resolution_us, LEAST_US if has_overhead else 0.5)


def fit_overhead(
    basis: Floats, latency_us: Floats, device_us: Floats, least_us: float, with_floor: bool = False
) -> Floats:
    """The overhead's coefficients that best explain latencies beside device times: ``[terms]`` (and the floor).

    Robust, relative to the device's time; no coefficient is negative.
    """
    if not with_floor:
        return _fit_terms(basis, latency_us, device_us, least_us)[0]
    found = [(*_fit_terms(basis, latency_us, np.maximum(device_us, floor), least_us), floor) for floor in _FLOORS_US]
    terms, _, floor = min(found, key=lambda each: each[1])
    return np.append(terms, floor)


def is_hidden(measured_us: Floats, expected_us: Floats, floor_us: float) -> NDArray[np.bool_]:
    """Which rows lie below the floor and are expected there, ``[rows]``: they tell nothing more."""
    return np.asarray((measured_us <= _FLOOR_NOISE * floor_us) & (expected_us <= floor_us))


def _fit_terms(basis: Floats, latency_us: Floats, device_us: Floats, least_us: float) -> tuple[Floats, float]:
    """Coefficients of ``basis``, and the cost that they leave."""
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


#: Kinds whose recordings are asked: products keep all lanes busy, in an order that is no matter of shapes.
KINDS = frozenset({"linear", "gemm", "bmm"})
#: Rows before a row whose work is seen in its time.
_ROWS_BEFORE = 4
#: A board slows if measured over predicted rises by more than this for ten times as much work before.
SLOWING = 0.1
#: Fewer rows that last long enough to be slowed tell nothing; less work than this, at the peak, is over before.
_FEWEST_ROWS, _LEAST_WORK_US = 300, 200.0
#: Steps of the logarithm (to base 10) of the load in microseconds of work at the peak; the last one ends at 10 s.
_FIRST_STEP, _STEP, _STEPS = 2.0, 0.75, 6
#: Coefficients are microseconds for as much work at the peak.
_UNIT_US = 100.0
#: What 12 and 16 nm boards sustain in products, GFLOP/s a watt: two other recordings of a T4 (70 W), cuBLAS in a loop
#: and a framework's products one by one, have large fp32 products at 3.4 to 5.0 TFLOP/s, in the median at 4.1; and
#: convolutions of a P4 (75 W) run at 60 GFLOP/s a watt.
SUSTAINED_GFLOPS_PER_WATT = 58.0
_RATE = "gemm_sustained_gflops_per_watt"
#: What a fit holds where its products were recorded on a slowed board.
NOT_TOLD = frozenset(
    {_RATE, "gemm_overlap_norm", "reuse_l2_fraction", "drift_inner", "translation_penalty", "translation_reach_bytes"}
)


def work_us(measurements: Sequence[Measurement], profile: DeviceProfile) -> Floats:
    """Arithmetic of each row at the datasheet's peak, ``[rows]``."""
    return np.array([row.operator.flops for row in measurements], dtype=np.float64) / (1e6 * profile.fp32_tflops)


def load_before_us(work: Floats) -> Floats:
    """Work of the rows just before each row of a recording, ``[rows]``."""
    total = np.concatenate([[0.0], np.cumsum(work)])
    places = np.arange(len(work))
    return np.asarray(total[places] - total[np.maximum(0, places - _ROWS_BEFORE)])


def slowing(work: Floats, before: Floats, measured_us: Floats, predicted_us: Floats) -> float:
    """How much log(measured / predicted) rises for ten times as much work before, among rows of equal work.

    All arguments are ``[rows]``. Equal are rows of the same half decade of work; what drifts with the position in the
    recording and what depends on how far a prediction is from the peak is set apart too. 0 where few rows tell.
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
    """Whether a recording could show the state of its board: products, call by call, in order."""
    header = measured.header
    kinds = set(measured.kinds)
    return header.includes_host_overhead and bool(kinds) and kinds <= KINDS and profile.kind == GPU


def slowed_basis(measured: MeasurementSet, chosen: Sequence[Measurement], profile: DeviceProfile) -> Floats:
    """The functions that the extra time of ``chosen`` rows of a slowed recording is a sum of, ``[chosen, terms]``."""
    work = work_us(measured.measurements, profile)
    load = work + load_before_us(work)
    position = {id(row): index for index, row in enumerate(measured.measurements)}
    rows = np.array([position[id(row)] for row in chosen], dtype=np.int64)
    return _steps(load[rows], _STEP, _STEPS) * (work[rows] / _UNIT_US)[:, None]


def unslowed(profile: DeviceProfile) -> DeviceProfile:
    """The profile with what slowed recordings do not tell: the rate of the power limit, and neutral values."""
    gain = PROCESS_GAIN.get(profile.architecture, 1.0)
    rate = min(facts_of(profile).peak_gflops_per_watt, SUSTAINED_GFLOPS_PER_WATT * gain)
    return with_values(profile, {name: NEUTRAL.get(name, rate) for name in sorted(NOT_TOLD)})


def _steps(load_us: Floats, width: float, count: int) -> Floats:
    """Ramps from 0 to 1 over consecutive steps of the logarithm of the load, ``[rows, count]``."""
    logarithm = np.log10(np.maximum(load_us, 1.0))
    edges = _FIRST_STEP + width * np.arange(count)
    return np.asarray(np.clip((logarithm[:, None] - edges) / width, 0.0, 1.0))
