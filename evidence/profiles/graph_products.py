"""Fits of tensor cores to products and to fused attention in CUDA graphs, for ``hardware/kinds/gpu.yaml``.

Seven parameters of a generation, and four of attention on Hopper, fitted to one in three of the (steady) rows that are
not held out, by the logarithm of predicted over measured. ``python -m evidence.profiles.graph_products`` prints them in
three minutes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from evidence.data.data_sets import read_measurement_sets, shared_data
from evidence.data.formats.graph_attention import steady
from iossim.base.compiled import Floats
from iossim.base.solvers import least_squares
from iossim.calibration.samples import OperatorSamples
from iossim.hardware.fits import FittedParameter, ParameterSpace
from iossim.hardware.load import device
from iossim.hardware.profile import DeviceProfile, with_values
from iossim.measurements.measurement import MeasurementSet

_PRODUCT = (
    FittedParameter("tensor_efficiency", 0.3, 1.0),
    FittedParameter("tensor_step_clocks", 20.0, 2_000.0, is_logarithmic=True),
    FittedParameter("tensor_prologue_clocks", 200.0, 20_000.0, is_logarithmic=True),
    FittedParameter("tensor_overlap_norm", 1.0, 10.0),
    FittedParameter("tensor_dram_efficiency", 0.4, 1.0),
    FittedParameter("tensor_strided_efficiency", 0.3, 1.0),
    FittedParameter("tensor_l2_bytes_per_clock_per_sm", 16.0, 128.0, is_logarithmic=True),
)
#: Boards that share a set of parameters; the least time of a node of a graph is known on Hopper.
GENERATIONS = {
    ("a100-sxm-80gb",): ParameterSpace((*_PRODUCT, FittedParameter("graph_tensor_kernel_us", 0.5, 6.0))),
    ("h100-sxm", "h200-sxm"): ParameterSpace(_PRODUCT),
}
ATTENTION = ParameterSpace(
    (
        FittedParameter("attention_efficiency", 0.3, 1.0),
        FittedParameter("attention_overlap_norm", 1.0, 10.0),
        FittedParameter("attention_prologue_clocks", 200.0, 20_000.0, is_logarithmic=True),
        FittedParameter("attention_ramp_us", 0.0, 10.0),
    )
)
_OUTLIER = 0.1
#: One in this many of the rows that are not held out is fitted: neighbours in the grid of shapes are redundant.
_EVERY = 3
_PRODUCTS, _ATTENTION = (f"graph_kernels/graph_{name}_bf16.csv" for name in ("products", "attention"))


@dataclass(frozen=True)
class GraphFit:
    """Parameters of a generation, and the mean errors of held-out rows by board."""

    values: dict[str, float]
    held_out: dict[str, float]


def fit(sets: Sequence[MeasurementSet], space: ParameterSpace) -> GraphFit:
    """Fit boards of one generation together."""
    profiles = [device(one.device) for one in sets]
    seen = [_samples(one, profile, False) for one, profile in zip(sets, profiles, strict=True)]

    def residuals(vector: Floats) -> Floats:
        values = space.values(vector)
        return np.concatenate([_errors(samples, values) for samples in seen])

    start = space.to_vector(profiles[0].parameter_values)
    low, high = space.bounds()
    inside = np.clip(start, low + 1e-3 * (high - low), high - 1e-3 * (high - low))
    found = least_squares(
        residuals, inside, bounds=(low, high), loss="soft_l1", f_scale=_OUTLIER, diff_step=1e-3, max_nfev=25
    )
    values = space.values(found.x)
    held = {one.device: _samples(one, profile, True) for one, profile in zip(sets, profiles, strict=True)}
    errors = {name: float(np.abs(np.expm1(_errors(samples, values))).mean()) for name, samples in held.items()}
    return GraphFit(values, errors)


def _samples(measured: MeasurementSet, profile: DeviceProfile, held_out: bool) -> OperatorSamples:
    chosen = [row for row in measured.measurements if row.operator.is_held_out() is held_out]
    return OperatorSamples.of(measured, chosen if held_out else chosen[::_EVERY], profile, 1.0)


def _errors(samples: OperatorSamples, values: Mapping[str, float]) -> Floats:
    predicted_us, _ = samples.predict(with_values(samples.profile, values))
    errors: Floats = np.log(predicted_us / samples.latency_us)
    return errors


def main() -> None:
    """Print each generation's fit, and attention's."""
    sets = {one.device: one for one in read_measurement_sets(shared_data() / _PRODUCTS)}
    fits = [fit([sets[name] for name in names], space) for names, space in GENERATIONS.items()]
    fits.append(fit([steady(one) for one in read_measurement_sets(shared_data() / _ATTENTION)], ATTENTION))
    for found in fits:
        print(", ".join(f"{name} {value:.4g}" for name, value in found.values.items()))
        print("  held out:", ", ".join(f"{name} {100 * error:.1f}%" for name, error in found.held_out.items()))


if __name__ == "__main__":
    main()
