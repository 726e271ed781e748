"""Transfer to devices without measurements, and its refinement with a handful of them.

``iossim.hardware.transfer`` transfers parameters. Refinement is a maximum a posteriori fit: the transferred values are
the centre of a normal prior, whose widths are the distances between calibrated devices. Common factors of arithmetic,
of memory and of dispatch come first, with their own prior widths: a device that is slower than expected is so in all of
its kernels, before it is in one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from iossim.base.compiled import Floats
from iossim.base.solvers import least_squares
from iossim.calibration.accuracy import band_key
from iossim.calibration.fit import OUTLIER, relative_errors
from iossim.calibration.nuisances import facts_of
from iossim.calibration.samples import OperatorSamples
from iossim.hardware.fits import GPU_SPACE
from iossim.hardware.names import own_names
from iossim.hardware.parameters import CALL
from iossim.hardware.profile import DeviceProfile, with_values
from iossim.hardware.transfer import ARITHMETIC, CAPS, MEMORY, SourceDevice, transfer_table, transferred_provenance
from iossim.measurements.measurement import MeasurementSet, unusable
from iossim.measurements.measurement_set import check_plausible, read_measurements

#: Prior widths of the logarithms of the common factors.
_FACTOR_WIDTHS = {"arithmetic": 0.12, "memory": 0.12, "call": 0.3}
#: Least prior width of a parameter itself, relative to the width of its bounds, whatever the sources suggest.
_LEAST_WIDTH = 0.02
#: Remaining relative error of a prediction with the right parameters.
_MODEL_ERROR = 0.12
#: Prior width of the drift of the host's overhead over a recording, microseconds between neighbouring coefficients.
_DRIFT_US = 100.0
_ROUNDS = 40
_STEP = 1e-3
#: Fewer usable measurements than this refine nothing.
FEWEST_SAMPLES = 3


def source_device(
    profile: DeviceProfile, boards: Sequence[str] = (), fitted: Mapping[str, float] | None = None
) -> SourceDevice:
    """A calibrated profile as a source; ``fitted`` replaces its own values."""
    own = fitted if fitted is not None else GPU_SPACE.values(GPU_SPACE.to_vector(profile.parameter_values))
    return SourceDevice(
        boards=list(boards) or [profile.name],
        compute_capability=profile.compute_capability,
        peak_gflops_per_watt=facts_of(profile).peak_gflops_per_watt,
        values=dict(own),
    )


def source_spread(sources: Sequence[SourceDevice]) -> Floats:
    """Prior width of each parameter of a vector: the spread of the sources, within reasonable limits."""
    width = GPU_SPACE.scales()
    least = _LEAST_WIDTH * width
    if len(sources) < 2:
        return 0.1 * width
    result = []
    for parameter, whole in zip(GPU_SPACE.parameters, width.tolist(), strict=True):
        own = [parameter.to_vector(one.values[parameter.name]) for one in sources if parameter.name in one.values]
        result.append(float(np.std(own, ddof=1)) if len(own) > 1 else 0.1 * whole)
    return np.asarray(np.clip(np.array(result), least, 0.25 * width))


def refine_by(profile: DeviceProfile, path: Path) -> DeviceProfile:
    """:func:`refine` by the measurements in a file."""
    return refine(profile, read_measurements(path, profile.name, fewest=FEWEST_SAMPLES))


def refine(profile: DeviceProfile, samples: MeasurementSet) -> DeviceProfile:
    """The profile, moved from its transferred parameters as far as a few measurements of the device justify.

    Raises MeasurementError if the measurements are too few, or cannot be of the device.
    """
    if samples.device in own_names() and samples.device != profile.name:
        raise unusable(samples.name, f"recorded on {samples.device}, not on {profile.name}; give samples of that one")
    usable = check_plausible(samples, profile)
    rows = [row for row in usable.measurements if not row.is_cold]
    if len(rows) < FEWEST_SAMPLES:
        problem = f"{len(rows)} usable operators, at least {FEWEST_SAMPLES} are needed to refine a profile"
        raise unusable(samples.name, f"{problem}; measure about 20 of different sizes")
    table, kinds = transfer_table(), {band_key(row.operator) for row in rows}
    found = refined_values(profile, OperatorSamples.of(usable, rows, profile, float(len(rows))), table.sources)
    moved = with_values(profile, {name: float(f"{value:.4g}") for name, value in found.items()})
    return moved.model_copy(update={"provenance": transferred_provenance(table, len(rows), kinds)})


def refined_values(
    profile: DeviceProfile, samples: OperatorSamples, sources: Sequence[SourceDevice]
) -> dict[str, float]:
    """Most probable fitted parameters given ``samples``; see the module."""
    origin = GPU_SPACE.to_vector(profile.parameter_values)
    low, high = GPU_SPACE.bounds()
    width = source_spread(sources)
    names = GPU_SPACE.names
    factor_of = {
        "arithmetic": np.array([name in ARITHMETIC or name in CAPS for name in names]),
        "memory": np.array([name in MEMORY for name in names]),
        "call": np.array([name in CALL for name in names]),
    }
    logarithmic = np.array([parameter.is_logarithmic for parameter in GPU_SPACE.parameters])
    factor_widths = np.array(list(_FACTOR_WIDTHS.values()))
    count, factors = len(origin), len(factor_widths)

    def vector_of(entries: Floats) -> Floats:
        vector = origin + entries[:count] * width
        for entry, is_in in zip(entries[count : count + factors] * factor_widths, factor_of.values(), strict=True):
            vector = np.where(is_in, np.where(logarithmic, vector + entry, vector * np.exp(entry)), vector)
        return np.asarray(np.clip(vector, low, high))

    def residuals(entries: Floats) -> Floats:
        overhead = np.abs(entries[count + factors :])
        candidate = with_values(profile, GPU_SPACE.values(vector_of(entries)))
        parts = relative_errors(samples, candidate, overhead)
        return np.concatenate(
            [
                *(part / _MODEL_ERROR for part in parts),
                entries[: count + factors],
                np.diff(overhead[: samples.host_terms]) / _DRIFT_US,
            ]
        )

    device_us, _ = samples.predict(profile)
    nuisances = np.maximum(samples.fit_nuisances(device_us), 1.0)
    start = np.concatenate([np.zeros(count + factors), nuisances])
    scale = np.concatenate([np.ones(count + factors), np.full(len(nuisances), 100.0)])
    found = least_squares(
        residuals,
        start,
        loss="soft_l1",
        f_scale=2 * OUTLIER / _MODEL_ERROR,
        x_scale=scale,
        diff_step=_STEP,
        max_nfev=_ROUNDS,
    )
    return GPU_SPACE.values(vector_of(found.x))
