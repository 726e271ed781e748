"""Whether a set may be of another device than its label says.

Two signs. Kernels carry the name of the architecture that they were compiled for: they run on none before it, and libraries
have newer ones for those that come two generations later. And a set that its own device, as it was before, explains badly
may be explained far better by another one that ships: devices differ by factors, uncalibrated profiles are off by some tens
of per cent.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import numpy as np

from iossim.calibration.residuals import device_times
from iossim.calibration.samples import OperatorSamples, fit_nuisances, hidden
from iossim.hardware.compute_capability import Architecture
from iossim.hardware.kind import GPU
from iossim.hardware.load import device, shipped_names
from iossim.hardware.profile import DeviceProfile
from iossim.measurements.measurement import MeasurementError, MeasurementSet

#: The typical factor (a median over rows) between predicted and measured time from which a label is doubted, if the
#: logarithm of another device's is at most a half of it.
DOUBTFUL_FACTOR = 1.4
BETTER_PART = 0.5
#: The same for a refusal; the other device's factor must be below ``CLOSE_FACTOR`` then.
REFUSED_FACTOR = 1.8
MUCH_BETTER_PART = 0.34
CLOSE_FACTOR = 1.25
#: From this factor on, any device that is nearer to that extent will do.
HOPELESS_FACTOR = 4.0
#: What DOUBTFUL_FACTOR and REFUSED_FACTOR are where kernels are named for an architecture two generations before the device's or more.
OLD_KERNELS_FACTOR = 1.15
#: Rows that are looked at.
_ROWS = 120
#: Fewer rows than this tell no device from another.
_FEWEST = 20

_AGES = {architecture: age for age, architecture in enumerate(Architecture)}


def check_label(measured: MeasurementSet, profile: DeviceProfile, trusts_labels: bool = False) -> MeasurementSet:
    """The set, with a note if its label is in doubt.

    Raises MeasurementError if it cannot be of this device, or looks very much like another one that ships; the latter
    only where the label is itself a device that ships, and labels are not to be trusted.
    """
    _check_architecture(measured, profile)
    # A CPU's set is of no GPU; which CPU it is of, rows do not tell.
    if profile.kind != GPU or trusts_labels or len(measured.measurements) < _FEWEST:
        return measured
    chosen = np.unique(np.linspace(0, len(measured.measurements) - 1, _ROWS).astype(int)).tolist()
    part = replace(measured, measurements=tuple(measured.measurements[index] for index in chosen))
    own = _typical_error(part, profile)
    is_old = _has_only_old_kernels(measured, profile)
    if own < np.log(OLD_KERNELS_FACTOR if is_old else DOUBTFUL_FACTOR):
        return measured
    names = [name for name in shipped_names() if name != profile.name]
    errors = {name: _typical_error(part, device(name)) for name in names}
    nearest = min(names, key=lambda name: errors[name])
    least = errors[nearest]
    if least > BETTER_PART * own:
        return measured
    doubt = (
        f"the rows are off by a factor of {np.exp(own):.2f} for {profile.name}, by {np.exp(least):.2f} for {nearest}"
    )
    refused = np.log(OLD_KERNELS_FACTOR if is_old else REFUSED_FACTOR)
    is_clear = own > np.log(HOPELESS_FACTOR) or (
        own > refused and least < min(np.log(CLOSE_FACTOR), MUCH_BETTER_PART * own)
    )
    if is_clear and profile.name in shipped_names():
        raise MeasurementError(
            f"measurements {measured.name}: {doubt}; is the device right? give `device` {nearest}, "
            "or `trust_labels` if it is"
        )
    return replace(measured, notes=(*measured.notes, f"{measured.name}: {doubt}: is the device right?"))


def _check_architecture(measured: MeasurementSet, profile: DeviceProfile) -> None:
    """Refuse kernels compiled for an architecture after the device's."""
    counts = _architectures(measured)
    if profile.kind != GPU:
        if counts:
            raise MeasurementError(
                f"measurements {measured.name}: {sum(counts.values()):,} rows ran kernels of GPUs, {profile.name} is "
                f"a {profile.device_kind.noun}; give the device that was measured with `device`"
            )
        return
    newer = [name for name in _AGES if _AGES[name] > _AGES[Architecture(profile.architecture)] and counts[name]]
    if newer:
        raise MeasurementError(
            f"measurements {measured.name}: {counts[newer[-1]]:,} rows ran kernels made for {newer[-1]}, which do not run on "
            f"{profile.name} ({profile.architecture}); give the device that was measured with `device`"
        )


def _has_only_old_kernels(measured: MeasurementSet, profile: DeviceProfile) -> bool:
    """Whether names of architectures are all those of two generations before the device's, or more."""
    ages = [_AGES[name] for name in _architectures(measured)]
    return bool(ages) and max(ages) <= _AGES[Architecture(profile.architecture)] - 2


def _architectures(measured: MeasurementSet) -> Counter[Architecture]:
    """How many rows ran kernels named for each architecture."""
    return Counter(name for row in measured.measurements for name in set(_named(row.kernels)))


def _named(kernels: tuple[str, ...]) -> list[Architecture]:
    """The architectures that names of kernels begin with."""
    names = (re.match(r"[a-z]+", kernel) for kernel in kernels)
    known = {str(architecture): architecture for architecture in _AGES}
    return [known[name[0]] for name in names if name and name[0] in known]


def _typical_error(measured: MeasurementSet, profile: DeviceProfile) -> float:
    """The median of the absolute logarithm of predicted over measured device time, beside the overhead that fits best.

    Of rows that the host does not hide; 0 where it hides all.
    """
    samples = OperatorSamples.of(measured, measured.measurements, profile, 1.0)
    predicted_us, _ = samples.predict(profile)
    overhead = fit_nuisances(samples, predicted_us)
    is_shown = ~hidden(samples, predicted_us, overhead)
    if not is_shown.any():
        return 0.0
    predicted_us, measured_us = device_times(samples, profile, overhead)
    return float(np.median(np.abs(np.log(predicted_us / measured_us)[is_shown])))
