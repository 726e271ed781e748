"""The state of the board in a recording: by how much a lower clock lengthens its rows, and nobody asks for.

A board that gets hot or draws more than its power limit lowers its clock, by what it has just done and by how it is cooled:
a nuisance of the recording, as the host's overhead is. Rows of equal work tell it. Where they take the longer the more
work ran in the rows before, the board slows; in recordings of boards that do not, they take the same (measured over
predicted rises by 0.11 to 0.23 a decade of that work on a P4 and a T4, by at most 0.07 on a P100, a V100 and an A100).

A lower clock adds to a row's time in proportion to its arithmetic, and the more of that, the heavier the row and those
before it. So the extra time is a sum of terms, each the arithmetic times a step of the load's logarithm, with coefficients
that are not negative: it is linear, and fitted together with the host's overhead, by the same machinery.

What such a recording cannot tell is the rate that the board sustains when all is well: that is what its power limit
allows. Nor does it tell what else grows with the size of a product, as memory does that is read again: a fit would take
the board's heat for that. Both stay what they are without any measurement (:func:`unslowed`), and devices that take
parameters from calibrated ones do not get them from such a board.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from iossim.calibration.neutral import NEUTRAL, facts_of
from iossim.hardware.kind import GPU
from iossim.hardware.profile import DeviceProfile, with_values
from iossim.hardware.transfer import PROCESS_GAIN
from iossim.measurements.measurement import Measurement, MeasurementSet

Floats = NDArray[np.float64]

#: Kinds whose recordings are asked: products keep all lanes busy, and their order has nothing to do with their shapes.
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
#: What 12 and 16 nm boards sustain in products, GFLOP/s a watt: two other recordings of a T4 (70 W), cuBLAS in a loop and a
#: framework's products one by one, have large fp32 products at 3.4 to 5.0 TFLOP/s, in the median at 4.1; and convolutions
#: of a P4 (75 W) run at 60 GFLOP/s a watt.
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
    """How much the logarithm of measured over predicted rises for ten times as much work before, among rows of equal work.

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
    """The profile with what slowed recordings do not tell as it is without them: the rate that the power limit allows, and
    values of no device."""
    gain = PROCESS_GAIN.get(profile.architecture, 1.0)
    rate = min(facts_of(profile).peak_gflops_per_watt, SUSTAINED_GFLOPS_PER_WATT * gain)
    return with_values(profile, {name: NEUTRAL.get(name, rate) for name in sorted(NOT_TOLD)})


def _steps(load_us: Floats, width: float, count: int) -> Floats:
    """Ramps from 0 to 1 over consecutive steps of the logarithm of the load, ``[rows, count]``."""
    logarithm = np.log10(np.maximum(load_us, 1.0))
    edges = _FIRST_STEP + width * np.arange(count)
    return np.asarray(np.clip((logarithm[:, None] - edges) / width, 0.0, 1.0))
