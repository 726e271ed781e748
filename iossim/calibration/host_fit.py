"""The gap between kernels and the cost of a launch, from published networks that were run unit after unit.

Rows of operators do not tell the gap: moved into what a call costs besides (``dispatch_us``, ``dispatch_kernel_us``), all that
rows show stays the same (:func:`with_gap`). Networks show the sum of gaps and launches; short units wait for the host
and longer ones do not, but over a network either can stand for a good part of the other. A unit of nothing but launches tells
them apart: a concat by itself, which launches a kernel a term. Both are drawn to what was measured elsewhere (the kind's
:class:`~iossim.hardware.kind.EngineCosts`), as far as that is known. Figures of concurrent schedules take no part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from iossim.base.least_squares import least_squares
from iossim.calibration.bootstrap import KEPT_RESAMPLES
from iossim.calibration.published_networks import run_unit_after_unit
from iossim.calibration.rounding import rounded
from iossim.hardware.profile import DeviceProfile, with_values
from iossim.hardware.provenance import DataSet

Floats = NDArray[np.float64]

#: Of a figure: repeats differ by 2 to 4 per cent.
NOISE = 0.03
_STEP = 0.02
GAP = "kernel_gap_us"
#: What the fit is called among the data sets of a profile, and how its note begins.
DATA_SET = "published networks unit after unit: gap and launch"
_NOTE = "; launches: "
#: What rows show a change of the gap in, if at all.
_BESIDE_GAP = ("dispatch_us", "dispatch_kernel_us")


@dataclass(frozen=True)
class HostFit:
    """``values`` are the fitted parameters with those tied to them, ``draws`` some of the distribution that the figures and
    the prior leave, entry ``k`` of every list together; ``spread`` are its standard deviations. ``figures`` is how many
    took part, on ``device``."""

    device: str
    values: Mapping[str, float]
    spread: Mapping[str, float]
    draws: Mapping[str, list[float]]
    figures: int

    def on(self, profile: DeviceProfile) -> DeviceProfile:
        """The profile with what was found; its provenance says from what."""
        moved = with_values(self.with_gap(profile), self.values)
        own = moved.provenance
        launches = {name: values for name, values in self.draws.items() if name != GAP}
        # A profile may have been told before: then this replaces it.
        sets = [one for one in own.data_sets if one.name != DATA_SET]
        told = f"{' and '.join(self.draws)} from {self.figures} figures of networks run unit after unit and from costs of launches"
        note = f"{own.note.partition(_NOTE)[0]}{_NOTE}{told}; no figure of a concurrent schedule took part in any fit"
        provenance = own.model_copy(
            update={
                "note": note,
                "data_sets": [*sets, DataSet(name=DATA_SET, device=self.device, rows=self.figures)],
                "spread": {**own.spread, **self.spread},
                "resamples": {**own.resamples, **launches},
                "unidentified": [name for name in own.unidentified if name not in self.values],
                "at_bounds": [name for name in own.at_bounds if name not in self.values],
            }
        )
        return moved.model_copy(update={"provenance": provenance})

    def with_gap(self, profile: DeviceProfile) -> DeviceProfile:
        """The profile with this gap, and with what calls cost so that rows of operators show the same."""
        known = profile.parameter_values
        resamples = dict(profile.provenance.resamples)
        gaps = self.draws[GAP]
        before = resamples.get(GAP, [known[GAP]] * len(gaps))
        for name in _BESIDE_GAP:
            several = resamples.get(name)
            if several:
                shifted = zip(several, before, gaps, strict=True)
                resamples[name] = [rounded(max(0.0, value + old - new), 3) for value, old, new in shifted]
        provenance = profile.provenance.model_copy(
            update={
                "spread": {**profile.provenance.spread, GAP: self.spread[GAP]},
                "resamples": {**resamples, GAP: gaps},
            }
        )
        return with_gap(profile, self.values[GAP]).model_copy(update={"provenance": provenance})


def with_gap(profile: DeviceProfile, gap_us: float) -> DeviceProfile:
    """The profile with another gap between kernels; calls of single operators take as long as before, where that can be."""
    known = profile.parameter_values
    less_us = known[GAP] - gap_us
    beside = {name: rounded(max(0.0, known[name] + less_us)) for name in _BESIDE_GAP}
    return with_values(profile, {GAP: gap_us, **beside})


def fit_host(profile: DeviceProfile, without: str = "", seed: int = 0) -> HostFit | None:
    """Fit to the published networks of the profile's device but ``without``; None where there are none.

    Least squares of relative errors over :data:`NOISE` and of the distance from the prior over its deviation; the
    distribution is taken to be normal there, and kept within the bounds.
    """
    samples = run_unit_after_unit(profile, without)
    if samples is None:
        return None
    space = profile.device_kind.launches
    low, high = space.bounds()
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

    found = least_squares(residuals, prior, bounds=(low, high), diff_step=_STEP)
    covariance = np.linalg.inv(found.jac.T @ found.jac)
    generator = np.random.default_rng(seed)
    draws = np.clip(generator.multivariate_normal(found.x, covariance, KEPT_RESAMPLES), low, high)
    spread = np.sqrt(np.diag(covariance)).tolist()
    return HostFit(
        profile.name,
        {name: rounded(value) for name, value in space.values(found.x).items()},
        {name: rounded(value, 2) for name, value in zip(space.names, spread, strict=True)},
        {name: [rounded(value, 3) for value in draws[:, at].tolist()] for at, name in enumerate(space.names)},
        len(samples.latency_us),
    )
