"""Fit of the gap between kernels and of the launch overhead to published figures of whole networks.

Networks run sequentially determine the same parameters as kernels measured alone (:func:`sequences` are fitted with the
kernels), and also the gap between kernels and the launch overhead, which no isolated kernel determines
(:func:`fit_host`, after the kernels). Figures of concurrent schedules and stages are a test, and never fitted.

Rows of operators do not determine the gap: if it is moved into the dispatch cost of a call (:func:`with_gap`), their
predictions stay the same. Networks determine the sum of gaps and launches; a unit of nothing but launches separates
them: a concat alone, which launches one kernel per term. Both have priors from measurements elsewhere (the kind's
:class:`~iossim.hardware.kind.EngineCosts`), as far as known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from iossim.base.compiled import Floats
from iossim.base.solvers import least_squares
from iossim.calibration.fit import rounded
from iossim.calibration.recording import STEADY_FACTOR
from iossim.calibration.samples import SequenceSamples
from iossim.hardware.profile import DeviceProfile, with_values
from iossim.hardware.provenance import DataSet
from iossim.ir.network import Network
from iossim.models.load import load
from iossim.prediction.published import SEQUENTIAL, NetworkFigures, published_figures

#: Network whose stages are published too, one by one.
SAMPLE = "ios_sample"


#: Weight of a network's unit relative to a recording's row: only networks show the time of consecutive calls, and the
#: thousands of recordings of single calls would bias it towards their own errors.
ROWS_A_UNIT = 3


def fitted_networks(device: str) -> list[NetworkFigures]:
    """The rows of a device whose :data:`SEQUENTIAL` figures ``iossim calibrate --published`` fits to."""
    return [row for row in published_figures()["networks"] if row["device"] == device and row.get("fitted", True)]


def published_models(device: str) -> tuple[str, ...]:
    """Models of :func:`fitted_networks`, each once."""
    return tuple(dict.fromkeys(row["model"] for row in fitted_networks(device)))


class Figure(NamedTuple):
    """A published time of ``units`` of a network, run one after another."""

    network: Network
    units: Sequence[int]
    latency_us: float


def _figures(device: str, without: str = "") -> tuple[list[Figure], list[Figure]]:
    """Figures of networks on a device that fits may see, and of single units of :data:`SAMPLE` at batch 1; those of the
    network ``without`` are left out.
    """
    whole: list[Figure] = []
    single: list[Figure] = []
    for row in fitted_networks(device):
        if row["model"] == without:
            continue
        network, latency_ms = load(row["model"], batch=row["batch"]), row["latency_ms"].get(SEQUENTIAL)
        if latency_ms is not None:
            whole.append(Figure(network, range(len(network.units)), 1e3 * float(latency_ms)))
        if row["model"] == SAMPLE and not single:
            samples = (one for one in published_figures()["sample_stages"] if one["device"] == device)
            times_ms: dict[str, float] = next((one["latency_ms"] for one in samples if one["batch"] == 1), {})
            units = network.unit_index.items()
            single += [Figure(network, (at,), 1e3 * float(times_ms[name])) for name, at in units if name in times_ms]
    return whole, single


def sequences(profile: DeviceProfile, without: str = "") -> list[SequenceSamples]:
    """Samples of the published sequential networks, and of single units; none for a device without.

    ``without`` names a held-out network. A network counts as many rows as :data:`ROWS_A_UNIT` times its units; a unit
    of a stage counts as any row without the host's overhead.
    """
    whole, single = _figures(profile.name, without)
    whole = [one for one in whole if one.network.source.model != SAMPLE]
    found = []
    if whole:
        weight = float(ROWS_A_UNIT * sum(len(one.units) for one in whole))
        found.append(SequenceSamples.of("published networks", profile, whole, weight))
    if single:
        found.append(SequenceSamples.of("published stages", profile, single, STEADY_FACTOR * len(single)))
    return found


#: Relative noise of a figure: repeats differ by 2 to 4 percent.
NOISE = 0.03
_STEP = 0.02
GAP = "kernel_gap_us"
#: Name of the fit among the data sets of a profile, and the start of its note.
DATA_SET = "published networks unit after unit: gap and launch"
_NOTE = "; launches: "
#: Parameters that may compensate a change of the gap in rows.
_BESIDE_GAP = ("dispatch_us", "dispatch_kernel_us")


@dataclass(frozen=True)
class HostFit:
    """Fitted parameters as ``values``, with those tied to them, and their standard deviations as ``spread``; the number
    of ``figures`` used, on ``device``.
    """

    device: str
    values: Mapping[str, float]
    spread: Mapping[str, float]
    figures: int

    def on(self, profile: DeviceProfile) -> DeviceProfile:
        """The profile with the fitted values, and their provenance."""
        start = self.with_gap(profile)
        own = start.provenance
        # The fit replaces an earlier one in the profile.
        sets = [one for one in own.data_sets if one.name != DATA_SET]
        names = " and ".join(self.spread)
        told = f"{names} from {self.figures} figures of networks run unit after unit and from costs of launches"
        note = f"{own.note.partition(_NOTE)[0]}{_NOTE}{told}; no figure of a concurrent schedule took part in any fit"
        return with_values(
            start,
            self.values,
            note=note,
            data_sets=[*sets, DataSet(name=DATA_SET, device=self.device, rows=self.figures)],
            spread={**own.spread, **self.spread},
            unidentified=[name for name in own.unidentified if name not in self.values],
            at_bounds=[name for name in own.at_bounds if name not in self.values],
        )

    def with_gap(self, profile: DeviceProfile) -> DeviceProfile:
        """The profile with this gap, and a dispatch cost that leaves the predictions of operators' rows unchanged."""
        spread = {**profile.provenance.spread, GAP: self.spread[GAP]}
        return with_values(with_gap(profile, self.values[GAP]), {}, spread=spread)


def with_gap(profile: DeviceProfile, gap_us: float) -> DeviceProfile:
    """The profile with another gap between kernels; calls of single operators take as long as before."""
    known = profile.parameter_values
    less_us = known[GAP] - gap_us
    beside = {name: rounded(max(0.0, known[name] + less_us)) for name in _BESIDE_GAP}
    return with_values(profile, {GAP: gap_us, **beside})


def fit_host(profile: DeviceProfile, without: str = "") -> HostFit | None:
    """Fit to the published networks of the profile's device except ``without``; None where there are none.

    Least squares of relative errors over :data:`NOISE` and of the distance from the prior over its deviation; the
    posterior is approximated as normal there.
    """
    whole, single = _figures(profile.name, without)
    figures = [*whole, *single]
    if not figures:
        return None
    samples = SequenceSamples.of("published networks", profile, figures, float(len(figures)))
    space = profile.device_kind.fits().launches
    costs = profile.device_kind.engine_costs(profile.compute_capability)
    defaults = profile.device_kind.default_parameters(profile.compute_capability).model_dump()
    prior = space.to_vector(defaults | costs.values.model_dump())
    deviation = np.array([costs.spread[name] for name in space.names])

    def tried(vector: Floats) -> DeviceProfile:
        values = space.values(vector)
        return with_values(with_gap(profile, values[GAP]), values)

    def residuals(vector: Floats) -> Floats:
        predicted_us, _ = samples.predict(tried(vector))
        return np.append((predicted_us / samples.latency_us - 1.0) / NOISE, (vector - prior) / deviation)

    found = least_squares(residuals, prior, bounds=space.bounds(), diff_step=_STEP)
    covariance = np.linalg.inv(found.jac.T @ found.jac)
    spread = np.sqrt(np.diag(covariance)).tolist()
    return HostFit(
        profile.name,
        {name: rounded(value) for name, value in space.values(found.x).items()},
        {name: rounded(value, 2) for name, value in zip(space.names, spread, strict=True)},
        len(samples.latency_us),
    )
