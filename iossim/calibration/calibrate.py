"""Calibration: from measurement sets and published figures to profiles, their errors and their spread.

Kernels are fitted first, then launches, then concurrency. The sets of one device, and of boards that share its chip,
are fitted together: the parameters of the GPU are shared, each set has its own host overhead. Shapes are split by their
hash: a part is held out, and only judges the fit; inside the others, each fold is predicted by a fit without it, and
those residuals become the profile's bands.

Predictions of published networks are fitted without any knowledge of them: from a device-independent starting point,
and for each network once more without that network, kernels and launches. Only sequential figures are fitted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from iossim.base.errors import StartProgress, silent
from iossim.calibration.accuracy import Mask, Residuals, bands_by_kind, device_times, joined, residuals_by_kind
from iossim.calibration.concurrency_fit import borrowing, fit_concurrency, lent_by
from iossim.calibration.fit import RESAMPLES, Bootstrap, Fit, bootstrap, fit, rounded
from iossim.calibration.host_fit import fit_host, published_models, sequences
from iossim.calibration.nuisances import facts_of, neutral
from iossim.calibration.recording import Recording, borrowed_intervals, few_rows, poorly_explained, usable, weighted
from iossim.calibration.samples import Samples, SequenceSamples
from iossim.hardware.fits import GPU_SPACE, TENSOR_SPACE, ParameterSpace
from iossim.hardware.lowering.kernel import Issue
from iossim.hardware.parameters import CALL
from iossim.hardware.profile import DeviceProfile, with_values
from iossim.hardware.provenance import DataSet, Provenance
from iossim.hardware.transfer import CAPS, transfer_table, transferred_values
from iossim.ir.types import Precision
from iossim.measurements.measurement import HELD_OUT_FRACTION, MeasurementSet, unusable

#: Fewer rows than this in all sets together determine nothing.
FEWEST_ROWS = 10
FOLDS = 5
#: Relative to the width of the bounds.
_NEARLY = 1e-4


@dataclass(frozen=True)
class DeviceData:
    """A device and its measurements."""

    profile: DeviceProfile
    sets: tuple[MeasurementSet, ...]


@dataclass(frozen=True)
class Protocol:
    """Protocol of a calibration: how a fit is made and judged.

    ``held_out`` is the fraction of the shapes that no fit sees; with ``folds`` below 2 there is no cross-validation,
    and bands come from the held-out shapes. ``date`` goes into the provenance.
    """

    date: str | None = None
    held_out: float = HELD_OUT_FRACTION
    folds: int = FOLDS
    seed: int = 0
    rounds: int = 60
    resamples: int = RESAMPLES
    trusts_labels: bool = False


@dataclass(frozen=True, eq=False)
class Calibration:
    """Result of a calibration. ``profiles`` are those given, in order, with the fitted values."""

    profiles: tuple[DeviceProfile, ...]
    fit: Fit
    bootstrap: Bootstrap
    notes: tuple[str, ...]
    #: Parameters of the fit without each name's samples.
    left_out: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def profile(self) -> DeviceProfile:
        """Profile of the first device."""
        return self.profiles[0]


def calibrate(
    data: Sequence[DeviceData],
    protocol: Protocol,
    *,
    further: Sequence[Samples] = (),
    leaving_out: Mapping[str, Sequence[Samples]] | None = None,
    progress: StartProgress = silent,
) -> Calibration:
    """Fit the parameters that the devices share, starting from (and weakly drawn to) those of the first profile.

    ``further`` samples (sequences of a network, say) are fitted too, but neither held out nor resampled into bands;
    ``leaving_out`` has, by name, the remaining ones without one thing, for a fit each. Raises MeasurementError for
    impossible sets.
    """
    recordings, notes = _recordings(data, protocol)
    folds, rounds = protocol.folds, protocol.rounds
    start = data[0].profile
    seen: list[Samples] = [*(one.where(one.fitted) for one in recordings), *further]
    space = _determined(recordings, further, start)
    found = fit(seen, start, rounds, progress("fit"), space=space)
    given = _rounded(found)
    outside = _residuals(recordings, [one.is_held_out for one in recordings], found)
    inside: list[Residuals] = []
    for fold in range(folds if folds > 1 else 0):
        # A recording of a single shape has nothing left to fit when its fold is judged.
        used = [one for one in recordings if (one.fitted & (one.fold != fold)).any()]
        samples = [*(one.where(one.fitted & (one.fold != fold)) for one in used), *further]
        without = fit(samples, start, rounds, progress(f"fold {fold + 1} of {folds}"), found, space)
        inside += _residuals(used, [one.fitted & (one.fold == fold) for one in used], without)
    inside = joined(inside, lambda one: (one.data_set, one.key))
    operators = seen[: len(recordings)]
    left_out = {
        name: _rounded(fit([*operators, *others], start, rounds, progress(f"without {name}"), found, space))
        for name, others in (leaving_out or {}).items()
    }
    resampled = bootstrap(found, seen, protocol.resamples, protocol.seed)
    notes += poorly_explained(recordings, found)
    provenance = _provenance(recordings, further, found, resampled, protocol.date)
    earlier = Provenance(kind="hand-set", note="")
    if start.provenance.kind == "fitted" and not set(start.device_kind.fits().kernels.names) & set(space.names):
        earlier = start.provenance
        provenance = _beside(earlier, provenance)
    bands = bands_by_kind(inside or outside)
    notes += borrowed_intervals(recordings, bands, folds)
    provenance = provenance.model_copy(
        update={
            "held_out_fraction": protocol.held_out,
            "held_out": [*earlier.held_out, *(each.summary() for each in outside)],
            "cross_validated": [*earlier.cross_validated, *(each.summary() for each in inside)],
            "bands": start.provenance.bands | bands,
        }
    )
    profiles = tuple(with_values(one.profile, given).model_copy(update={"provenance": provenance}) for one in data)
    return Calibration(profiles, found, resampled, tuple(notes), left_out)


def _recordings(data: Sequence[DeviceData], protocol: Protocol) -> tuple[list[Recording], list[str]]:
    notes: list[str] = []
    recordings: list[Recording] = []
    for one in data:
        for measured in one.sets:
            kept = usable(measured, one.profile, protocol.trusts_labels)
            notes += kept.notes
            if kept.measurements:
                recordings.append(Recording.of(kept, one.profile, protocol.held_out, protocol.folds))
    rows = sum(int(one.seen.sum()) for one in recordings)
    if rows < FEWEST_ROWS:
        names = ", ".join(measured.name for one in data for measured in one.sets)
        problem = f"{rows} usable rows are not held out, and at least {FEWEST_ROWS} are needed"
        raise unusable(names, f"{problem}; measure more operators, or hold out fewer with `held_out`")
    # A recording whose few shapes are all held out only judges.
    recordings = [one for one in recordings if one.seen.any()]
    return weighted(recordings), notes + few_rows(recordings)


def _determined(recordings: Sequence[Recording], further: Sequence[Samples], start: DeviceProfile) -> ParameterSpace:
    """Parameters that the rows determine; networks are fp32."""
    precisions = {row.operator.precision for one in recordings for row in one.measured.measurements}
    return start.device_kind.fits().told_by(start.architecture, precisions | ({Precision.FP32} if further else set()))


def _residuals(recordings: Sequence[Recording], chosen: Sequence[Mask], found: Fit) -> list[Residuals]:
    """Residuals of the ``chosen`` rows of recordings, ``[rows]`` each, at the fitted values as they are written."""
    residuals: list[Residuals] = []
    for recording, rows, overhead in zip(recordings, chosen, found.overheads, strict=False):
        if rows.any():
            profile = with_values(recording.profile, _rounded(found))
            predicted_us, measured_us, shown = device_times(recording.where(rows), profile, overhead)
            keys = np.array(recording.keys_where(rows))[shown].tolist()
            residuals += residuals_by_kind(recording.name, keys, predicted_us[shown], measured_us[shown])
    return residuals


def _provenance(
    recordings: Sequence[Recording], further: Sequence[Samples], found: Fit, resampled: Bootstrap, date: str | None
) -> Provenance:
    weight = sum(one.samples.weight for one in recordings) + sum(one.weight for one in further)
    used: list[tuple[str, Samples, int, Mapping[str, str]]] = [
        *((one.name, one.samples, int(one.fitted.sum()), one.measured.header.libraries) for one in recordings),
        *((one.name, one, len(one.latency_us), {}) for one in further),
    ]
    note = f"fitted to operators measured on {_devices(recordings)}"
    if further:
        note += f" and to networks run unit after unit on {_devices(further)}"
    return Provenance(
        kind="fitted",
        note=f"{note}; what no data set shows is as it was set before",
        date=date,
        data_sets=[
            DataSet(
                name=name,
                device=one.profile.name,
                rows=rows,
                libraries=dict(libraries),
                weight_percent=rounded(100 * one.weight / weight, 2),
            )
            for name, one, rows, libraries in used
        ],
        spread=resampled.spread(),
        unidentified=[name for name in found.space.names if name in {*resampled.unidentified, *found.at_bounds}],
        at_bounds=list(found.at_bounds),
    )


def _beside(before: Provenance, tensor_cores: Provenance) -> Provenance:
    """Provenance of a profile whose tensor cores were fitted after all else."""
    return before.model_copy(
        update={
            "note": f"{before.note}; its tensor cores: {tensor_cores.note}",
            "date": tensor_cores.date,
            "data_sets": [*before.data_sets, *tensor_cores.data_sets],
            "spread": before.spread | tensor_cores.spread,
            "unidentified": [*before.unidentified, *tensor_cores.unidentified],
            "at_bounds": [*before.at_bounds, *tensor_cores.at_bounds],
        }
    )


def _devices(several: Sequence[Recording | Samples]) -> str:
    return " and ".join(dict.fromkeys(one.profile.name for one in several))


def _rounded(found: Fit) -> dict[str, float]:
    """Values with the justified number of digits, inside their bounds."""
    return {
        parameter.name: _snapped(found.values[parameter.name], parameter.lower, parameter.upper)
        for parameter in found.space.parameters
    }


def _snapped(value: float, lower: float, upper: float) -> float:
    """A value nearly at a bound, set to that bound: solvers stay slightly inside."""
    margin = _NEARLY * (upper - lower)
    if value <= lower + margin:
        return lower
    return upper if value >= upper - margin else rounded(value)


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
