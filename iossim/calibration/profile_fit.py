"""From measurements, and what is published, to the profiles that are written: kernels first, then concurrency.

What published networks are foretold from is fitted without any memory of them: from a starting point that knows no device,
and for each network once more without that network, in both fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from iossim.calibration.calibrate import FOLDS, Calibration, DeviceData, Progress, calibrate
from iossim.calibration.concurrency_fit import borrowing, fit_concurrency, lent_by
from iossim.calibration.neutral import facts_of, neutral
from iossim.calibration.published_networks import published_models, sequences
from iossim.calibration.samples import SequenceSamples
from iossim.devices.kinds.gpu import GPU_SPACE
from iossim.devices.parameters import CALL
from iossim.devices.profile import DeviceProfile, with_values
from iossim.devices.transfer import CAPS, transfer_table, transferred_values
from iossim.measurements.operator import HELD_OUT_FRACTION


@dataclass(frozen=True, eq=False)
class FittedProfiles:
    """``profile`` is the first device's; ``sisters`` are the other boards', which share its parameters.

    ``is_concurrency_fitted`` says whether anything told the parameters of concurrency, which are borrowed otherwise.
    """

    kernels: Calibration
    profile: DeviceProfile
    sisters: tuple[DeviceProfile, ...]
    is_concurrency_fitted: bool


def fit_profiles(
    data: Sequence[DeviceData],
    *,
    published: bool = False,
    date: str | None = None,
    held_out: float = HELD_OUT_FRACTION,
    folds: int = FOLDS,
    seed: int = 0,
    trusts_labels: bool = False,
    progress: Progress = lambda label, done, total: None,
) -> FittedProfiles:
    """Fit all that the data of boards with one chip tells; see :func:`~iossim.calibration.calibrate.calibrate`.

    ``published`` figures of the devices are fitted too: networks unit after unit with the kernels, schedules afterwards.
    Raises MeasurementError for sets that cannot be right.
    """
    models = published_models(data[0].profile.name) if published else ()
    if models:
        data = [replace(one, profile=uninformed(one.profile)) for one in data]

    elif data[0].profile.device_kind.borrows:
        data = [replace(one, profile=_with_calls_of_others(one.profile, data)) for one in data]

    def networks(without: str = "") -> list[SequenceSamples]:
        return [sample for one in data for sample in sequences(one.profile, without)] if published else []

    kernels = calibrate(
        data,
        date=date,
        held_out=held_out,
        folds=folds,
        seed=seed,
        trusts_labels=trusts_labels,
        further=networks(),
        leaving_out={model: networks(model) for model in models},
        progress=progress,
    )
    stages = [measured for one in data for measured in one.sets if measured.stages]
    profile = fit_concurrency(kernels.profile, stages, published, seed=seed, progress=progress)
    is_fitted = profile is not kernels.profile
    names = [
        *GPU_SPACE.names,
        *profile.device_kind.concurrency.values(profile.device_kind.concurrency.to_vector(profile.parameter_values)),
    ]
    left_out: dict[str, dict[str, float]] = {}
    for model in models:
        start = with_values(kernels.profile, kernels.left_out[model])
        found = fit_concurrency(start, stages, published, without=model, seed=seed)
        own = found.parameter_values
        left_out[model] = {name: own[name] for name in names}
    if left_out:
        provenance = profile.provenance.model_copy(update={"left_out": left_out})
        profile = profile.model_copy(update={"provenance": provenance})
    sisters = kernels.profiles[1:]
    lent = lent_by(profile) if is_fitted else transfer_table().concurrency
    if not set(kernels.fit.space.names) & set(profile.device_kind.kernels.names):
        lent = None  # rows of tensor cores alone change nothing else
    if lent is not None and profile.device_kind.borrows:
        sisters = tuple(borrowing(one, lent) for one in sisters)
        profile = profile if is_fitted else borrowing(profile, lent)
    return FittedProfiles(kernels, profile, sisters, is_fitted)


def _with_calls_of_others(profile: DeviceProfile, data: Sequence[DeviceData]) -> DeviceProfile:
    """The profile with what calls cost on devices where that was measured, if no set of the data tells it."""
    table = transfer_table()
    if not table.sources or any(not one.header.includes_host_overhead for each in data for one in each.sets):
        return profile
    values = transferred_values(facts_of(profile), table.sources)
    return with_values(profile, {name: value for name, value in values.items() if name in CALL})


def uninformed(profile: DeviceProfile) -> DeviceProfile:
    """The profile with parameters that no published figure has moved: of no device, without a limit of power."""
    space = profile.device_kind.concurrency
    low, high = space.bounds()
    limits = {parameter.name: parameter.upper for parameter in GPU_SPACE.parameters if parameter.name in CAPS}
    return with_values(neutral(profile), {**limits, **space.values((low + high) / 2)})
