"""From measurements and published figures to profiles: kernels first, then launches, then concurrency.

Predictions of published networks are fitted without any knowledge of them: from a device-independent starting point,
and for each network once more without that network, kernels and launches. Only sequential figures are fitted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from iossim.base.errors import StartProgress, silent
from iossim.calibration.calibrate import Calibration, DeviceData, Protocol, calibrate
from iossim.calibration.concurrency_fit import borrowing, fit_concurrency, lent_by
from iossim.calibration.host_fit import fit_host, published_models, sequences
from iossim.calibration.nuisances import facts_of, neutral
from iossim.calibration.samples import SequenceSamples
from iossim.hardware.fits import GPU_SPACE, TENSOR_SPACE, ParameterSpace
from iossim.hardware.lowering.kernel import Issue
from iossim.hardware.parameters import CALL
from iossim.hardware.profile import DeviceProfile, with_values
from iossim.hardware.transfer import CAPS, transfer_table, transferred_values


@dataclass(frozen=True, eq=False)
class FittedProfiles:
    """``profile`` is the first device's; ``sisters`` are those of the other boards, which share its parameters.

    ``is_concurrency_fitted`` says whether any stages determined the parameters of concurrency.
    """

    kernels: Calibration
    profile: DeviceProfile
    sisters: tuple[DeviceProfile, ...]
    is_concurrency_fitted: bool


def fit_profiles(
    data: Sequence[DeviceData], protocol: Protocol, *, published: bool = False, progress: StartProgress = silent
) -> FittedProfiles:
    """Fit all that the data of boards with one chip determines; see :func:`~iossim.calibration.calibrate.calibrate`.

    ``published`` figures of the devices are fitted too: sequential networks with the kernels, and then the launch
    overhead. Concurrent stages come last. Raises MeasurementError for impossible sets.
    """
    models = published_models(data[0].profile.name) if published else ()
    if models:
        data = [replace(one, profile=uninformed(one.profile)) for one in data]
    elif data[0].profile.device_kind.borrows:
        data = [replace(one, profile=_with_calls_of_others(one.profile, data)) for one in data]

    def networks(without: str = "") -> list[SequenceSamples]:
        return [sample for one in data for sample in sequences(one.profile, without)] if published else []

    leaving_out, seed = {model: networks(model) for model in models}, protocol.seed
    kernels = calibrate(data, protocol, further=networks(), leaving_out=leaving_out, progress=progress)
    stages = [measured for one in data for measured in one.sets if measured.stages]
    host = fit_host(kernels.profile) if models else None
    profile, sisters = kernels.profile, kernels.profiles[1:]
    if host is not None:
        profile, sisters = host.on(profile), tuple(host.with_gap(one) for one in sisters)
        profile = with_left_out(profile, {model: kernels.left_out[model] for model in models})
    found = fit_concurrency(profile, stages, seed, _told_by_stages(profile, data))
    is_fitted = found is not profile
    lent = lent_by(profile) if host is not None else transfer_table().concurrency
    if not set(kernels.fit.space.names) & set(found.device_kind.fits().kernels.names):
        lent = None  # rows of tensor cores alone change nothing else
    if lent is not None and found.device_kind.borrows:
        sisters = tuple(borrowing(one, lent) for one in sisters)
        found = found if host is not None else borrowing(found, lent)
    return FittedProfiles(kernels, found, sisters, is_fitted)


def _told_by_stages(profile: DeviceProfile, data: Sequence[DeviceData]) -> ParameterSpace:
    """Parameters of concurrency; without the gap in a graph, if kernels recorded in graphs determine it."""
    told = any(one.header.issue is Issue.GRAPH and one.measurements for each in data for one in each.sets)
    return profile.device_kind.fits().concurrency.without(("graph_gap_factor",) if told else ())


def with_left_out(profile: DeviceProfile, kernels: Mapping[str, Mapping[str, float]]) -> DeviceProfile:
    """The profile with the predictions of a fit without each published network: ``kernels`` are the parameters of the
    kernels' fit without it, by network.
    """
    names = [*GPU_SPACE.names, *profile.device_kind.fits().launches.determined]
    left_out: dict[str, dict[str, float]] = {}
    for model, values in kernels.items():
        start = with_values(profile, values)
        host = fit_host(start, without=model)
        own = (start if host is None else host.on(start)).parameter_values
        left_out[model] = {name: own[name] for name in dict.fromkeys(names)}
    return with_values(profile, {}, left_out=left_out)


def _with_calls_of_others(profile: DeviceProfile, data: Sequence[DeviceData]) -> DeviceProfile:
    """The profile with the dispatch costs of devices that measured them, if no set of the data determines them."""
    table = transfer_table()
    if not table.sources or any(not one.header.includes_host_overhead for each in data for one in each.sets):
        return profile
    values = transferred_values(facts_of(profile), table.sources)
    return with_values(profile, {name: value for name, value in values.items() if name in CALL})


def uninformed(profile: DeviceProfile) -> DeviceProfile:
    """The profile with parameters that no published figure influenced: device-independent, without a power limit.

    Parameters of tensor cores start from their generation's values.
    """
    kind = profile.device_kind
    limits = {parameter.name: parameter.upper for parameter in GPU_SPACE.parameters if parameter.name in CAPS}
    defaults = kind.default_parameters(profile.compute_capability).model_dump()
    costs = defaults | kind.engine_costs(profile.compute_capability).values.model_dump()
    spaces = (kind.fits().concurrency, kind.fits().launches, TENSOR_SPACE)
    told = {name for space in spaces for name in space.determined}
    return with_values(neutral(profile), {**limits, **{name: costs[name] for name in told}})
